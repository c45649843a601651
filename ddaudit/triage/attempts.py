"""Tells the last attempt of a restarted job from the ones before it.

An attempt ends where a launcher or the scheduler says so and training goes on below in the same file; torchelastic's
folders number attempts; a requeued job writes on in the same file; a resubmitted one leaves logs under another job id.
The last attempt is judged. What came before is judged by itself, to say whether it broke for the same cause.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, TypeVar

from ddaudit.evidence.incident import Incident, Rank, SourceFile, Spot, Stamp
from ddaudit.triage.readers.names import job_in, numbered_ranks

__all__ = ["Exit", "last_attempt", "newer"]

#: (exit code, the line that says so) of one rank, one a report.
Exit = tuple[int, Spot]

_ENDINGS = frozenset(
    ("el-exit", "el-restart", "sl-exitcode", "sl-time", "sl-preempt", "sl-nodefail", "sl-node-named", "sl-taskfail")
) | {"sl-cancel", "el-child", "ds-exit", "mpi-exit"}
#: Steps below an ending that prove that training went on: fewer may be a buffer that was written late.
STEPS_AFTER = 4
#: Lines below torchelastic's own word of a restart that are an attempt, not the rest of its message.
LINES_AFTER = 5
_ATTEMPT = re.compile(r"(?:^|/)attempt_(?P<n>\d{1,4})/")
WHOLE = 1 << 60


class _Placed(Protocol):
    @property
    def spot(self) -> Spot: ...


T = TypeVar("T", bound=_Placed)


@dataclass(frozen=True)
class _Edge:
    """Where the last attempt begins in a file: after this line. ``time_s`` is the job's clock, if known."""

    line: int
    time_s: float | None


def last_attempt(incident: Incident, exits: Mapping[int, Sequence[Exit]]) -> Incident:
    """The incident without what belongs to earlier attempts, which then stand in ``earlier``."""
    edges = {**_restarts(incident), **_folders(incident.sources), **_other_jobs(incident)}
    if not edges:
        return incident
    since = max((e.time_s for e in edges.values() if e.time_s is not None), default=None)
    logs = {s.path for s in incident.sources if s.kind != "kernel"}

    def last(spot: Spot, stamp: Stamp | None) -> bool:
        if (edge := edges.get(spot.file)) is not None:
            return spot.line > edge.line
        return since is None or stamp is None or spot.file not in logs or stamp.time_s >= since

    now = _part(incident, exits, last)
    before = _part(incident, exits, lambda spot, stamp: not last(spot, stamp))
    sources = tuple(_clipped(s, edges.get(s.path), since) for s in incident.sources)
    edge = max(((e.line, f) for f, e in edges.items() if e.line < WHOLE), default=None)
    where = next((e.spot for e in before.events if edge and (e.spot.line, e.spot.file) == edge), None)
    return replace(now, sources=sources, attempt_s=since, earlier=replace(before, jobs=()), restarted=where)


def newer(incident: Incident, since_s: float) -> Incident:
    """What is not older than a moment of the hosts' clock; undated lines stay."""
    since = since_s - (incident.shift_s or 0.0)
    kernel = {s.path for s in incident.sources if s.kind == "kernel"}

    def keep(spot: Spot, stamp: Stamp | None) -> bool:
        return stamp is None or stamp.time_s >= (since_s if spot.file in kernel else since)

    kept = _part(
        incident,
        {n: [(r.exit_code, r.exit_spot)] for n, r in incident.ranks.items() if r.exit_code is not None and r.exit_spot},
        keep,
    )
    window = (max(incident.window[0], since), max(incident.window[1], since)) if incident.window else None
    return replace(kept, window=window, attempt_s=max(since, incident.attempt_s or since))


