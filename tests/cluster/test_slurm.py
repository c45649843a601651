"""Jobs of a real Slurm of four nodes: submitted, kept waiting, held, cancelled, requeued after a node died."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import slurm
from tests.cluster.fleet import environment, words
from tests.cluster.test_fleet import BOOK, PROBES, wait
from tests.conftest import ddaudit


class Desk:
    """A pack whose probe notes where it ran, and jobs that run it."""

    def __init__(self, root: Path, cluster: slurm.Cluster) -> None:
        self.root, self.cluster = root, cluster
        self.desk, self.out, self.pack = root / "desk", root / "out", root / "pack"
        (self.pack / "probes").mkdir(parents=True)
        (self.pack / "probes" / "roll.py").write_text(PROBES)
        (root / "roll.md").write_text(BOOK.replace('"40s"', '"10m"'))  # Slurm may take half a minute to end it
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
    out, err = process.communicate(timeout=400)
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


class Clock(threading.Thread):
    """The test's own clock: when each job was seen first, and when its state and reason changed. Every moment is a pair
    (not before, not after), as wide as two looks lie apart on a busy machine."""

    def __init__(self, cluster: slurm.Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster, self.over = cluster, threading.Event()
        self.seen: dict[str, list[tuple[str, str, float, float]]] = {}
        """Job -> (state, reason, not before, not after) of each change."""

    def run(self) -> None:
        last = time.time()
        while not self.over.wait(0.05):
            asked = time.time()
            lines = self.cluster.ask("squeue", "-h", "-t", "all", "-o", "%A|%T|%r").split()
            now = time.time()
            for job, state, reason in (line.split("|") for line in lines):
                known = self.seen.setdefault(job, [])
                if not known or known[-1][:2] != (state, reason):
                    known.append((state, reason, last, now))
            last = asked

    def moment(self, job: str, *, after: str) -> tuple[float, float]:
        """When the job was last seen to become something else than ``after``: a state or a reason."""
        known = self.seen[job]
        index = max(i for i, (state, reason, *_) in enumerate(known) if after in (state, reason))
        return known[index + 1][2:]

    def came(self, job: str) -> tuple[float, float]:
        return self.seen[job][0][2:]

    def __enter__(self) -> Clock:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


def between(earlier: tuple[float, float], later: tuple[float, float]) -> tuple[float, float]:
    """The least and the most that can lie between two moments."""
    return later[0] - earlier[1], later[1] - earlier[0]


def within(told: float, true: tuple[float, float], tolerance_s: float = 1.5) -> bool:
    return true[0] - tolerance_s <= told <= true[1] + tolerance_s


def test_waits_are_told_by_their_kind_and_reason_within_a_second_and_a_half(desk: Desk, cluster: slurm.Cluster):
    """A filler keeps all nodes until the first job has waited for 8 s; one waits for the filler, one is held."""
    (desk.desk / "go").touch()
    stop = desk.root / "stop"
    filler = cluster.submit("-N4", "--exclusive", "--wrap", f"while [ ! -e {stop} ]; do sleep 0.1; done")
    wait(lambda: cluster.state(filler) == "RUNNING")
    with Clock(cluster) as clock:
        waiting = desk.submit(nodes=1)
        dependent = desk.submit("--sbatch", f"--dependency=afterok:{filler}", nodes=1)
        held = desk.submit("--sbatch", "--hold", nodes=1)
        wait(lambda: {"JobHeldUser", "Dependency"} < {line.partition("|")[2] for line in pending(cluster)})
        (job,) = [line.partition("|")[0] for line in pending(cluster) if line.endswith("JobHeldUser")]
        first_id = next(line.partition("|")[0] for line in pending(cluster) if line.endswith(("Resources", "Priority")))
        wait(lambda: first_id in clock.seen and time.time() >= clock.came(first_id)[1] + 8)
        released = time.time()
        cluster.run("scontrol", "release", job)
        released = released, time.time()
        stop.touch()
        (code, first, err), (_, second, _), (_, third, _) = told(waiting), told(dependent), told(held)
    assert code == 0, err
    assert "waiting (Resources" in err or "waiting (Priority" in err
    first, second, third = first["job"], second["job"], third["job"]
    queued = between(clock.came(first["job"]), clock.moment(first["job"], after="PENDING"))
    assert queued[1] >= 8 and within(first["queue_s"], queued), (first, queued)
    assert first["held_s"] == 0 and set(first["waits"]) <= {"Resources", "Priority"}
    kept = between(clock.came(second["job"]), clock.moment(second["job"], after="Dependency"))
    assert within(second["held_s"], kept) and "Dependency" in second["waits"], (second, kept)
    kept = between(clock.came(third["job"]), released)
    assert within(third["held_s"], kept) and "JobHeldUser" in third["waits"], (third, kept)


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
    """At the same time one job is cancelled, one is warned of its time limit, one runs into it, and one that is not to
    be queued again loses its node."""
    kinds = {"cancelled": [], "warned": ["--time", "60"], "limit": ["--time", "60"]}
    jobs: dict[str, str] = {}
    started: dict[str, subprocess.Popen[str]] = {}
    for kind, more in kinds.items():
        started[kind] = desk.submit(*more, nodes=1)
        jobs[kind] = run_of(cluster, list(jobs.values()))
    started["failed"] = desk.submit("--sbatch", "--no-requeue", "--sbatch", "--exclusive")
    jobs["failed"] = run_of(cluster, list(jobs.values()))
    wait(lambda: all(any(desk.out.glob(f"slurm-{job}/events/second/*.jsonl")) for job in jobs.values()))
    cluster.run("scancel", jobs["cancelled"])
    # Slurm looks every 30 s, for limits that have passed and for those in less than 90 s, of which to warn.
    cluster.run("scontrol", "update", f"jobid={jobs['warned']}", "EndTime=now+80")
    cluster.run("scontrol", "update", f"jobid={jobs['limit']}", "EndTime=now")
    gone = victim(cluster, jobs["failed"])
    cluster.kill_node(gone)
    answers = {kind: told(process) for kind, process in started.items()}
    cluster.start_node(gone)
    ids_of = {kind: (code, ids(answer)[-1]) for kind, (code, answer, _) in answers.items()}
    assert ids_of == {
        "cancelled": (3, ("ERROR", "job.cancelled")),
        "warned": (3, ("ERROR", "job.time-limit")),
        "limit": (3, ("ERROR", "job.time-limit")),
        "failed": (3, ("ERROR", "job.node-failed")),
    }
    assert (answers["warned"][1]["job"]["state"], answers["limit"][1]["job"]["state"]) == ("FAILED", "TIMEOUT")
    assert all((Path(answer["run"]) / "report.html").exists() for _, answer, _ in answers.values() if answer["run"])
    cluster.wait(lambda: cluster.strays() == [])
    for kind in ("warned", "failed"):
        later = ddaudit("report", answers[kind][1]["run"], "--pack", str(desk.pack), "--json")
        assert ids_of[kind][1] in ids(json.loads(later.stdout)), "a later report has forgotten what ended the job"
