"""``--job``: the planned job is a step ahead of all others, and a mistake in its file launches nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddaudit import packs
from ddaudit.engine.jobs import plan_job
from ddaudit.errors import UsageProblem
from ddaudit.job import EXAMPLE
from ddaudit.runbook.model import Plan, PlannedStep
from tests.conftest import ddaudit

LOADED = packs.load(entries=False, environment=False)


def step(id: str, **more: Any) -> PlannedStep:
    return PlannedStep(id=id, title=id, source="page.md:1", runbook="page", **{"probe": "command", **more})


def plan(*steps: PlannedStep, **more: Any) -> Plan:
    return Plan(run_id="r", runbook="page", title="page", steps=steps, **more)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(EXAMPLE)
    return path


def test_a_plan_without_a_job_file_stays_as_it_is():
    before = plan(step("a"), step("b"))
    assert plan_job(before, LOADED, None, {}) == before


def test_the_job_comes_first_and_asks_every_check_that_reads_job_files(file: Path):
    first, *rest = plan_job(plan(step("a"), step("b")), LOADED, str(file), {}).steps
    assert (first.id, first.probe, first.nproc) == ("job", "job", 1)
    assert {"job.batch", "job.goal", "lr.matches-batch", "lr.warmup-matches-batch"} <= set(first.checks)
    assert "lr.ticks" not in first.checks and [s.id for s in rest] == ["a", "b"]


def test_a_triage_walks_from_the_job_to_where_it_was_to_start(file: Path):
    planned = plan_job(plan(step("a"), step("b"), mode="triage", start="b"), LOADED, str(file), {})
    assert planned.start == "job"
    assert {target for _, target in planned.steps[0].on} == {"b"}


def test_a_runbook_with_a_step_of_its_own_is_told_the_file(file: Path):
    page = plan(step("own", probe="job", params={"file": "other.toml", "set": {"layout.tp": 2}}), step("b"))
    own, _ = plan_job(page, LOADED, str(file), {"lr": "1e-4"}).steps
    assert own.id == "own" and own.params["file"] == str(file)
    assert own.params["set"] == {"layout.tp": 2, "lr": "1e-4"}


def test_a_dollar_in_a_path_is_no_reference(tmp_path: Path):
    path = tmp_path / "$job.toml"
    path.write_text(EXAMPLE)
    assert plan_job(plan(step("a")), LOADED, str(path), {}).steps[0].params["file"].endswith("/$$job.toml")


def test_a_step_of_the_same_name_and_overrides_of_nothing_are_refused(file: Path):
    with pytest.raises(UsageProblem, match="a step 'job' of its own"):
        plan_job(plan(step("job")), LOADED, str(file), {})
    with pytest.raises(UsageProblem, match="no job file"):
        plan_job(plan(step("a")), LOADED, None, {"lr": "1"})


def shown(*argv: str, cwd: Path) -> tuple[int, dict[str, Any]]:
    done = ddaudit("run", *argv, "--json", "--no-progress", cwd=cwd)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr = -1", "job.toml:1: lr is -1"),
        ("lr = 1\nlr = 2", "job.toml:2: lr is set twice"),
        ("[layout]\ndp = 99999999999999", "job.toml:2: layout.dp is"),
        ("seq_length = 1", "did you mean 'seq_len'?"),
    ],
)
def test_a_wrong_job_file_ends_in_one_line_and_starts_nothing(text: str, words: str, tmp_path: Path):
    (tmp_path / "job.toml").write_text(text)
    done = ddaudit("run", "smoke", "--job", "job.toml", "--out", "runs", cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "runs").exists()


def test_a_dry_run_shows_the_job_ahead_of_the_runbook(file: Path):
    code, found = shown("smoke", "--job", "job.toml", "--dry-run", cwd=file.parent)
    assert code == 0 and [s["id"] for s in found["planned"]][:1] == ["job"]
    assert len(found["planned"]) > 1


def test_questions_two_to_four_are_answered_from_the_job(file: Path):
    code, found = shown("job", "--out", "runs", cwd=file.parent)
    answers = {q["id"]: (q["status"], q["answer"]) for q in found["questions"]}
    assert code == 0 and {answers[id][0] for id in ("batch", "lr", "accumulation")} == {"PASS"}
    assert "8 * 8 * 4 = 256 samples" in answers["batch"][1] and "square-root rule" in answers["lr"][1]
    assert answers["loss"][0] == answers["sync"][0] == "not-measured"


def test_a_job_without_a_baseline_leaves_the_rate_not_measured(file: Path):
    file.write_text(EXAMPLE.partition("[baseline]")[0])
    code, found = shown("job", "--out", "runs", cwd=file.parent)
    (rate,) = [q for q in found["questions"] if q["id"] == "lr"]
    assert code == 0 and rate["status"] == "not-measured" and "needs a known-good baseline" in rate["answer"]


def test_an_override_turns_the_job_red_and_the_finding_into_the_answer(file: Path):
    code, found = shown("job", "--job-set", "lr=3e-4", "--job-set", "global_batch=99", "--out", "runs", cwd=file.parent)
    assert code == 1 and {f["id"] for f in found["findings"] if f["status"] in ("WARN", "FAIL")} == {
        "lr.not-matched-to-batch",
        "batch.effective-mismatch",
    }
    assert {q["id"]: q["status"] for q in found["questions"]}["lr"] == "WARN"


def test_new_writes_the_documented_example_once(tmp_path: Path):
    done = ddaudit("new", "job", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "job.toml").read_text() == EXAMPLE
    assert "ddaudit run --job job.toml" in done.stderr
    assert ddaudit("new", "job", cwd=tmp_path).returncode == 2
