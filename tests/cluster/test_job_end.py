"""What ended a job and what it waited for, from what Slurm says of it: no scheduler runs here."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ddaudit.cli.submit import command, warn_s
from ddaudit.engine import ending
from ddaudit.engine.ending import job_findings, settle
from ddaudit.engine.journal import read_journal
from ddaudit.errors import UsageProblem
from ddaudit.evidence.jobend import JobEnd
from ddaudit.findings import Status
from ddaudit.launch import slurm
from ddaudit.probes._placement import epoch

RECORD = (
    "JobId=7 JobName=x JobState={state} Reason={reason} Restarts={restarts} ExitCode={code} TimeLimit=00:02:00"
    " SubmitTime=2026-03-02T08:00:00 EligibleTime=2026-03-02T08:00:{eligible} StartTime=2026-03-02T08:00:20"
    " EndTime=2026-03-02T08:0{end} Partition=p NodeList=n[1-2]"
)


def record(state: str, reason: str = "None", code: str = "0:0", *, eligible: str = "00", **more: Any) -> str:
    return RECORD.format(
        state=state, reason=reason, code=code, eligible=eligible, **{"restarts": 0, "end": "2:20", **more}
    )


def end(state: str, **told: Any) -> JobEnd:
    return JobEnd(**{"job": "7", "state": state, "queue_s": 3.0, "held_s": 0.0, "nodes": "n[1-2]", **told})


@pytest.mark.parametrize(
    ("job", "ended_by"),
    [
        (end("COMPLETED", exit_code=0, left_s=1.0), None),
        (end("FAILED", exit_code=1, left_s=1.0), None),
        (end("FAILED", exit_code=143, left_s=20.0), "TIMEOUT"),
        (end("FAILED", exit_code=143, left_s=600.0), None),
        (end("FAILED", exit_code=143), None),
        (end("FAILED", signal=15, left_s=20.0), "TIMEOUT"),
        (end("RUNNING", signal=15, left_s=55.0), "TIMEOUT"),
        (end("RUNNING", signal=15, left_s=5_000.0), None),
        (end("COMPLETING", signal=15), None),
        (end("COMPLETING", reason="TimeLimit", signal=15), "TIMEOUT"),
        (end("TIMEOUT", reason="TimeLimit", exit_code=143), "TIMEOUT"),
        (end("FAILED", exit_code=143, left_s=20.0, preempted=True), "PREEMPTED"),
        (end("RUNNING", signal=15, left_s=20.0, preempted=True), "PREEMPTED"),
        (end("FAILED", exit_code=1, preempted=True), None),
        (end("CANCELLED", exit_code=143, left_s=20.0), "CANCELLED"),
        (end("NODE_FAIL"), "NODE_FAIL"),
    ],
)
def test_a_job_that_was_warned_of_its_limit_ended_by_it_and_a_failed_script_by_itself(
    job: JobEnd, ended_by: str | None
):
    assert job.ended_by == ended_by


@pytest.mark.parametrize(
    ("state", "id"),
    [
        ("TIMEOUT", "job.time-limit"),
        ("PREEMPTED", "job.preempted"),
        ("CANCELLED", "job.cancelled"),
        ("NODE_FAIL", "job.node-failed"),
    ],
)
def test_an_end_that_is_not_the_runs_own_is_named_and_never_a_pass(state: str, id: str):
    findings, verdict, code = job_findings(end(state), None)
    assert [(f.status, f.id) for f in findings] == [(Status.PASS, "job.queue"), (Status.ERROR, id)]
    assert (verdict, code) == ("INCONCLUSIVE", 3)
    assert "n[1-2]" in findings[1].text


def test_a_job_that_failed_by_itself_and_left_no_run_says_so():
    findings, _, code = job_findings(end("FAILED", exit_code=143, left_s=9_000.0), None)
    assert findings[-1].id == "job.no-run" and code == 3


def test_a_hold_a_dependency_and_a_begin_time_are_told_apart_from_each_other_and_from_the_queue():
    waits = {"JobHeldUser": 2.0, "Dependency": 6.0, "BeginTime": 1.0, "Resources": 5.0, "Priority": 1.0}
    job = end("COMPLETED", queue_s=6.0, held_s=18.0, waits=waits)
    told = {f.id: f.measured for f in job_findings(job, None)[0]}
    assert told["job.queue"] == 6.0
    assert (told["job.hold"], told["job.dependency"], told["job.begin"]) == (4.0, 12.0, 2.0)
    assert "(Resources)" in job_findings(job, None)[0][0].text


def test_what_nobody_watched_is_not_guessed():
    job = end("COMPLETED", queue_s=6.0, held_s=18.0)
    assert job.kept_back_s == {"unknown": 18.0} and job.queued_for is None


def test_a_followed_jobs_waits_are_counted_by_reason_and_its_limit_is_remembered(monkeypatch: pytest.MonkeyPatch):
    """Slurm forgets a limit that was moved as soon as the job has ended, and why it waited as soon as it runs."""
    clock = itertools.count(0.0, 2.0)
    told = iter(
        [
            record("PENDING"),
            record("PENDING", "Dependency"),
            record("PENDING", "Resources"),
            record("RUNNING", end="1:20"),
            record("FAILED", "NonZeroExitCode", "143:0", eligible="12", end="1:05"),
        ]
    )
    monkeypatch.setattr(slurm, "_ask", lambda argv, *more, **named: next(told) if argv[0] == "scontrol" else "")
    monkeypatch.setattr(slurm.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: None)
    looks: list[slurm.Look] = []
    found = slurm.follow("7", looks.append)
    assert set(found.waits) == {"Dependency", "Resources"} and found.waits["Dependency"] > found.waits["Resources"]
    assert (found.held_s, found.queue_s, found.left_s) == (12.0, 8.0, 15.0)
    assert found.ended_by == "TIMEOUT" and str(looks[0]) == "waiting (not looked at yet)"


def test_waits_of_an_earlier_try_do_not_count_for_the_last(monkeypatch: pytest.MonkeyPatch):
    told = iter(
        [
            record("PENDING", "Resources"),
            record("RUNNING"),
            record("PENDING", "BeginTime", restarts=1),
            record("RUNNING", restarts=1),
            record("COMPLETED", restarts=1),
        ]
    )
    monkeypatch.setattr(slurm, "_ask", lambda argv, *more, **named: next(told) if argv[0] == "scontrol" else "")
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: None)
    assert set(slurm.follow("7", lambda look: None).waits) == {"BeginTime"}


def run_folder(root: Path, *events: dict[str, Any]) -> Path:
    """A run that never came to its end, of job 7."""
    head = {"event": "run", "t": 1.0, "command": "run", "created": 1.0, "facts": {"environment": {"SLURM_JOB_ID": "7"}}}
    (root / "events").mkdir(parents=True)
    lines = "".join(json.dumps(event) + "\n" for event in (head, *events))
    (root / "events" / "run.jsonl").write_text(lines)
    return root


def test_a_later_report_asks_slurm_what_became_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, float]] = []

    def past(job: str, at: float) -> JobEnd:
        asked.append((job, at))
        return end("NODE_FAIL")

    monkeypatch.setattr(ending.slurm, "past", past)
    run = run_folder(tmp_path / "r", {"event": "step", "t": 9.0, "id": "a", "state": "done"})
    settle(run)
    settle(run)
    job = read_journal(run).job
    assert job is not None and job.ended_by == "NODE_FAIL"
    assert asked == [("7", 9.0)], "what is known is not asked again"


def test_a_run_that_ended_by_itself_is_not_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ending.slurm, "past", lambda job, at: end("NODE_FAIL"))
    run = run_folder(tmp_path / "r", {"event": "end", "t": 2.0, "seconds": 1.0, "signal": None})
    settle(run)
    assert read_journal(run).job is None


def test_a_job_of_the_same_number_at_another_time_is_another_job(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slurm, "_ask", lambda argv, *more, **named: record("TIMEOUT", "TimeLimit"))
    ended = epoch("2026-03-02T08:02:20")
    assert ended is not None
    assert slurm.past("7", 0.0) is None and slurm.past("7", ended + 9_999) is None
    found = slurm.past("7", ended - 60)
    assert found is not None and found.ended_by == "TIMEOUT"


@pytest.mark.parametrize(
    ("moment", "preempted"), [("None", False), ("2026-03-02T08:00:10", False), ("2026-03-02T08:01:00", True)]
)
def test_a_job_that_was_given_grace_to_make_room_was_preempted_and_an_earlier_try_of_it_does_not_count(
    moment: str, preempted: bool, monkeypatch: pytest.MonkeyPatch
):
    told = (
        record("FAILED", "NonZeroExitCode", "143:0") + f" PreemptEligibleTime=2026-03-02T08:00:20 PreemptTime={moment}"
    )
    monkeypatch.setattr(slurm, "_ask", lambda argv, *more, **named: told)
    found = slurm.past("7", epoch("2026-03-02T08:02:00") or 0.0)
    assert found is not None and (found.ended_by == "PREEMPTED") is preempted


def test_what_was_said_of_an_earlier_try_does_not_hold_once_the_run_goes_on(tmp_path: Path):
    told = {"event": "job", "t": 2.0, **end("TIMEOUT").model_dump(mode="json")}
    assert read_journal(run_folder(tmp_path / "a", told)).job == end("TIMEOUT")
    assert read_journal(run_folder(tmp_path / "b", told, {"event": "resume", "t": 3.0})).job is None


@pytest.mark.parametrize("option", ["--array=1-4", "-a 1-4", "-a1-4", "hetjob"])
def test_one_of_several_jobs_is_not_taken_for_all(option: str):
    done = CliRunner().invoke(command, ["slurm", "smoke", "--sbatch", option, "--submit", "--wait"])
    assert isinstance(done.exception, UsageProblem) and "follows one job" in str(done.exception)


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [(None, 60), ("1", 6), ("30:00", 60), ("5:00", 30), ("0:20", 5), ("2-0", 60), ("1-12:30", 60), ("tomorrow", 60)],
)
def test_a_short_job_is_not_warned_as_soon_as_it_begins(limit: str | None, seconds: int):
    assert warn_s(limit) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("2-12", 216_000),
        ("365-00:00:00", 31_536_000),
        ("UNLIMITED", None),
    ],
)
def test_slurms_forms_of_a_time_limit_are_read(text: str, seconds: int | None):
    assert slurm.limit_seconds(text) == seconds
