"""Proof that checks can fail: every plant is run for real, once with its fault and once without.

Collecting (slow, on ranks) and judging (pure) are apart, so that a test can judge the same evidence with a broken
check and see the table turn red.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddaudit.engine.judge import judge
from ddaudit.engine.outcome import evidence_kinds
from ddaudit.engine.summary import summarise
from ddaudit.errors import Problem
from ddaudit.evidence.store import StepEvidence, load_events
from ddaudit.findings import Finding, Status
from ddaudit.jsonio import dumps
from ddaudit.launch import LocalLauncher
from ddaudit.packs import Packs
from ddaudit.plants import Plant
from ddaudit.record import write_atomically
from ddaudit.registry import CheckSpec, Registry
from ddaudit.runbook import resolve
from ddaudit.runbook.model import Plan, PlannedStep

__all__ = ["Collected", "Row", "collect", "rows"]

STEP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Row:
    """One line of the self-test table. ``ok``: red where the fault was planted, and quiet on the twin."""

    check: str
    plant: str
    type: str
    ranks: int
    red: Mapping[str, Any]
    green: Mapping[str, Any]
    limit: Any
    unit: str | None
    ok: bool
    why: str

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class Collected:
    """Evidence by run key, with the reason where a run gave none."""

    evidence: dict[str, StepEvidence] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Run:
    """One run that plants share: the twin of many plants is the same healthy training."""

    probe: str
    ranks: int
    params: Mapping[str, Any]
    build: Callable[[Path, bool], Mapping[str, Any]] | None = None
    planted: bool = False
    reference: str | None = None
    """Key of the run that ``$reference.metric`` in the parameters is measured by."""

    @property
    def key(self) -> str:
        builder = f"{self.build.__module__}.{self.build.__qualname__}" if self.build else ""
        given = [self.probe, self.ranks, dict(self.params), builder, self.planted if self.build else None]
        text = dumps([*given, self.reference] if "$reference." in dumps(given) else given)
        return "s" + hashlib.sha256(text.encode()).hexdigest()[:12]


def _red(plant: Plant) -> _Run:
    return _Run(plant.probe, plant.ranks, {**plant.params, **plant.planted}, plant.build, True, _reference_key(plant))


def _green(plant: Plant) -> _Run:
    return _Run(plant.probe, plant.ranks, dict(plant.params), plant.build, False, _reference_key(plant))


def _reference(plant: Plant) -> _Run | None:
    return None if plant.reference is None else _Run(plant.probe, plant.reference_ranks, dict(plant.reference))


def _reference_key(plant: Plant) -> str | None:
    reference = _reference(plant)
    return None if reference is None else reference.key


def collect(
    packs: Packs,
    checks: Sequence[CheckSpec],
    run_dir: Path,
    *,
    on_step: Callable[[int, int, str], None] = lambda *_: None,
) -> Collected:
    """Runs every distinct plant, twin and reference of ``checks`` once, in ``run_dir``."""
    wanted: dict[str, _Run] = {}
    for plant in (p for spec in checks for p in spec.plants if not p.not_applicable):
        for run in (_reference(plant), _green(plant), _red(plant)):
            if run is not None:
                wanted.setdefault(run.key, run)
    steps = {key: _step(key, run, run_dir) for key, run in wanted.items()}
    plan = Plan(
        run_id=run_dir.name,
        runbook="selftest",
        title="Self-test",
        packs=tuple(packs.extra),
        steps=tuple(steps.values()),
    )
    write_atomically(run_dir / "plan.json", dumps(plan.model_dump(mode="json", by_alias=True), indent=1))
    collected = Collected()
    kinds = evidence_kinds(packs.registry)
    torch = any(packs.registry.probe(run.probe).where == "ranks" for run in wanted.values())
    with LocalLauncher(run_dir, torch=torch) as launcher:
        for number, (key, step) in enumerate(steps.items()):
            on_step(number, len(steps), f"{step.probe} {dict(step.params)}")
            try:
                measured = summarise(collected.evidence.get(wanted[key].reference or "", {}))
                ready = step.model_copy(update={"params": resolve(step.params, {"reference": measured})})
                facts = launcher.run_step(ready, run_dir / "plan.json", folder=key)
                collected.evidence[key] = load_events(run_dir, key, kinds)
                collected.seconds[key] = facts.seconds
            except Problem as problem:
                collected.problems[key] = str(problem)
    return collected


def _step(key: str, run: _Run, run_dir: Path) -> PlannedStep:
    params = dict(run.params)
    if run.build is not None:
        folder = run_dir / "plants" / key
        folder.mkdir(parents=True, exist_ok=True)
        params |= run.build(folder, run.planted)
    return PlannedStep(
        id=key,
        title=run.probe,
        source="selftest",
        runbook="selftest",
        probe=run.probe,
        params=params,
        nproc=run.ranks,
        timeout_s=STEP_TIMEOUT_S,
    )


def rows(checks: Sequence[CheckSpec], collected: Collected) -> list[Row]:
    """Judges the collected evidence: one row per check and plant, and one that fails for a check without a plant."""
    table = []
    for spec in checks:
        if not spec.plants:
            table.append(Row(spec.id, "none", "", 0, {}, {}, None, None, False, "the check ships no plant"))
        table += [_row(spec, plant, collected) for plant in spec.plants]
    return table


def _row(spec: CheckSpec, plant: Plant, collected: Collected) -> Row:
    if plant.not_applicable:
        return Row(spec.id, plant.name, plant.types, plant.ranks, {}, {}, None, None, True, plant.not_applicable)
    red, green = _judge(spec, plant, _red(plant), collected), _judge(spec, plant, _green(plant), collected)
    hit = next((f for f in red if f.bad and f.id in plant.expected), None)
    alarms = [f for f in green if f.bad or f.status is Status.ERROR]
    passed = next((f for f in green if f.status is Status.PASS), None)
    why = "ok"
    if hit is None:
        why = f"the planted fault gave {_words(red)}; expected {' or '.join(plant.expected)}"
    elif alarms or passed is None:
        why = f"the healthy twin gave {_words(green)}"
    shown_red, shown_green = hit or next(iter(red), None), passed or next(iter(alarms or green), None)
    return Row(
        spec.id,
        plant.name,
        plant.types,
        plant.ranks,
        _shown(shown_red),
        _shown(shown_green),
        shown_red.limit if shown_red else None,
        shown_red.unit if shown_red else None,
        why == "ok",
        why,
    )


def _judge(spec: CheckSpec, plant: Plant, run: _Run, collected: Collected) -> list[Finding]:
    reference = _reference(plant)
    step = PlannedStep(
        id=run.key, title=plant.name, source="selftest", runbook="selftest", probe=run.probe, limits=plant.limits
    )
    evidence = collected.evidence.get(run.key, {})
    other = collected.evidence.get(reference.key, {}) if reference else {}
    return judge(spec, evidence, step=step, reference=other)


def _shown(finding: Finding | None) -> dict[str, Any]:
    if finding is None:
        return {}
    return {"id": finding.id, "status": finding.status.value, "measured": finding.measured, "text": finding.text}


def _words(findings: Sequence[Finding]) -> str:
    return ", ".join(f"{f.id} {f.status.value} ({f.text})" for f in findings[:3]) or "nothing"


def registered(registry: Registry, patterns: Sequence[str]) -> list[CheckSpec]:
    """The checks to prove: those matching ``patterns``, or all."""
    return registry.select(patterns) if patterns else list(registry.checks.values())
