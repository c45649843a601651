"""Does a resumed run continue as if it had never stopped?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Plant, Remedy, TrainingTrace, check, fail, ok, skip

from ._arrays import Table, place

WHOLE = {"parallel": "sharded", "steps": 6, "global_batch": 8, "checkpoint": "step:3"}
RESUMED = {**WHOLE, "checkpoint": "none", "resume_from": "$reference.checkpoint_path"}

#: What is compared, in the order of cause before effect: (series, finding id, words).
COMPARED = (
    ("batch_digest", "resume.data-order-changed", "reads other data"),
    ("lr", "resume.lr-jump", "uses another learning rate"),
    ("rng_digest", "resume.rng-changed", "draws other random numbers"),
    ("loss_nats", "resume.not-exact", "has another loss"),
    ("grad_norm", "resume.not-exact", "has another gradient norm"),
    ("update_norm", "resume.optimizer-state-wrong", "makes another update from the same gradient"),
)

SOURCE = "the uninterrupted run of the same seed"


def _plant(name: str, expect: str | tuple[str, ...], fault: str) -> Plant:
    return Plant(
        name,
        expect,
        ranks=2,
        params=RESUMED,
        planted={"plant": fault},
        reference=WHOLE,
        reference_ranks=2,
        types="sharded",
    )


@check(
    "resume.exact",
    question="checkpoint",
    asks="Does training resumed from the checkpoint repeat the uninterrupted run bit for bit?",
    plant=(
        _plant("the sampler's position is not put back", "resume.data-repeated", "resume-sampler-ignored"),
        _plant("the schedule starts anew", "resume.lr-jump", "resume-schedule-reset"),
        _plant("the optimizer forgets its moments", "resume.optimizer-state-wrong", "resume-optimizer-reset"),
    ),
)
def exact(trace: TrainingTrace, reference: TrainingTrace) -> Iterator[Finding]:
    """Compares data, learning rate, random state, loss and gradient norm of every update after the checkpoint with the
    run that was not interrupted. The same machine repeats itself exactly, so the tolerance is zero.
    """
    first = trace.job.resumed_from_step
    shared = [s for s in trace.steps if s in set(reference.steps)]
    if first is None or not shared or len(trace.ranks) != len(reference.ranks):
        yield skip("not measured: needs a resumed run and the uninterrupted run of the same number of ranks")
        return
    found = _first_difference(trace, reference, shared)
    if found is not None:
        yield _differs(trace, reference, shared, *found)
        return
    text = f"updates {shared[0]} to {shared[-1]} after the checkpoint repeat the uninterrupted run bit for bit"
    yield ok(text, measured=0, unit="updates that differ", limit=0, limit_source=SOURCE)


def _first_difference(trace: TrainingTrace, reference: TrainingTrace, shared: list[int]) -> tuple[int, int, int] | None:
    """(index into COMPARED, row, column) of the earliest difference; in one update, cause comes before effect."""
    earliest: tuple[int, int, int] | None = None
    for index, (series, _, _) in enumerate(COMPARED):
        mine, other = _shared(trace, series, shared), _shared(reference, series, shared)
        if mine is None or other is None:
            continue
        differs = np.argwhere((mine != other) & ~(np.isnan(mine) & np.isnan(other)))
        if len(differs):
            column = int(differs[:, 1].min())
            if earliest is None or column < earliest[2]:
                earliest = (index, int(differs[differs[:, 1] == column][0, 0]), column)
    return earliest


def _differs(
    trace: TrainingTrace, reference: TrainingTrace, shared: list[int], index: int, row: int, column: int
) -> Finding:
    series, id, words = COMPARED[index]
    mine, other = _shared(trace, series, shared), _shared(reference, series, shared)
    assert mine is not None and other is not None
    again = _again(trace, reference) if series == "batch_digest" else None
    return fail(
        "resume.data-repeated" if again else id,
        f"the run resumed from update {trace.job.resumed_from_step} {words} in update {shared[column]}{again or ''}",
        measured=float(mine[row, column]),
        unit=series,
        limit=float(other[row, column]),
        limit_source=SOURCE,
        where=place(trace, row, trace.steps.index(shared[column])),
        first_seen_step=shared[column],
        remedy=Remedy(text="Save and restore sampler, schedule, optimizer and random states, before the first batch."),
    )


def _shared(trace: TrainingTrace, series: str, steps: list[int]) -> Table | None:
    table = trace.series(series)
    return None if table is None else table[:, [trace.steps.index(s) for s in steps]]


def _again(trace: TrainingTrace, reference: TrainingTrace) -> str | None:
    """Words for samples that were read before the checkpoint and are read again after it."""
    mine, other = trace.sample_ids, reference.sample_ids
    first = trace.job.resumed_from_step or 0
    if mine is None or other is None:
        return None
    before = {int(i) for i in np.unique(other[:, [k for k, s in enumerate(reference.steps) if s < first]]) if i >= 0}
    twice = [int(i) for i in mine[:, 0].ravel() if int(i) in before]
    return f": {len(twice)} of its first {(mine[:, 0] >= 0).sum()} samples were trained on before" if twice else None
