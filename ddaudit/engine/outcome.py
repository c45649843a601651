"""From what became of a step to its findings and its line in the record. Pure, so that a rebuilt run reads the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ddaudit.engine.baselines import Baseline
from ddaudit.engine.exhibits import exhibits
from ddaudit.engine.judge import judge
from ddaudit.engine.relative import settled
from ddaudit.engine.summary import summarise
from ddaudit.engine.waivers import Waivers
from ddaudit.evidence.base import Evidence
from ddaudit.evidence.launch import LaunchFacts
from ddaudit.findings import Finding, Severity, Status, draft
from ddaudit.record import StepRecord
from ddaudit.redact import redact_text, redact_value
from ddaudit.registry import Registry
from ddaudit.runbook import resolve, resolve_text
from ddaudit.runbook.model import PlannedStep

__all__ = [
    "Judged",
    "Outcome",
    "Standards",
    "State",
    "blocks",
    "edge",
    "evidence_kinds",
    "judge_step",
    "prepared",
    "step_record",
]

State = Literal["done", "failed", "skipped", "timed-out", "interrupted"]
LAUNCH_CHECK = "launch.ranks"


@dataclass(frozen=True)
class Outcome:
    """One step as it ended. ``folder`` is where its evidence was read from (a retry or repeat has its own);
    ``damage`` says, by kind, why evidence that is there could not be read."""

    step: PlannedStep
    state: State
    reason: str | None = None
    started: float | None = None
    seconds: float | None = None
    folder: str | None = None
    answer: str | None = None
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    damage: Mapping[str, str] = field(default_factory=dict)

    @property
    def launch(self) -> LaunchFacts | None:
        found = self.evidence.get(LaunchFacts.kind)
        return found if isinstance(found, LaunchFacts) else None


@dataclass(frozen=True)
class Standards:
    """What a run is held against besides its runbook: waivers, and a baseline's numbers for one device type."""

    waivers: Waivers = field(default_factory=Waivers)
    baseline: Baseline | None = None
    device: str = ""


@dataclass(frozen=True)
class Judged:
    """A step's outcome with its findings."""

    outcome: Outcome
    findings: tuple[Finding, ...]
    exhibits: Mapping[str, Any] = field(default_factory=dict)


def prepared(step: PlannedStep, before: Sequence[Judged]) -> PlannedStep:
    """The step with ``$step.metric`` filled in from the steps that ended before it.

    Raises:
        UsageProblem: a parameter needs what no step measured.
    """
    metrics = {j.outcome.step.id: summarise(j.outcome.evidence) for j in before}
    texts = {name: resolve_text(text, metrics) for name in ("remedy", "manual") if (text := getattr(step, name))}
    return step.model_copy(update={"params": resolve(step.params, metrics), **texts})


def evidence_kinds(registry: Registry) -> list[type[Evidence]]:
    """Every kind that a registered probe produces or a check reads, and the launcher's own."""
    kinds: dict[str, type[Evidence]] = {LaunchFacts.kind: LaunchFacts}
    for probe in registry.probes.values():
        kinds.update({kind.kind: kind for kind in probe.produces})
    for check in registry.checks.values():
        kinds.update({need.type.kind: need.type for need in check.needs.values()})
    return list(kinds.values())


def judge_step(
    outcome: Outcome, registry: Registry, before: Sequence[Judged], standards: Standards | None = None
) -> Judged:
    """Judges one step. ``before`` are the steps that ended before it, for checks that compare with one. What
    ``standards`` waive does not stop the steps that build on this one."""
    given = standards or Standards()
    step, skipped = settled(outcome.step, outcome.evidence, given.baseline, given.device)
    told = _findings(replace(outcome, step=step), registry, [j.outcome for j in before])
    found = given.waivers.apply([*told, *skipped])
    redacted = tuple(Finding.model_validate(redact_value(f.model_dump())) for f in found)
    return Judged(outcome, redacted, redact_value(exhibits(outcome.evidence, registry)))


def _findings(outcome: Outcome, registry: Registry, others: Sequence[Outcome]) -> list[Finding]:
    step = outcome.step
    if outcome.state in ("skipped", "interrupted"):
        return [_engine(step, Status.SKIP, f"step.{outcome.state}", outcome.reason or outcome.state)]
    if step.manual is not None:
        return [_manual(step, outcome.answer)]
    found = [_damaged(step, kind, why) for kind, why in outcome.damage.items()]
    if LAUNCH_CHECK in registry.checks and outcome.launch is not None:
        asked = LAUNCH_CHECK in step.checks
        judged = judge(registry.checks[LAUNCH_CHECK], outcome.evidence, step=step)
        found += [f for f in judged if asked or f.status is not Status.PASS]
    if outcome.state != "done":
        found = found or [_engine(step, Status.ERROR, "step.failed", outcome.reason or "the step did not finish")]
        return found + [_unjudged(step, registry, id) for id in step.checks if id != LAUNCH_CHECK]
    reference = _reference(step, others)
    for id in step.checks:
        if id not in registry.checks:
            found.append(_unknown(step, id))
        elif id != LAUNCH_CHECK:
            found += judge(registry.checks[id], outcome.evidence, step=step, reference=reference)
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


def _damaged(step: PlannedStep, kind: str, why: str) -> Finding:
    text = f"the {kind} evidence of this step cannot be read: {why}"
    where = {"file": f"events/{step.id}/"}
    finding = draft(Status.ERROR, "evidence.damaged", text, severity=step.severity, step=step.id, where=where)
    return finding.model_copy(update={"check": "evidence"})


def _unknown(step: PlannedStep, id: str) -> Finding:
    text = f"not judged: check {id} is not loaded; name the pack that has it with --pack"
    finding = draft(Status.ERROR, "check.unknown", text, severity=step.severity, step=step.id)
    return finding.model_copy(update={"check": id})


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


def step_record(judged: Judged) -> StepRecord:
    """The step's part of the record: facts without arrays, and the small numbers tables and pictures show."""
    outcome = judged.outcome
    facts: dict[str, dict[str, Any]] = {}
    for kind, item in outcome.evidence.items():
        facts[kind] = redact_value(item.brief())
    return StepRecord(
        id=outcome.step.id,
        title=outcome.step.title,
        state=outcome.state,
        reason=redact_text(outcome.reason) if outcome.reason else None,
        started=outcome.started,
        seconds=outcome.seconds,
        evidence=facts,
        summary=summarise(outcome.evidence),
        exhibits=judged.exhibits,
    )
