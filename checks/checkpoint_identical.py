"""Is a checkpoint the same as another, or as the manifest that was written from it?"""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.api import CheckpointDiff, Finding, Remedy, Severity, Where, check, fail, ok, skip

from ._checkpoint_plants import other_values

_SHOWN = 20


@check(
    "checkpoint.identical",
    question="checkpoint",
    plant=other_values,
    asks="Is every tensor and value the same, whatever the sharding and the format?",
)
def identical(diff: CheckpointDiff) -> Iterator[Finding]:
    """One finding for each entry that differs, with its first differing element, and for each that is missing."""
    remedy = Remedy(text="Copy the files that hold the named entries again, then compare once more.")
    if not diff.comparable:
        yield skip(f"not comparable: {diff.reason}")
        return
    for item in diff.differences[:_SHOWN]:
        where = Where(file=diff.b, tensor=item.name)
        yield fail(
            "checkpoint.differs", f"{item.name}: {item.text}", where=where, severity=Severity.CRITICAL, remedy=remedy
        )
    for side, names in ((diff.b, diff.only_in_a), (diff.a, diff.only_in_b)):
        for name in names[:_SHOWN]:
            text = f"{name} is missing in {side}"
            yield fail("checkpoint.entry-missing", text, where=Where(file=side, tensor=name), remedy=remedy)
    if diff.identical:
        yield ok(f"{diff.compared:,} tensors and values are the same", measured=0, unit="difference", limit=0,
                 limit_source="digests of every element")  # fmt: skip
    elif not diff.compared:
        yield skip("the two have no entry in common")
