"""What was not measured: each skip and error, steps that did not end, and what a run of this kind cannot see."""

from __future__ import annotations

from collections.abc import Mapping

from ddaudit.findings import Status
from ddaudit.record import Record
from ddaudit.report.groups import Group, group
from ddaudit.report.model import Missing, mark
from ddaudit.report.numbers import duration
from ddaudit.report.safe import visible
from ddaudit.report.scene import backends, hosts, world_size

__all__ = ["blind_spots", "measuring_cost", "not_measured"]

#: Heat builds up over minutes: a GPU that throttles does so after roughly this long under load.
THERMAL_S = 600.0


def not_measured(record: Record) -> tuple[Missing, ...]:
    """All of it, the run's own gaps first."""
    gaps = _gaps(record)
    gaps += [
        Missing(mark(s.state), f"step {visible(s.id, 80)}", visible(s.reason or "no reason was recorded"))
        for s in record.steps
        if s.state != "done"
    ]
    gaps += [
        Missing(mark("skipped"), f"step {visible(p.id, 80)}", "planned, but the run ended before it")
        for p in (record.plan.steps if record.plan else ())
        if p.id not in {s.id for s in record.steps}
    ]
    gaps += [
        Missing(mark(q.status), f"question {visible(q.id, 40)}", visible(q.answer))
        for q in record.questions
        if q.status == "not-measured" and not q.findings
    ]
    return (*gaps, *blind_spots(record))


def _gaps(record: Record) -> list[Missing]:
    """Skips and errors; checks of a step that give the same reason (no driver, no such evidence) share a line."""
    unmeasured = [(i, f) for i, f in enumerate(record.findings) if f.status in (Status.SKIP, Status.ERROR)]
    shared: dict[tuple[object, ...], list[Group]] = {}
    for found in group(unmeasured):
        shared.setdefault((found.first.status, found.first.step, found.where, found.text), []).append(found)
    return [Missing(mark(same[0].first.status), _what(same), same[0].text) for same in shared.values()]


def _what(same: list[Group]) -> str:
    group = same[0]
    check = visible(group.first.check or group.first.id, 120)
    if len(same) > 1:
        check += f" and {len(same) - 1} more checks" if len(same) > 2 else f" and {visible(same[1].first.check, 120)}"
    step = f" in step {visible(group.first.step, 80)}" if group.first.step else ""
    if check == "step" and step:  # the engine's own word for a step that did not run
        check, step = step.removeprefix(" in "), ""
    return f"{check}{step}" + (f" ({group.where})" if group.where else "")


def blind_spots(record: Record) -> tuple[Missing, ...]:
    """What no run of this size, kind and length could have seen."""
    if not record.steps:  # an audit or a triage has findings and no steps
        return () if record.findings else (Missing(None, "everything", "no step ran"),)
    found = []
    sizes = [n for s in record.steps if (n := world_size(s)) is not None]
    if sizes and max(sizes) == 1:
        found.append(Missing(None, "communication between ranks", "only one rank ran; needs at least two"))
    if len(hosts(record)) == 1:
        found.append(Missing(None, "the network between nodes", "one host took part; needs at least two nodes"))
    used, on_cpu = backends(record), record.plan is not None and record.plan.device == "cpu"
    if "nccl" not in used and (used or on_cpu):
        by = ", ".join(sorted(used)) or "CPU ranks"
        found.append(Missing(None, "NCCL", f"ranks talked over {visible(by, 60)}; needs CUDA devices"))
    if on_cpu:
        found.append(Missing(None, "GPU kernels, clocks, memory and ECC", "ranks ran on CPUs; needs CUDA devices"))
    known = {kind for step in record.steps for kind in step.evidence}
    if "training" in known and "compute-costs" not in known:
        why = "no rate of matrix products was measured to hold it against; the step compute of runbook bottleneck does"
        found.append(Missing(None, "MFU", why))
    if not on_cpu and record.seconds is not None and record.seconds < THERMAL_S:
        why = f"the run took {duration(record.seconds)}; heat needs about {duration(THERMAL_S)} under load"
        found.append(Missing(None, "thermal throttling", why))
    return tuple(found)


def measuring_cost(record: Record) -> str:
    """What the timers took of the steps that they timed: by their own count, and against steps without them. Empty for
    a record that trained nothing."""
    tables = [(s.id, t) for s in record.steps if isinstance(t := s.exhibits.get("measuring-cost"), Mapping)]
    if not tables:
        trained = any("training" in s.evidence for s in record.steps)
        return "not measured: no step recorded its timers' calls and its CPU time" if trained else ""
    share, at = max((float(table["cpu_share"]), id) for id, table in tables)
    told = (
        f"timers took at most {share:.2%} of the ranks' CPU time (calls times the cost of one; step {visible(at, 80)})"
    )
    windows = [(id, table["shorter"]) for id, table in tables if table.get("shorter")]
    for id, (low, middle, high) in windows:
        told += f"; without timers steps of {visible(id, 80)} are {middle:.1%} shorter (95 %: {low:.1%} to {high:.1%})"
    needed = "the A/B against steps without timers was not measured (runbook bottleneck, window no-timers)"
    return told if windows else f"{told}; {needed}"
