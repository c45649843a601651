"""Jobs of a real Slurm of four nodes: submitted, kept waiting, held, cancelled, requeued after a node died."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddaudit.findings import Status
from ddaudit.report.queue import job_findings
from tests.cluster import slurm
from tests.cluster.fleet import environment, words
from tests.cluster.test_fleet import BOOK, PROBES, wait


class Desk:
    """A pack whose probe notes where it ran, and jobs that run it."""

    def __init__(self, root: Path, cluster: slurm.Cluster) -> None:
        self.root, self.cluster = root, cluster
        self.desk, self.out, self.pack = root / "desk", root / "out", root / "pack"
        (self.pack / "probes").mkdir(parents=True)
        (self.pack / "probes" / "roll.py").write_text(PROBES)
        (root / "roll.md").write_text(BOOK)
        self.desk.mkdir()

    def submit(self, *argv: str, roll: bool = True, nodes: int = 2) -> subprocess.Popen[str]:
        """``ddaudit submit slurm --submit --wait``, in the background."""
        book = [str(self.root / "roll.md"), "-P", f"desk={self.desk}", "--pack", str(self.pack)] if roll else []
        flags = ["--nodes", str(nodes), "--device", "cpu", "--out", str(self.out), "--submit", "--wait", "--json"]
        return subprocess.Popen(
            words("submit", "slurm", *book, *argv, *flags),
            env=environment(**self.cluster.env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ran(self, step: str) -> list[str]:
        return sorted(p.name for p in self.desk.glob(f"{step}.*"))


def told(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=150)
    return process.returncode, json.loads(out) if out.strip() else {}, err


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Cluster]:
    if (why := slurm.missing()) is not None:
        pytest.skip(why)
    with slurm.cluster(tmp_path_factory.mktemp("slurm") / "c") as made:
        yield made


@pytest.fixture
def desk(cluster: slurm.Cluster, tmp_path: Path) -> Iterator[Desk]:
    yield Desk(tmp_path, cluster)
    cluster.wait(lambda: cluster.strays() == [])


def seconds(record: str, field: str) -> float:
    """A time of a job's record, since the epoch."""
    return time.mktime(time.strptime(record.partition(f"{field}=")[2][:19], "%Y-%m-%dT%H:%M:%S"))


def pending(cluster: slurm.Cluster) -> list[str]:
    return cluster.ask("squeue", "-h", "-t", "PD", "-o", "%A|%r").split()


def ids(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f["status"], f["id"]) for f in answer["findings"] if f["check"] == "job"]


def test_smoke_passes_on_two_nodes_and_ends_with_its_own_code(desk: Desk):
    code, answer, err = told(desk.submit("smoke", roll=False))
    assert code == 0, err
    assert answer["verdict"] in ("PASS", "WARN") and answer["job"]["state"] == "COMPLETED"
    record = json.loads((Path(answer["run"]) / "record.json").read_text())
    assert record["facts"]["hosts"] == 2 and record["facts"]["placed_by"] == "Slurm"
    assert {p.name for p in (Path(answer["run"]) / "events" / "data").glob("*.jsonl")} >= {
        "n1.node.jsonl",
        "n2.node.jsonl",
    }


def test_waits_are_told_by_their_kind(desk: Desk, cluster: slurm.Cluster):
    """A filler keeps all nodes until the first job has waited for 8 s; one waits for the filler, one is held."""
    (desk.desk / "go").touch()
    stop = desk.root / "stop"
    filler = cluster.submit("-N4", "--exclusive", "--wrap", f"while [ ! -e {stop} ]; do sleep 0.1; done")
    wait(lambda: cluster.state(filler) == "RUNNING")
    began = time.time()
    waiting = desk.submit()
    dependent = desk.submit("--sbatch", f"--dependency=afterok:{filler}")
    held = desk.submit("--sbatch", "--hold")
    wait(lambda: len(cluster.ask("squeue", "-h", "-t", "PD", "-o", "%A").split()) == 3)
    (job,) = [line.partition("|")[0] for line in pending(cluster) if line.endswith("JobHeldUser")]
    first_id = next(line.partition("|")[0] for line in pending(cluster) if line.endswith(("Resources", "Priority")))
    eligible = seconds(cluster.record(first_id), "EligibleTime")
    wait(lambda: time.time() >= eligible + 8)
    stop.touch()
    wait(lambda: cluster.state(filler) == "COMPLETED")
    cluster.run("scontrol", "release", job)
    ended = seconds(cluster.record(filler), "EndTime")
    (code, first, err), (_, second, _), (_, third, _) = told(waiting), told(dependent), told(held)
    assert code == 0, err
    assert "waiting (Resources" in err or "waiting (Priority" in err or "waiting (None" in err
    assert began - 1 <= eligible and ended - eligible >= 7
    # From the filler's end Slurm takes up to a scheduling interval of a second; its times have whole seconds.
    assert first["job"]["queue_s"] == pytest.approx(ended - eligible, abs=1.5 + 1.0)
    assert first["job"]["held_s"] == 0
    assert second["job"]["held_s"] >= 1 and third["job"]["held_s"] >= 1
    assert "held or waited for another job" in next(f["text"] for f in second["findings"] if f["id"] == "job.queue")


