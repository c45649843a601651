"""How the script ended: by itself, by an exception on some rank, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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
    "op.preamble.length",  # gloo: the peers called collectives of different sizes
    "mismatch between collectives",
)

#: Updates of another optimizer, after the recorded one's last, from which on they are another training.
ANOTHER = 8


@check(
    "script.end",
    asks="Did every rank come to the end of the script after the same number of updates?",
    plant=planted("one rank has a batch more than the others", "hang.uneven-inputs", "uneven", wrap="manual"),
)
def end(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """A rank that leaves its loop early leaves the others in a collective that never completes."""
    counts = _counts(trace, script)
    errors = {r.rank: r.notes["exception"] for r in script.ranks if "exception" in r.notes}
    left = [r.rank for r in script.ranks if r.notes.get("ended") == "exit" and r.rank not in errors]
    broken = [r for r, e in errors.items() if any(p in str(e["text"]).lower() for p in PEER)]
    waiting = [r.rank for r in script.ranks if "ended" not in r.notes]
    stuck = script.hang_s is not None or bool(left and waiting)
    aborted = [r for r, lines in script.stacks.items() if any("distributed_c10d" in x for x in lines)]
    uneven = len(counts) > 1 and max(counts) - min(counts) >= 1
    guards = _guards(script)
    crashed = errors.keys() - set(broken)  # an error of its own: what the peers say is its echo
    if not (stuck or ((broken or aborted) and not crashed and (uneven or left or guards))):
        text = f"{len(counts)} of {world(trace)} rank(s) reported, after {min(counts, default=0)} updates"
        if errors:
            yield skip(f"not decided: rank(s) {sorted(errors)} raised {next(iter(errors.values()))['type']}")
        elif script.exit_code and waiting:
            yield skip(f"not decided: rank(s) {waiting} ended without a word, the script with {script.exit_code}")
        elif (more := max((int(r.notes.get("unrecorded_updates", 0)) for r in script.ranks), default=0)) >= ANOTHER:
            yield skip(f"unknown: another training of {more} updates followed the {min(counts, default=0)} that were"
                       " recorded; call ddaudit.watch.auto.begin() before it, or watch it by itself")  # fmt: skip
        else:
            yield ok(text, measured=0, unit="ranks that failed")
        return
    id, text = _kind(script, uneven, left, counts)
    yield fail(
        id, text, measured=script.hang_s, unit="s without progress", where=place(trace, 0),
        remedy=Remedy(text="Let every rank call the same collectives equally often (drop_last, equal shards, join)."),
    )  # fmt: skip


def _counts(trace: TrainingTrace, script: WatchedScript) -> list[int]:
    """Updates that each rank recorded. Summaries are written now and then and may lag behind the trace."""
    told = {r.rank: max((int(o["updates"]) for o in r.optimizers), default=0) for r in script.ranks}
    seen = trace.series("step_s")
    if seen is not None:
        rows = {p.rank: int((~np.isnan(seen[row])).sum()) for row, p in enumerate(trace.ranks)}
        told = {rank: max(count, rows.get(rank, 0)) for rank, count in told.items()}
    return list(told.values())


def _kind(script: WatchedScript, uneven: bool, left: list[int], counts: list[int]) -> tuple[str, str]:
    shown = {rank: " < ".join(lines[:3])[:200] for rank, lines in script.stacks.items()}
    loading = [r for r, lines in script.stacks.items() if any("_try_get_data" in x or "fetch.py" in x for x in lines)]
    if guards := _guards(script):
        rank, where = next(iter(guards.items()))
        text = f"rank {rank} waits in a collective that the others never call, at {where}"
        return "hang.rank-conditional-collective", text
    if loading and not left:
        return "hang.loader", f"rank(s) {', '.join(loading)} wait for their loader: {shown}"
    if uneven or left:
        return "hang.uneven-inputs", f"ranks made {counts} updates: some left the loop while others wait for them"
    if len({lines[0] if lines else "" for lines in script.stacks.values()}) > 1:
        return "hang.rank-conditional-collective", f"ranks wait at different places: {shown}"
    return "hang.rank-conditional-collective", f"ranks stopped in a collective that not all of them call: {shown}"


def _guards(script: WatchedScript) -> dict[str, str]:
    """Places where ranks waited or failed and to which only some ranks come, by rank."""
    raised = {str(r.rank): r.notes["exception"].get("guard") for r in script.ranks if "exception" in r.notes}
    return {rank: str(where) for rank, where in raised.items() if where} | dict(script.guards)
