"""From what became of a step to its findings and its line in the record. Pure, so that a rebuilt run reads the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ddaudit.engine.judge import judge
from ddaudit.engine.summary import summarise
from ddaudit.evidence.base import Evidence
from ddaudit.evidence.launch import LaunchFacts
from ddaudit.findings import Finding, Severity, Status, draft
from ddaudit.record import StepRecord
from ddaudit.registry import Registry
from ddaudit.runbook.model import PlannedStep

__all__ = ["Outcome", "State", "blocks", "edge", "evidence_kinds", "step_findings", "step_record"]

State = Literal["done", "failed", "skipped", "timed-out", "interrupted"]
LAUNCH_CHECK = "launch.ranks"


@dataclass(frozen=True)
class Outcome:
    """One step as it ended. ``folder`` is where its evidence was read from (a retry or repeat has its own)."""

    step: PlannedStep
    state: State
    reason: str | None = None
    started: float | None = None
    seconds: float | None = None
    folder: str | None = None
    answer: str | None = None
    evidence: Mapping[str, Evidence] = field(default_factory=dict)

    @property
    def launch(self) -> LaunchFacts | None:
        found = self.evidence.get(LaunchFacts.kind)
        return found if isinstance(found, LaunchFacts) else None


def evidence_kinds(registry: Registry) -> list[type[Evidence]]:
    """Every kind that a registered probe produces or a check reads, and the launcher's own."""
    kinds: dict[str, type[Evidence]] = {LaunchFacts.kind: LaunchFacts}
    for probe in registry.probes.values():
        kinds.update({kind.kind: kind for kind in probe.produces})
    for check in registry.checks.values():
        kinds.update({need.type.kind: need.type for need in check.needs.values()})
    return list(kinds.values())


def step_findings(outcome: Outcome, registry: Registry, others: Sequence[Outcome]) -> list[Finding]:
    """Judges one step. ``others`` are the steps that ended before it, for checks that compare with one."""
    step = outcome.step
    if outcome.state in ("skipped", "interrupted"):
        return [_engine(step, Status.SKIP, f"step.{outcome.state}", outcome.reason or outcome.state)]
    if step.manual is not None:
        return [_manual(step, outcome.answer)]
    found: list[Finding] = []
    if LAUNCH_CHECK in registry.checks and outcome.launch is not None:
        asked = LAUNCH_CHECK in step.checks
        judged = judge(registry.checks[LAUNCH_CHECK], outcome.evidence, step=step)
        found += [f for f in judged if asked or f.status is not Status.PASS]
    if outcome.state != "done":
        found = found or [_engine(step, Status.ERROR, "step.failed", outcome.reason or "the step did not finish")]
        return found + [_unjudged(step, registry, id) for id in step.checks if id != LAUNCH_CHECK]
    reference = _reference(step, others)
    for spec in registry.select(step.checks) if step.checks else []:
        if spec.id != LAUNCH_CHECK:
            found += judge(spec, outcome.evidence, step=step, reference=reference)
    return found


def _reference(step: PlannedStep, others: Sequence[Outcome]) -> dict[str, Evidence]:
    """Evidence to compare with: per kind, that of the first step in ``needs`` which recorded it."""
    merged: dict[str, Evidence] = {}
    for need in reversed(step.needs):
        for other in others:
            if other.step.id == need:
                merged.update(other.evidence)
    return merged


def _engine(step: PlannedStep, status: Status, id: str, text: str) -> Finding:
    finding = draft(status, id, text, severity=step.severity, step=step.id)
    return finding.model_copy(update={"check": "step"})


def _unjudged(step: PlannedStep, registry: Registry, id: str) -> Finding:
    spec = registry.checks.get(id)
    question = spec.question if spec else None
    text = "not judged: the step that records its evidence did not finish"
    finding = draft(Status.SKIP, id, text, severity=step.severity, step=step.id, question=question)
    return finding.model_copy(update={"check": id})


def _manual(step: PlannedStep, answer: str | None) -> Finding:
    if answer is None:
        return _engine(step, Status.SKIP, "step.manual", f"asks a person, and nobody answered: {step.manual}")
    status = {"pass": Status.PASS, "warn": Status.WARN, "fail": Status.FAIL}.get(answer, Status.SKIP)
    return _engine(step, status, "step.manual", f"{step.manual} - answered {answer!r}")


def blocks(outcome: Outcome, findings: Sequence[Finding]) -> str | None:
    """Why dependants of this step must not run, or None when they may."""
    if outcome.state != "done":
        return f"{outcome.step.id} {outcome.state}"
    bad = [f for f in findings if f.status is Status.FAIL and f.severity.rank >= Severity.MAJOR.rank]
    return f"{outcome.step.id} has {bad[0].id} FAIL" if bad else None


def edge(step: PlannedStep, findings: Sequence[Finding]) -> str:
    """Where a triage walk goes next: the target of the worst outcome's edge (FAIL, then ERROR, WARN, SKIP, PASS)."""
    order = (Status.FAIL, Status.ERROR, Status.WARN)
    worst = next((s for s in order if any(f.status is s for f in findings)), None)
    if worst is None:
        measured = any(f.status in (Status.PASS, Status.WAIVED) for f in findings)
        return step.on.passed if measured else step.on.skip
    return {Status.FAIL: step.on.fail, Status.ERROR: step.on.error, Status.WARN: step.on.warn}[worst]


def step_record(outcome: Outcome) -> StepRecord:
    """The step's part of the record: facts without arrays, and the small numbers tables show."""
    facts: dict[str, dict[str, Any]] = {}
    for kind, item in outcome.evidence.items():
        facts[kind] = item.dump()[0]
    return StepRecord(
        id=outcome.step.id,
        title=outcome.step.title,
        state=outcome.state,
        reason=outcome.reason,
        started=outcome.started,
        seconds=outcome.seconds,
        evidence=facts,
        summary=summarise(outcome.evidence),
    )
