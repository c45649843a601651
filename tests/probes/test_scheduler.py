"""Reading Slurm's account of a job: times that are missing, forecasts, and names that try to be fields."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ddaudit import packs
from ddaudit.context import ProbeContext
from ddaudit.engine.judge import judge
from ddaudit.evidence import EventWriter, JobPlacement, SchedulerFacts, read_streams
from ddaudit.findings import Finding, Status
from ddaudit.probes.scheduler import SchedulerParams, read_job, scheduler
from ddaudit.runbook.model import PlannedStep

SPEC = packs.load(entries=False, environment=False).registry.checks["scheduler.queue"]
STEP = PlannedStep(id="s", title="t", source="book.md:3", runbook="book")
FIELDS = {
    "JobId": "7", "JobName": "train", "JobState": "RUNNING", "Reason": "None", "Restarts": "0",
    "SubmitTime": "2026-03-02T08:00:00", "EligibleTime": "2026-03-02T08:00:10",
    "AccrueTime": "Unknown", "StartTime": "2026-03-02T08:01:10", "EndTime": "2026-03-03T08:00:00",
    "Comment": "none",
}  # fmt: skip


def record(**changes: str) -> str:
    return " ".join(f"{name}={value}" for name, value in {**FIELDS, **changes}.items()) + " \n"


def facts(folder: Path, **params: Any) -> SchedulerFacts:
    with EventWriter(folder / "events" / "node1-0.jsonl") as events:
        context = ProbeContext("s", 0, 1, 0, "node1", "cpu", folder, folder, events, time.monotonic() + 30)
        scheduler(context, SchedulerParams(**params))
    found = SchedulerFacts.assemble(read_streams(folder / "events"))
    assert found is not None
    return found


def ask(found: SchedulerFacts) -> Finding:
    (finding,) = judge(SPEC, {"scheduler": found}, step=STEP)
    return finding


def test_queue_time_is_start_minus_eligible_and_the_hold_before_is_apart() -> None:
    found = read_job(record())
    assert (found["queue_s"], found["held_s"], found["absent"]) == (60.0, 10.0, None)
    assert (found["job_id"], found["state"], found["restarts"]) == ("7", "RUNNING", 0)


@pytest.mark.parametrize("word", ["Unknown", "N/A", "None", "(null)"])
def test_a_time_that_slurm_does_not_have_is_not_measured(word: str) -> None:
    found = read_job(record(StartTime=word))
    assert found["queue_s"] is None and found["held_s"] == 10.0 and found["absent"] == "Slurm has no start time"


def test_the_start_of_a_waiting_job_is_a_forecast() -> None:
    found = read_job(record(JobState="PENDING", Reason="Resources"))
    assert found.get("queue_s") is None and "PENDING, reason Resources" in found["absent"]


def test_a_job_name_that_looks_like_a_field_is_not_believed() -> None:
    found = read_job(record(JobName="a StartTime=2026-03-02T08:00:10"))
    assert found["queue_s"] is None and "no start time" in found["absent"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"StartTime": "yesterday"}, "is not a time"),
        ({"StartTime": "2026-03-02T08:01:10+01:00"}, "is not a time"),
        ({"StartTime": "2026-03-01T00:00:00"}, "lies before"),
    ],
)
def test_times_that_cannot_be_are_not_measured(changes: dict[str, str], why: str) -> None:
    found = read_job(record(**changes))
    assert found["queue_s"] is None and why in found["absent"]


@pytest.mark.parametrize("text", ["", "\n", "slurm_load_jobs error: Invalid job id specified", "JobId="])
def test_what_is_no_record_is_not_measured(text: str) -> None:
    assert read_job(text)["queue_s"] is None


def test_restarts_that_are_no_number_are_left_out() -> None:
    assert read_job(record(Restarts="²"))["restarts"] is None


def test_without_a_scheduler_the_wait_is_zero_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    finding = ask(facts(tmp_path))
    assert (finding.status, finding.measured) == (Status.PASS, 0.0)
    assert "no scheduler" in finding.text and "SLURM_JOB_ID" in finding.text


def test_a_pod_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    finding = ask(facts(tmp_path))
    assert finding.status is Status.SKIP and "PodScheduled" in finding.text


def fake_scontrol(folder: Path, body: str) -> None:
    program = folder / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_slurm_is_asked_about_this_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_scontrol(tmp_path, f'test "$*" = "-o show job 7" && echo "{record().strip()}"')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    found = facts(tmp_path)
    assert (found.scheduler, found.job_id, found.queue_s, found.held_s) == ("slurm", "7", 60.0, 10.0)
    assert ask(found).status is Status.PASS and "held 10 s" in ask(found).text


def test_slurms_refusal_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_scontrol(tmp_path, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    finding = ask(facts(tmp_path, job="99"))
    assert finding.status is Status.SKIP and "Invalid job id" in finding.text


def test_slurm_without_its_program_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = ask(facts(tmp_path, job="99"))
    assert finding.status is Status.SKIP and "not on PATH" in finding.text


def test_a_long_wait_is_told_with_its_limit() -> None:
    found = SchedulerFacts(
        host="n", looked_for="x", **{"scheduler": "slurm", **read_job(record(StartTime="2026-03-02T20:00:10"))}
    )
    finding = ask(found)
    assert (finding.id, finding.measured, finding.limit) == ("scheduler.queue", 12 * 3600, 3600)
    assert finding.question == "bottleneck"


PLACED = {"JobId": "7", "NumNodes": "3", "NodeList": "n[1-3]", "TRES": "cpu=24,node=3,gres/gpu=12"}
TREE = (
    "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2,4]\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3,5-6]\n"
    "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-6] Switches=leaf[1-2]\n"
)
TABLE = (
    "JobID|State|Start|End|ElapsedRaw\n"
    "7|NODE_FAIL|2026-03-02T06:00:00|2026-03-02T06:10:00|600\n"
    "7|PREEMPTED|2026-03-02T07:00:00|2026-03-02T07:30:00|1800\n"
    "7|RUNNING|2026-03-02T08:01:10|Unknown|5\n"
    "8|PREEMPTED|2026-03-02T07:00:00|2026-03-02T07:30:00|9999\n"
)


def placed(folder: Path, **params: Any) -> JobPlacement:
    facts(folder, **params)
    found = JobPlacement.assemble(read_streams(folder / "events"))
    assert found is not None
    return found


def told(found: JobPlacement) -> list[Finding]:
    checks = packs.load(entries=False, environment=False).registry.checks
    names = ("scheduler.placement", "scheduler.restarts")
    return [f for name in names for f in judge(checks[name], {"placement": found}, step=STEP)]


def test_the_nodes_of_a_job_are_counted_by_leaf_switch_against_the_fewest_that_would_do(tmp_path: Path) -> None:
    found = placed(tmp_path, record=record(**PLACED), topology=TREE)
    assert (found.nodes, found.leaves, found.fewest_leaves) == (3, {"leaf1": 2, "leaf2": 1}, 1)
    spread = next(f for f in told(found) if f.id == "scheduler.spread")
    assert (spread.status, spread.measured) == (Status.WARN, 2.0) and "2 on leaf1, 1 on leaf2" in spread.text
    assert spread.remedy is not None and "--switches=1" in spread.remedy.commands[0]


def test_blocks_are_leaves_too_and_a_topology_without_the_nodes_is_not_measured(tmp_path: Path) -> None:
    blocks = "BlockName=b1 BlockIndex=0 Nodes=n[1-4] BlockSize=4\n"
    assert placed(tmp_path / "a", record=record(**PLACED), topology=blocks).leaves == {"b1": 3}
    other = placed(tmp_path / "b", record=record(**PLACED), topology=TREE.replace("n[3,5-6]", "n[5-6]"))
    assert other.leaves == {} and "does not hold all nodes" in (other.leaves_absent or "")


def test_without_a_topology_the_names_of_the_nodes_are_told_and_nothing_is_claimed(tmp_path: Path) -> None:
    found = placed(tmp_path, record=record(**{**PLACED, "NodeList": "r1-n[1-2],r2-n7"}))
    (finding,) = (f for f in told(found) if f.check == "scheduler.placement")
    assert finding.status is Status.SKIP and "2 nodes named r1-n*, 1 nodes named r2-n*" in finding.text


def test_earlier_tries_are_told_with_how_they_ended_and_what_they_took(tmp_path: Path) -> None:
    found = placed(tmp_path, record=record(**PLACED, Restarts="2"), history=TABLE)
    assert [(t.state, t.seconds) for t in found.tries or ()] == [("NODE_FAIL", 600.0), ("PREEMPTED", 1800.0)]
    assert (found.lost_s, found.requeued_s) == (2400.0, 50 * 60.0 + 31 * 60 + 10)
    text = next(f.text for f in told(found) if "earlier tries" in f.text)
    assert "2400 s (8.00 GPU hours): NODE_FAIL after 600 s, PREEMPTED after 1800 s" in text


def test_restarts_without_accounting_are_counted_and_their_cost_is_not_measured(tmp_path: Path) -> None:
    found = placed(tmp_path, record=record(**PLACED, Restarts="2"))
    assert found.tries is None
    assert any(f.status is Status.SKIP and "2 restart(s), their cost not measured" in f.text
               for f in told(found))  # fmt: skip


def test_idle_devices_are_counted_from_the_jobs_start_to_the_runs(tmp_path: Path) -> None:
    found = placed(tmp_path, record=record(**PLACED), began="2026-03-02T08:16:10")
    idle = next(f for f in told(found) if f.id == "scheduler.idle-devices")
    assert (idle.status, idle.measured) == (Status.WARN, 900.0) and "3.00 GPU hours" in idle.text


def test_slurm_is_asked_for_its_topology_and_about_restarted_jobs_for_accounting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, tree, table = tmp_path / "job", tmp_path / "tree", tmp_path / "table"
    job.write_text(record(**PLACED, Restarts="2"))
    tree.write_text(TREE)
    table.write_text(TABLE)
    fake_scontrol(tmp_path, f'case "$*" in *topology) cat {tree};; *) cat {job};; esac')
    sacct = tmp_path / "bin" / "sacct"
    sacct.write_text(f"#!/bin/sh\ncat {table}\n")
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    found = placed(tmp_path, job="7")
    assert found.leaves == {"leaf1": 2, "leaf2": 1} and found.lost_s == 2400.0


@pytest.mark.parametrize(
    "text", ["", "|", "JobID|State\n7|x", TABLE.replace("2026", "20x6"), "Slurm accounting is off"]
)
def test_a_table_that_is_none_has_no_tries(text: str, tmp_path: Path) -> None:
    assert placed(tmp_path, record=record(**PLACED, Restarts="2"), history=text).tries is None
