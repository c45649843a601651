"""The planned job of a run: ``--job FILE`` is judged as a step of the plan, ahead of all that touch a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddaudit.errors import UsageProblem
from ddaudit.evidence.job import JobPlan
from ddaudit.job import load_job
from ddaudit.packs import Packs
from ddaudit.runbook import resolve
from ddaudit.runbook.model import Edges, Plan, PlannedStep

__all__ = ["plan_job"]

PROBE = STEP = "job"
PROSE = """
What the job file says, by arithmetic alone: no device is touched. A red finding names the line of the file that must
change; `docs/job.md` explains every key. The steps below train a reference model, not this job.
"""


def plan_job(plan: Plan, packs: Packs, file: str | None, overrides: Mapping[str, str]) -> Plan:
    """The plan with its job file read and found valid.

    A runbook that judges a job file itself (a step with the probe ``job``) is told to use ``file``; to any other one a
    first step is added. ``overrides`` (``layout.tp`` -> text) win over the file.

    Raises:
        UsageProblem: the file is not a job file, the runbook has a step of that id, or nothing reads ``overrides``.
    """
    readers = [step for step in plan.steps if step.probe == PROBE]
    if file is not None and not readers:
        plan = _with_step(plan, packs)
        readers = [plan.steps[0]]
    if overrides and not readers:
        raise UsageProblem("--job-set, and the run has no job file to change", fix="add --job FILE")
    ready = {step.id: _settled(step, file, overrides) for step in readers}
    return plan.model_copy(update={"steps": tuple(ready.get(step.id, step) for step in plan.steps)})


def _with_step(plan: Plan, packs: Packs) -> Plan:
    """The plan with a first step ``job`` that asks every check that reads job files."""
    if any(step.id == STEP for step in plan.steps):
        what = f"runbook {plan.runbook!r} has a step {STEP!r} of its own, which is where --job would go"
        raise UsageProblem(what, fix="rename that step")
    checks = tuple(
        spec.id
        for spec in packs.registry.checks.values()
        if any(need.type.kind == JobPlan.kind and not need.optional for need in spec.needs.values())
    )
    onward = plan.start or "next"
    step = PlannedStep(
        id=STEP,
        title="Is the planned job sound?",
        prose=PROSE.strip(),
        source="--job",
        runbook=plan.runbook,
        probe=PROBE,
        checks=checks,
        timeout_s=60.0,
        on=Edges(**{"pass": onward, "warn": onward, "fail": onward, "error": onward, "skip": onward}),
    )
    start = STEP if plan.mode == "triage" else plan.start
    return plan.model_copy(update={"steps": (step, *plan.steps), "start": start})


def _settled(step: PlannedStep, file: str | None, overrides: Mapping[str, str]) -> PlannedStep:
    """The step with an absolute path (ranks work elsewhere) and all overrides, once the file has proved valid."""
    params: dict[str, Any] = {**step.params, **({"file": _plain(file)} if file is not None else {})}
    params["set"] = {**params.get("set", {}), **{key: _plain(value) for key, value in overrides.items()}}
    given = resolve(params, {})
    load_job(given["file"], given["set"])
    return step.model_copy(update={"params": {**params, "file": _plain(str(Path(given["file"]).absolute()))}})


def _plain(text: str) -> str:
    """Keeps a ``$`` from being read as a reference when the step starts."""
    return text.replace("$", "$$")