def _part(
    incident: Incident, exits: Mapping[int, Sequence[Exit]], keep: Callable[[Spot, Stamp | None], bool]
) -> Incident:
    def some(items: Sequence[T]) -> tuple[T, ...]:
        return tuple(x for x in items if keep(x.spot, getattr(x, "stamp", None)))

    return replace(
        incident,
        events=some(incident.events),
        raised=some(incident.raised),
        collectives=some(incident.collectives),
        progress=some(incident.progress),
        steps=some(incident.steps),
        rank_times=some(incident.rank_times),
        rank_notes=some(incident.rank_notes),
        ranks={n: _ended(rank, exits.get(n, ()), keep) for n, rank in incident.ranks.items()},
        finished=incident.finished if incident.finished is not None and keep(incident.finished, None) else None,
    )


def _ended(rank: Rank, exits: Sequence[Exit], keep: Callable[[Spot, Stamp | None], bool]) -> Rank:
    mine = next(((code, spot) for code, spot in exits if keep(spot, None)), (None, None))
    return replace(rank, exit_code=mine[0], exit_spot=mine[1])


def _restarts(incident: Incident) -> dict[str, _Edge]:
    """The last ending of each file below which training went on, or after which torchelastic said that it would."""
    edges: dict[str, _Edge] = {}
    ends = {s.path: s.lines for s in incident.sources}
    steps: dict[str, list[int]] = {}
    for step in incident.steps:
        steps.setdefault(step.spot.file, []).append(step.spot.line)
    for file in steps:
        steps[file].sort()
    times = {(s.spot.file, s.spot.line): s.stamp for s in incident.steps}
    for event in incident.events:
        if event.signature not in _ENDINGS or event.kernel:
            continue
        file, line = event.spot.file, event.spot.line
        lines = steps.get(file, [])
        at = bisect_right(lines, line)
        going_on = len(lines) - at >= STEPS_AFTER and _forward(lines[at:], times, file)
        told = event.signature == "el-restart" and ends.get(file, 0) - line >= LINES_AFTER
        if (going_on or told) and line > edges.get(file, _Edge(0, None)).line:
            after = times.get((file, lines[at])) if at < len(lines) else None
            moment = event.stamp or after
            edges[file] = _Edge(line, moment.time_s if moment else None)
    return edges


def _forward(lines: Sequence[int], times: Mapping[tuple[str, int], Stamp | None], file: str) -> bool:
    """False where the stamps of the steps below run back: two writers with buffers of their own."""
    moments = [t.time_s for line in lines[:50] if (t := times.get((file, line))) is not None]
    return all(b >= a - 60 for a, b in pairwise(moments))


def _folders(sources: Sequence[SourceFile]) -> dict[str, _Edge]:
    """Files in torchelastic's folders of attempts before the last one."""
    numbers: dict[str, dict[str, int]] = {}
    for source in sources:
        if found := _ATTEMPT.search(source.path):
            numbers.setdefault(source.path[: found.start()], {})[source.path] = int(found["n"])
    return {
        path: _Edge(WHOLE, None)
        for files in numbers.values()
        for path, number in files.items()
        if number < max(files.values())
    }


def _other_jobs(incident: Incident) -> dict[str, _Edge]:
    """Logs that carry the id of another job than the one in question."""
    numbered = numbered_ranks(s.path for s in incident.sources)
    named = {s.path: job for s in incident.sources if s.path not in numbered and (job := job_in(s.path))}
    if incident.job not in named.values():
        return {}
    return {path: _Edge(WHOLE, None) for path, job in named.items() if job != incident.job and len(job) > 3}


def _clipped(source: SourceFile, edge: _Edge | None, since: float | None) -> SourceFile:
    """A file's span of time without the earlier attempts."""
    if source.kind == "kernel" or (edge is None and since is None):
        return source
    if edge is not None and edge.line == WHOLE:
        return replace(source, first=None, last=None, last_spot=None)
    if since is None or source.first is None or source.last is None or source.first.time_s >= since:
        return source
    if source.last.time_s < since:
        return replace(source, first=None, last=None, last_spot=None)
    return replace(source, first=replace(source.first, time_s=since))
