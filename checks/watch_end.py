"""How the script ended: by itself, by an exception on some rank, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ddaudit.api import Finding, Remedy, TrainingTrace, WatchedScript, check, fail, ok, skip

from ._arrays import place
from ._watched import planted, world

PEER = (
    "connection closed by peer",
    "connection reset",
    "socket timeout",
    "timed out waiting",
    "read timeout",
    "operation timed out",
)


@check(
    "script.end",
    asks="Did every rank come to the end of the script after the same number of updates?",
    plant=planted("one rank has a batch more than the others", "hang.uneven-inputs", "uneven", wrap="manual"),
)
def end(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """A rank that leaves its loop early leaves the others in a collective that never completes."""
    counts = [_updates(rank.optimizers) for rank in script.ranks]
    errors = {r.rank: r.notes["exception"] for r in script.ranks if "exception" in r.notes}
    left = [r.rank for r in script.ranks if r.notes.get("ended") == "exit" and r.rank not in errors]
    broken = [r for r, e in errors.items() if any(p in str(e["text"]).lower() for p in PEER)]
    waiting = [r.rank for r in script.ranks if "ended" not in r.notes]
    stuck = script.hang_s is not None or bool(left and waiting)
    uneven = len(counts) > 1 and max(counts) - min(counts) >= 1
    if not (stuck or (broken and (uneven or left))):
        text = f"{len(counts)} of {world(trace)} rank(s) reported, after {min(counts, default=0)} updates"
        yield (
            ok(text, measured=len(errors), unit="ranks that failed")
            if not errors
            else skip(f"not decided: rank(s) {sorted(errors)} raised {next(iter(errors.values()))['type']}")
        )
        return
    id, text = _kind(script, uneven, left, counts)
    yield fail(
        id, text, measured=script.hang_s, unit="s without progress", where=place(trace, 0),
        remedy=Remedy(text="Let every rank call the same collectives equally often (drop_last, equal shards, join)."),
    )  # fmt: skip


def _updates(optimizers: tuple[Mapping[str, Any], ...]) -> int:
    return max((int(o["updates"]) for o in optimizers), default=0)


def _kind(script: WatchedScript, uneven: bool, left: list[int], counts: list[int]) -> tuple[str, str]:
    shown = {rank: " < ".join(lines[:3])[:200] for rank, lines in script.stacks.items()}
    loading = [r for r, lines in script.stacks.items() if any("_try_get_data" in x or "fetch.py" in x for x in lines)]
    if loading and not uneven:
        return "hang.loader", f"rank(s) {', '.join(loading)} wait for their loader: {shown}"
    if uneven or left:
        return "hang.uneven-inputs", f"ranks made {counts} updates: some left the loop while others wait for them"
    where = {lines[0] if lines else "" for lines in script.stacks.values()}
    if len(where) > 1:
        return "hang.rank-conditional-collective", f"ranks wait at different places: {shown}"
    return "hang.rank-conditional-collective", f"ranks stopped in a collective that not all of them call: {shown}"
