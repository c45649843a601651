"""One clock for all sources: the job's window, when it broke, and how job time relates to host time.

Offsets are found from pairs of stamps of one moment: Slurm's ``CANCELLED AT`` beside the job's own lines.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Literal

from ddaudit.evidence.incident import Incident, Stamp

__all__ = ["align", "placed"]

QUARTER_S = 900.0
#: Two readings of one moment may lie this far apart and still fix a zone (in quarter hours).
SLACK_S = 240.0
BEFORE_S, AFTER_S = 900.0, 1800.0
#: A launcher notices an end this much after the kernel did: what lies longer before a restart belongs to what it ended.
RESTART_S = 5.0
MAX_ZONE_S = 14 * 3600.0

Clock = tuple[list[tuple[int, float]], list[tuple[int, float]]]


def align(incident: Incident, clocks: list[Clock]) -> Incident:
    """Adds the job's window, its moment of failure (both in job time) and the shift from job to host time."""
    kernel = {s.path for s in incident.sources if s.kind == "kernel"}
    symptoms = [
        e.stamp.time_s
        for e in incident.events
        if e.stamp and not e.kernel and _is_failure(e.signature) and _in_job(e.job, incident)
    ]
    started = [c.stamp.time_s - (c.ran_ms or 0) / 1000 for c in incident.collectives if c.stamp]
    spans = [s for s in incident.sources if s.path not in kernel and s.kind == "log" and s.first and s.last]
    steps = [s.stamp.time_s for s in incident.steps if s.stamp]
    moments = [
        *symptoms,
        *started,
        *steps,
        *(s.first.time_s for s in spans if s.first),
        *(s.last.time_s for s in spans if s.last),
    ]
    raised = [r.stamp.time_s for r in incident.raised if r.stamp and r.stamp.zoned]
    moments = moments or raised
    failure = min([*symptoms, *started], default=None)
    if failure is not None:
        # A stray old date in a log must not stretch the window over days.
        moments = [m for m in moments if abs(m - failure) < 3 * 86400]
    window = (min(moments), max(moments)) if moments else None
    return replace(incident, window=window, failure_s=failure, shift_s=_shift(clocks, incident))


def _is_failure(signature: str) -> bool:
    return signature in (
        "pg-timeout",
        "pg-status",
        "el-exit",
        "nccl-closed",
        "nccl-remote",
        "pg-async",
        "gloo-closed",
        "torch-oom",
        "el-closing",
    )


def _in_job(job: str | None, incident: Incident) -> bool:
    return job is None or incident.job is None or job == incident.job


def _shift(clocks: list[Clock], incident: Incident) -> float | None:
    """Host time minus job time in whole quarter hours; None when nothing fixes it."""
    found = []
    for slurm, log in clocks:
        for number, moment in slurm:
            near = [
                (abs(moment - t - _round(moment - t)), abs(moment - t), moment - t)
                for n, t in log
                if abs(n - number) <= 80
            ]
            near = [x for x in near if x[0] <= SLACK_S and abs(x[2]) <= MAX_ZONE_S + SLACK_S]
            if near:
                found.append(_round(min(near, key=lambda x: x[1])[2]))
    return median(found) if found else None


def _round(difference_s: float) -> float:
    return round(difference_s / QUARTER_S) * QUARTER_S


def placed(incident: Incident, stamp: Stamp | None) -> Literal["in", "maybe", "out", "unknown"]:
    """Whether a host-clock event lies in the job's window.

    ``maybe``: only under some time-zone offset. ``unknown``: the event has no date, or the job has no window.
    """
    if stamp is None or incident.window is None:
        return "unknown"
    start, end = incident.window[0] - BEFORE_S, incident.window[1] + AFTER_S
    if incident.attempt_s is not None:
        start = max(start, incident.attempt_s - RESTART_S)
    shift = incident.shift_s
    if shift is not None:
        return "in" if start <= stamp.time_s - shift <= end else "out"
    if start <= stamp.time_s <= end:
        return "in"
    distance = min(abs(stamp.time_s - start), abs(stamp.time_s - end))
    return "maybe" if distance <= MAX_ZONE_S else "out"
