"""One launcher through bad packs, bad parameters, a full disk, a vanished folder, an interrupt and a dead server."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddaudit.errors import LaunchProblem
from ddaudit.evidence.events import read_stream
from ddaudit.evidence.launch import LaunchFacts
from ddaudit.launch import LocalLauncher, Progress
from ddaudit.runbook.model import PlannedStep
from ddaudit.worker import WorkerExit
from tests.launch import drive

PROBES = '''
import os, sys, threading, time
from ddaudit.api import Measures, probe

@probe("talk", produces=[Measures])
def talk(context, params):
    """Prints and records."""
    print("to the log")
    context.measure("said", 1)

@probe("torch-free", produces=[Measures])
def torch_free(context, params):
    """Says whether torch is there."""
    context.measure("torch", "torch" in sys.modules)

@probe("forever", produces=[Measures])
def forever(context, params):
    """Leaves a child in a session of its own and never ends."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(120)
    context.measure("child", pid)
    threading.Event().wait()

@probe("orphan", produces=[Measures])
def orphan(context, params):
    """Ends at once and leaves a daemon of its own group behind."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(120)
    context.measure("child", pid)
'''


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    (folder / "probes").mkdir(parents=True)
    (folder / "probes" / "mine.py").write_text(PROBES)
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def launcher(run_dir: Path) -> Iterator[LocalLauncher]:
    """A launcher of its own, for tests that end it or its folder."""
    with LocalLauncher(run_dir, torch=False) as open_launcher:
        yield open_launcher


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLauncher]:
    with LocalLauncher(tmp_path_factory.mktemp("run"), torch=False) as open_launcher:
        yield open_launcher


@pytest.fixture
def shared(server: LocalLauncher) -> LocalLauncher:
    """The launcher that harmless tests share, with the folders of the test before removed."""
    for kind in ("events", "logs", "scratch"):
        folder = server.run_dir / kind / "s"
        if folder.is_dir():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)
    return server


def step(probe: str, **fields: Any) -> PlannedStep:
    return PlannedStep(id=fields.pop("id", "s"), title="t", source="book.md:7", runbook="b", probe=probe, **fields)


def run(launcher: LocalLauncher, pack: Path, planned: PlannedStep, **more: Any) -> LaunchFacts:
    plan = drive.write_plan(launcher.run_dir, [planned], packs=[str(pack)])
    return launcher.run_step(planned, plan, **more)


def measure(launcher: LocalLauncher, name: str) -> Any:
    stream = read_stream(launcher.run_dir / "events" / "s" / f"{launcher.host}-0.jsonl")
    return next(e["value"] for e in stream.of("measure") if e["name"] == name)


def at_work(launcher: LocalLauncher) -> bool:
    """True once the probe ``forever`` has recorded its child."""
    path = launcher.run_dir / "events" / "s" / f"{launcher.host}-0.jsonl"
    return path.is_file() and b'"child"' in path.read_bytes()


def test_a_host_probe_runs_without_torch_and_its_output_goes_to_the_log(shared: LocalLauncher, pack: Path) -> None:
    facts = run(shared, pack, step("talk"))
    assert facts.ok and facts.torch_preloaded is False
    assert (shared.run_dir / "logs" / "s" / f"{shared.host}-0.log").read_text() == "to the log\n"
    assert run(shared, pack, step("torch-free")).ok and measure(shared, "torch") is False


def test_the_launchers_own_record_can_be_read_back(shared: LocalLauncher, pack: Path) -> None:
    facts = run(shared, pack, step("talk"), folder="s.retry1")
    stream = read_stream(shared.run_dir / "events" / "s.retry1" / "launcher.jsonl")
    assert LaunchFacts.assemble([stream]) == facts and facts.folder == "s.retry1"


@pytest.mark.parametrize(
    ("planned", "says"),
    [
        (step("tlk"), "no probe is called 'tlk'; fix: did you mean 'talk'?"),
        (step("talk", params={"loud": 1}), "book.md:7: parameter 'loud' of probe 'talk'"),
        (step("talk", nproc=2), "runs once per host"),
    ],
)
def test_a_users_mistake_is_one_line_and_no_crash(
    shared: LocalLauncher, pack: Path, planned: PlannedStep, says: str
) -> None:
    facts = run(shared, pack, planned)
    assert not facts.ok
    first = facts.ranks[0]
    assert first.problem and first.exit_code == WorkerExit.PROBLEM and first.culprit
    assert first.error and says in first.error and "\n" not in first.error


def test_a_pack_that_does_not_import_is_named(shared: LocalLauncher, pack: Path) -> None:
    (pack / "probes" / "mine.py").write_text("import no_such_module\n")
    facts = run(shared, pack, step("talk"))
    assert "no_such_module" in (facts.ranks[0].error or "") and "mine.py" in (facts.ranks[0].error or "")


def test_a_full_disk_ends_the_rank_with_a_clear_code(shared: LocalLauncher, pack: Path) -> None:
    events = shared.run_dir / "events" / "s"
    events.mkdir(parents=True)
    (events / f"{shared.host}-0.jsonl").symlink_to("/dev/full")
    facts = run(shared, pack, step("talk"))
    (rank,) = facts.ranks
    assert (rank.state, rank.exit_code, rank.culprit) == ("exited", WorkerExit.NO_EVENTS, True)
    assert rank.error and "run folder" in rank.error
    assert "No space left" in (shared.run_dir / "logs" / "s" / f"{shared.host}-0.log").read_text()


def test_a_run_folder_that_vanishes_is_a_problem_and_does_not_come_back(launcher: LocalLauncher, pack: Path) -> None:
    def remove(progress: Progress) -> None:
        if at_work(launcher):
            shutil.rmtree(launcher.run_dir)

    with pytest.raises(LaunchProblem, match="the run folder is gone"):
        run(launcher, pack, step("forever", timeout_s=4.0), on_progress=remove)
    assert not launcher.run_dir.exists()


def test_a_log_folder_that_cannot_be_made_ends_the_step(shared: LocalLauncher, pack: Path) -> None:
    (shared.run_dir / "logs" / "s").write_text("in the way")
    facts = run(shared, pack, step("talk"))
    assert facts.ranks[0].exit_code == WorkerExit.NO_EVENTS


def test_an_interrupt_ends_the_step_at_once_with_its_facts(launcher: LocalLauncher, pack: Path) -> None:
    shown: list[Progress] = []

    def stop(progress: Progress) -> None:
        shown.append(progress)
        if at_work(launcher):
            launcher.interrupt()

    facts = run(launcher, pack, step("forever"), on_progress=stop)
    assert facts.interrupted and not facts.timed_out and facts.seconds < 15
    assert [r.culprit for r in facts.ranks] == [False] and facts.ranks[0].killed_by_us
    assert shown[-1].waiting_for == [0] and shown[-1].deadline_s == 120.0
    refused = run(launcher, pack, step("talk"))
    assert refused.interrupted and refused.ranks[0].state == "never-started"


def test_an_exception_out_of_a_callback_leaves_no_rank(launcher: LocalLauncher, pack: Path) -> None:
    def fail(progress: Progress) -> None:
        if at_work(launcher):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(launcher, pack, step("forever"), on_progress=fail)
    assert not _alive(measure(launcher, "child"))


def test_the_deadline_ends_even_children_in_a_session_of_their_own(shared: LocalLauncher, pack: Path) -> None:
    facts = run(shared, pack, step("forever", timeout_s=4.0))
    assert facts.timed_out and facts.ranks[0].culprit and facts.ranks[0].state == "sleeping"
    assert "in forever" in (facts.ranks[0].stuck_at or "")
    assert not _alive(measure(shared, "child"))


def test_what_a_finished_rank_leaves_behind_is_ended_before_the_step_is_over(shared: LocalLauncher, pack: Path) -> None:
    assert run(shared, pack, step("orphan")).ok
    assert not _alive(measure(shared, "child"))


def test_a_dead_server_is_a_problem_and_the_next_step_gets_a_new_one(launcher: LocalLauncher, pack: Path) -> None:
    def kill_server(progress: Progress) -> None:
        if progress.phase == "running" and launcher._link is not None:
            os.kill(launcher._link.pid, signal.SIGKILL)

    with pytest.raises(LaunchProblem, match=r"killed by SIGKILL.*launcher\.log"):
        run(launcher, pack, step("forever"), on_progress=kill_server)
    assert run(launcher, pack, step("talk", id="next")).ok


def test_a_torch_that_does_not_import_is_told_and_not_hidden(
    run_dir: Path, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    (broken / "torch").mkdir(parents=True)
    (broken / "torch" / "__init__.py").write_text(
        "raise ImportError('libcudart.so.13: cannot open shared object file')"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(broken), os.environ.get("PYTHONPATH", "")]))
    with (
        LocalLauncher(run_dir, torch=True, preload=()) as launcher,
        pytest.raises(LaunchProblem, match=r"libcudart\.so\.13"),
    ):
        run(launcher, pack, step("talk"))


def test_the_working_folder_is_not_imported_from_and_a_missing_module_is_left_to_the_ranks(
    run_dir: Path, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('imported the wrong torch')")
    monkeypatch.chdir(tmp_path)
    with LocalLauncher(run_dir, torch=True, preload=("ddaudit.no_such_room",)) as launcher:
        facts = run(launcher, pack, step("talk"))
    assert facts.ok and facts.torch_preloaded
    assert "no_such_room" in (run_dir / "logs" / "launcher.log").read_text()


def test_two_launchers_at_once_do_not_meet(tmp_path: Path, pack: Path) -> None:
    results: list[LaunchFacts] = []

    def one(name: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        with LocalLauncher(folder, torch=True, preload=()) as launcher:
            drill = step("drill", nproc=2, params={"steps": 30}, timeout_s=60.0)
            results.append(run(launcher, pack, drill))

    threads = [threading.Thread(target=one, args=(f"run{n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [facts.ok for facts in results] == [True, True]


def _alive(pid: int) -> bool:
    """True when the process still runs after a moment; the kernel may need one to deliver a death."""
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state in "ZX":
            return False
        time.sleep(0.02)
    return True
