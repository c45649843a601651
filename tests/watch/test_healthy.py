"""Programs that look odd and are right: none of them may be accused of anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddaudit import packs
from ddaudit.engine.judge import judge
from ddaudit.engine.outcome import evidence_kinds
from ddaudit.evidence.store import StepEvidence, load_events
from ddaudit.findings import Finding, Status
from ddaudit.launch import LocalLauncher
from ddaudit.runbook.model import Plan, PlannedStep

PROGRAMS = sorted(p for p in (Path(__file__).parent / "programs").glob("*.py") if p.stem != "common")
LOADED = packs.load(entries=False, environment=False)
CHECKS = LOADED.registry.select(["script.*", "accumulation.cleared", "lr.equal-on-ranks"])


def planned(path: Path) -> PlannedStep:
    """A step that watches one program on two ranks (one for the program that wants no group)."""
    nproc = 1 if path.stem == "alone" else 2
    return PlannedStep(id=path.stem, title=path.stem, source="test", runbook="test", probe="watch",
                       params={"script": str(path)}, nproc=nproc, timeout_s=90.0)  # fmt: skip


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepEvidence]:
    """Evidence of every program, recorded once."""
    run_dir = tmp_path_factory.mktemp("healthy")
    steps = tuple(planned(path) for path in PROGRAMS)
    plan = Plan(run_id="healthy", runbook="test", title="Healthy programs", steps=steps)
    (run_dir / "plan.json").write_text(plan.model_dump_json(by_alias=True))
    kinds = evidence_kinds(LOADED.registry)
    found = {}
    with LocalLauncher(run_dir, torch=True) as launcher:
        for step in steps:
            launcher.run_step(step, run_dir / "plan.json")
            found[step.id] = load_events(run_dir, step.id, kinds)
    return found


def findings(evidence: StepEvidence, name: str) -> list[Finding]:
    step = PlannedStep(id=name, title=name, source="test", runbook="test")
    return [f for spec in CHECKS for f in judge(spec, evidence, step=step)]


@pytest.mark.parametrize("name", [p.stem for p in PROGRAMS])
def test_a_healthy_program_is_not_accused(name: str, watched: dict[str, StepEvidence]):
    said = findings(watched[name], name)
    assert [f"{f.id} {f.text}" for f in said if f.bad or f.status is Status.ERROR] == []


@pytest.mark.parametrize("name", [p.stem for p in PROGRAMS])
def test_a_healthy_program_runs_to_its_end_and_no_hook_breaks(name: str, watched: dict[str, StepEvidence]):
    script = watched[name]["script"]
    assert [dict(r.broken_hooks) for r in script.ranks if r.broken_hooks] == []
    assert [r.notes.get("exception") for r in script.ranks] == [None] * len(script.ranks)
    assert len(script.ranks) == (1 if name == "alone" else 2)
    assert sum(f.status is Status.PASS for f in findings(watched[name], name)) >= 5