def test_a_job_goes_on_with_what_is_left_after_its_node_died(desk: Desk, cluster: slurm.Cluster):
    process = desk.submit()
    wait(lambda: len(desk.ran("second")) == 2)
    before = desk.ran("first")
    job = cluster.ask("squeue", "-h", "-o", "%A").split()[0]
    gone = victim(cluster, job)
    cluster.kill_node(gone)
    wait(lambda: "Restarts=1" in cluster.record(job))
    (desk.desk / "go").touch()
    wait(lambda: cluster.state(job) != "COMPLETING")
    cluster.ask("scontrol", "update", f"jobid={job}", "StartTime=now")
    code, answer, err = told(process)
    # Not before: a node that returns within the second may end the new try with signals meant for the old one.
    cluster.start_node(gone)
    assert code == 0, err
    assert answer["job"]["restarts"] == 1
    assert desk.ran("first") == before, "a finished step ran again"


def run_of(cluster: slurm.Cluster, among: list[str]) -> str:
    """The job that was submitted since, once it runs."""

    def new() -> list[str]:
        return [j for j in cluster.ask("squeue", "-h", "-t", "R", "-o", "%A").split() if j not in among]

    wait(lambda: new() != [])
    return new()[0]


def victim(cluster: slurm.Cluster, job: str) -> int:
    """The number of the last node of a job."""
    nodes = cluster.ask("squeue", "-h", "-j", job, "-o", "%N").strip()
    return int(nodes.strip("n[]").replace(",", "-").split("-")[-1])


def test_ends_that_are_not_the_runs_own_are_named_inconclusive_and_leave_nothing(desk: Desk, cluster: slurm.Cluster):
    """One job is cancelled, and one that is not to be queued again loses its node."""
    cancelled = desk.submit()
    job = run_of(cluster, [])
    wait(lambda: any(desk.out.glob(f"slurm-{job}/events/second/*.jsonl")))
    cluster.run("scancel", job)
    code, answer, _ = told(cancelled)
    assert code == 3 and ("ERROR", "job.cancelled") in ids(answer)
    assert (Path(answer["run"]) / "report.html").exists()

    failing = desk.submit("--sbatch", "--no-requeue")
    job = run_of(cluster, [job])
    gone = victim(cluster, job)
    cluster.kill_node(gone)
    code, answer, _ = told(failing)
    cluster.start_node(gone)
    assert code == 3 and ("ERROR", "job.node-failed") in ids(answer)
    cluster.wait(lambda: cluster.strays() == [])


@pytest.mark.parametrize(("state", "id"), [("TIMEOUT", "job.time-limit"), ("PREEMPTED", "job.preempted")])
def test_an_end_that_was_not_made_here_is_named_and_never_a_pass(state: str, id: str):
    job = {"job": "7", "state": state, "queue_s": 3.0, "held_s": 0.0, "restarts": 0, "nodes": "n[1-2]"}
    findings, verdict, code = job_findings(job, None)
    assert [(f.status, f.id) for f in findings] == [(Status.PASS, "job.queue"), (Status.ERROR, id)]
    assert (verdict, code) == ("INCONCLUSIVE", 3)
    assert "n[1-2]" in findings[1].text
