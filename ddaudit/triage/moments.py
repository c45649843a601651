"""What happened when, on the job's clock: the rows behind the timeline picture of a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddaudit.evidence.incident import Event, Incident, Spot, Stamp
from ddaudit.redact import redact_text
from ddaudit.triage.readers.sections import real_name
from ddaudit.triage.reasoning.decide import Verdict

__all__ = ["timeline"]

MAX_ROWS = 60
#: Ranks whose waits are drawn; a thousand bars of one length say no more than eight.
MAX_WAITS = 8


def timeline(incident: Incident, verdict: Verdict) -> list[dict[str, Any]]:
    """Rows in the order of time: ``what`` (steps, cause, sign, wait, aside, restart), ``lane`` (whose line it is drawn
    on), ``start_s`` and ``end_s`` (seconds since the epoch, the job's clock), ``text``, ``file`` and ``line``.

    Only what carries a date has a row.
    """
    rows = [*_steps(incident), *_evidence(incident, verdict), *_waits(incident), *_aside(incident, verdict)]
    if incident.restarted is not None and incident.attempt_s is not None:
        rows.append(_row("restart", "job", incident.attempt_s, "the last attempt begins", incident.restarted))
    ordered = sorted(rows, key=lambda r: (r["start_s"], r["lane"], r["line"]))
    wanted = [r for r in ordered if r["what"] != "aside"][:MAX_ROWS]
    return sorted(
        [*wanted, *(r for r in ordered if r["what"] == "aside")][:MAX_ROWS], key=lambda r: float(r["start_s"])
    )


def _row(what: str, lane: str, start_s: float, text: str, spot: Spot, end_s: float | None = None) -> dict[str, Any]:
    shown = redact_text(" ".join(text.split()))[:160]
    place = {"file": real_name(spot.file), "line": spot.line}
    return {"what": what, "lane": lane, "start_s": start_s, "end_s": end_s, "text": shown, **place}


def _steps(incident: Incident) -> Iterator[dict[str, Any]]:
    dated = [s for s in incident.steps if s.stamp is not None]
    moments = [s.stamp.time_s for s in dated if s.stamp is not None]
    if moments:
        last = max(dated, key=lambda s: s.stamp.time_s if s.stamp else 0.0)
        numbers = [s.step for s in dated if s.step is not None]
        text = f"steps {min(numbers)} to {max(numbers)}" if numbers else f"{len(dated)} steps"
        yield _row("steps", "job", min(moments), text, last.spot, max(moments))


def _evidence(incident: Incident, verdict: Verdict) -> Iterator[dict[str, Any]]:
    """The dated lines that the answer cites; the first of them is the cause's own."""
    known = {(e.spot.file, e.spot.line): e for e in _dated(incident)}
    first = True
    for spot in verdict.chosen.evidence:
        if (found := known.get((spot.file, spot.line))) is None:
            continue
        stamp, kernel, host, rank = found.stamp, found.kernel, found.host, found.rank
        yield _row(
            "cause" if first else "sign", _lane(host, rank, kernel), _job_time(incident, stamp, kernel), spot.text, spot
        )
        first = False


class _Dated:
    """A stamped fact, whatever kind it is of."""

    def __init__(self, spot: Spot, stamp: Stamp, host: str | None, rank: int | None, kernel: bool) -> None:
        self.spot, self.stamp, self.host, self.rank, self.kernel = spot, stamp, host, rank, kernel


def _dated(incident: Incident) -> Iterator[_Dated]:
    for event in incident.events:
        if event.stamp is not None:
            yield _Dated(event.spot, event.stamp, event.host, event.rank, event.kernel)
    for raised in incident.raised:
        if raised.stamp is not None:
            yield _Dated(raised.spot, raised.stamp, raised.host, raised.rank, False)


def _waits(incident: Incident) -> Iterator[dict[str, Any]]:
    """How long ranks sat in the collective that timed out."""
    seen: set[int] = set()
    timeouts = [c for c in incident.collectives if c.state == "timeout" and c.stamp is not None]
    for item in sorted(timeouts, key=lambda c: c.stamp.time_s if c.stamp else 0.0):
        if item.rank in seen or len(seen) >= MAX_WAITS or item.stamp is None:
            continue
        seen.add(item.rank)
        text = f"waited in {item.op} {item.seq}"
        start = item.stamp.time_s - (item.ran_ms or 0.0) / 1000
        yield _row("wait", f"rank {item.rank}", start, text, item.spot, item.stamp.time_s)


def _aside(incident: Incident, verdict: Verdict) -> Iterator[dict[str, Any]]:
    events: dict[tuple[str, int], Event] = {(e.spot.file, e.spot.line): e for e in incident.events if e.stamp}
    for rejected in verdict.rejected[:10]:
        event = events.get((rejected.spot.file, rejected.spot.line))
        if event is not None and event.stamp is not None:
            lane = _lane(event.host, event.rank, event.kernel)
            moment = _job_time(incident, event.stamp, event.kernel)
            yield _row("aside", lane, moment, f"{rejected.cause}: {rejected.why_not}", rejected.spot)


def _lane(host: str | None, rank: int | None, kernel: bool) -> str:
    if kernel:
        return host or "a host"
    return f"rank {rank}" if rank is not None else host or "job"


def _job_time(incident: Incident, stamp: Stamp, kernel: bool) -> float:
    return stamp.time_s - (incident.shift_s or 0.0 if kernel else 0.0)
