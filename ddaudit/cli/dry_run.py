"""``run --dry-run``: the ordered steps, what each uses and leaves behind, and how long all may take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ddaudit.report.numbers import duration
from ddaudit.runbook.model import Plan, PlannedStep

__all__ = ["effects", "lines"]

#: What a probe does to its surroundings besides computing in its own processes.
EFFECTS: dict[str, str] = {
    "collectives": "loads the links between ranks",
    "checkpoint": "reads a checkpoint, executes nothing in it",
    "checkpoint-diff": "reads two checkpoints, executes nothing in them",
    "devices": "reads GPU counters",
    "host": "reads process times",
    "job": "reads the job file",
    "scheduler": "asks the scheduler",
    "triage": "reads logs",
    "watch": "runs your script",
}


def effects(step: PlannedStep) -> str:
    """What the step touches, in words."""
    params: Mapping[str, Any] = step.params
    if step.manual is not None:
        return "asks a person"
    if step.probe == "command":
        words = params.get("argv") or ["?"]
        return f"runs {words[0]} with your rights"
    if step.probe == "train":
        writes = "; writes a checkpoint to scratch/" if params.get("checkpoint") else ""
        return f"trains on the devices{writes}"
    return EFFECTS.get(step.probe or "", "as its pack says")


def lines(plan: Plan) -> Iterator[str]:
    """The plan as a page of text. Minutes are deadlines: the longest that a step may take."""
    total = sum(step.timeout_s for step in plan.steps)
    ranks = max((step.nproc for step in plan.steps), default=0)
    order = "in this order" if plan.mode == "sweep" else "along its edges"
    yield f"{plan.runbook} on {plan.device}, {len(plan.steps)} steps {order}, at most {duration(total)}, {ranks} ranks:"
    for number, step in enumerate(plan.steps, 1):
        what = f"{step.probe or 'manual':<10} {step.nproc} {'rank ' if step.nproc == 1 else 'ranks'}"
        needs = f" after {', '.join(step.needs)}" if step.needs else ""
        when = f" when {step.when}" if step.when else ""
        yield f"{number:>4} {step.id:<20} {what}  at most {duration(step.timeout_s):<6} {effects(step)}{needs}{when}"
    yield "Files go to the run folder alone. Nothing was launched."
