"""The path that a triage runbook took: its page as a graph, with the edges that were walked."""

from __future__ import annotations

from ddaudit.findings import Status
from ddaudit.record import Record
from ddaudit.report.model import Mark, Node, mark
from ddaudit.report.safe import visible
from ddaudit.runbook.model import Plan, PlannedStep

__all__ = ["walked"]

OUTCOMES = ("pass", "warn", "fail", "error", "skip")
_WORST = ((Status.FAIL, "fail"), (Status.ERROR, "error"), (Status.WARN, "warn"))


def walked(record: Record) -> tuple[Node, ...]:
    """One node for each step of the page, in its order; empty for a sweep, which walks no edges."""
    plan = record.plan
    if plan is None or plan.mode != "triage":
        return ()
    steps = [s for s in plan.steps if not s.always]
    return tuple(_node(record, plan, step, _next(steps, index)) for index, step in enumerate(steps))


def _next(steps: list[PlannedStep], index: int) -> str:
    return steps[index + 1].id if index + 1 < len(steps) else "end"


def _node(record: Record, plan: Plan, step: PlannedStep, following: str) -> Node:
    outcome, shown = _outcome(record, step)
    last = not any(s.id == step.id for s in record.steps[:-1])
    broken = not record.complete and last  # a run that was broken off left its last step by no edge
    targets: dict[str, list[str]] = {}
    for word in OUTCOMES:
        target = getattr(step.on, "passed" if word == "pass" else word)
        targets.setdefault(following if target == "next" else target, []).append(word)
    edges = tuple(
        (", ".join(words), visible(target, 80), outcome in words and not broken) for target, words in targets.items()
    )
    return Node(visible(step.id, 80), visible(step.title, 200), shown, edges)


def _outcome(record: Record, step: PlannedStep) -> tuple[str | None, Mark | None]:
    """The edge's name as the walk chose it (the worst outcome; a pass only where something was measured), its mark."""
    done = next((s for s in record.steps if s.id == step.id), None)
    if done is None:
        return None, None
    statuses = {f.status for f in record.findings if f.step == step.id}
    for status, word in _WORST:
        if status in statuses:
            return word, mark(status)
    if statuses & {Status.PASS, Status.WAIVED}:
        return "pass", mark(Status.PASS)
    return "skip", mark(Status.SKIP)
