"""What becomes of a run when it is interrupted, killed, cut off from its terminal, starved of space or robbed of its
folder: one clear line, the right exit code, no process left, and everything that finished is kept."""

from __future__ import annotations

import os
import pty
import random
import resource
import shutil
import signal
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks._chaos_storage import hang_with
from ddaudit.engine import journal as journals
from tests.engine.forks import Desk, desk, forked, ran


@pytest.fixture
def table(tmp_path: Path) -> Desk:
    return desk(tmp_path / "desk")


def one_line(text: str) -> bool:
    return len([line for line in text.splitlines() if line]) == 1 and "Traceback" not in text


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)], ids=["INT", "TERM", "HUP"]
)
def test_a_signal_during_a_step_keeps_what_finished_and_resume_goes_on(
    table: Desk, tmp_path: Path, signum: int, code: int
) -> None:
    with forked(table.argv, tmp_path / "first") as run:
        table.await_step("b")
        run.kill(signum)
        assert run.wait() == code and run.left() == []
    assert table.states() == {"a": "done", "b": "interrupted", "c": "interrupted"}
    assert (table.record()["verdict"], table.record()["complete"]) == ("INTERRUPTED", False)
    assert (table.run / "report.html").is_file() and "Traceback" not in run.err
    table.go()
    (table.path / "three.md").write_text("the page may change, the plan rules")
    again = ran(["run", "--resume", str(table.run), "--no-progress"], tmp_path / "again")
    assert again.wait() == 0, again.err
    assert table.ran() == ["a", "b", "b", "c"], "step a is not repeated"
    record = table.record()
    assert record["complete"] and set(table.states().values()) == {"done"}
    assert {f["status"] for f in record["findings"]} == {"PASS"}


def test_a_run_that_was_told_to_outlive_its_terminal_does(table: Desk, tmp_path: Path) -> None:
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a script's `&` does

    with forked(table.argv, tmp_path / "first", setup=nohup) as run:
        table.await_step("b")
        run.kill(signal.SIGHUP)
        run.kill(signal.SIGINT)
        table.go()
        assert run.wait() == 0 and table.record()["complete"]


def test_a_second_ctrl_c_ends_at_once_and_leaves_nothing(table: Desk, tmp_path: Path) -> None:
    with forked(table.argv, tmp_path / "first") as run:
        table.await_step("b")
        run.kill(signal.SIGINT)
        time.sleep(0.05)  # two signals at one moment are one signal
        run.kill(signal.SIGINT)
        assert run.wait() == 130 and run.left() == []
    assert "interrupted" in run.err and "Traceback" not in run.err


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def striking(module: Any, name: str, strike: Callable[[], None] = terminate) -> Callable[[], None]:
    """Makes a function of a module send TERM to its own process, or do something else, before its first call."""

    def setup() -> None:
        function = getattr(module, name)

        def struck(*arguments: Any, **named: Any) -> Any:
            setattr(module, name, function)
            strike()
            return function(*arguments, **named)

        setattr(module, name, struck)

    return setup


@pytest.mark.parametrize("moment", ["judging", "evidence", "report"])
def test_a_signal_between_steps_costs_no_finished_step(table: Desk, tmp_path: Path, moment: str) -> None:
    from ddaudit import report
    from ddaudit.engine import outcome, walk

    table.go()
    place: dict[str, tuple[Any, str]] = {
        "judging": (outcome, "judge"),
        "evidence": (walk, "write_evidence"),
        "report": (report, "write_reports"),
    }
    run = ran(table.argv, tmp_path / "first", setup=striking(*place[moment]))
    # A run that was judged whole is whole, even if its last report was being written.
    assert run.wait() == (0 if moment == "report" else 143), run.err
    assert "Traceback" not in run.err and run.left() == []
    assert table.states()["a"] == "done" and (table.run / "report.html").is_file()
    again = ran(["run", "--resume", str(table.run), "--no-progress"], tmp_path / "again")
    assert again.wait() == 0 and table.ran() == ["a", "b", "c"]


@pytest.mark.parametrize("moment", ["judging", "report"])
def test_storage_that_hangs_behind_a_step_ends_the_run_in_one_line(table: Desk, tmp_path: Path, moment: str) -> None:
    from ddaudit import report
    from ddaudit.engine import outcome

    table.go()
    (table.path / "runs").mkdir()
    pipe = tmp_path / "hang"
    module, name = {"judging": (outcome, "judge"), "report": (report, "render")}[moment]

    def setup() -> None:
        os.environ["DDAUDIT_STORAGE_PATIENCE_S"] = "1"
        hang_with(table.path / "runs", pipe)
        striking(module, name, lambda: os.mkfifo(pipe))()

    with forked(table.argv, tmp_path / "first", setup=setup) as run:
        assert run.left(60.0) == [], "it waits for ever"
        assert run.wait() == 3 and one_line(run.err) and "storage has not answered for 1 s" in run.err
    pipe.unlink()
    again = ran(["run", "--resume", str(table.run), "--no-progress"], tmp_path / "again")
    assert again.wait() == 0 and table.record()["complete"]


def test_sigkill_at_random_moments_loses_no_finished_step(tmp_path: Path) -> None:
    chance = random.SystemRandom()
    for number in range(4):
        table = desk(tmp_path / f"desk{number}")
        if number % 2:
            table.go()
        after_s = chance.uniform(0.0, 1.5)
        with forked(table.argv, tmp_path / f"killed{number}") as run:
            time.sleep(after_s)  # the random moment is the point of the test
            run.kill(signal.SIGKILL)
            run.wait()
            assert run.left() == [], after_s
        table.go()
        folders = list((table.path / "runs").glob("*/events/run.jsonl"))
        if not folders or not folders[0].stat().st_size:
            continue  # nothing had begun
        kept = [id for id, e in journals.read_journal(table.run).ended.items() if e.state == "done"]
        report = ran(["report", str(table.run), "--packs", "builtin"], tmp_path / f"report{number}")
        assert report.wait() == (0 if len(kept) == 3 and table.record()["complete"] else 3), (after_s, report.err)
        before = table.ran()
        again = ran(["run", "--resume", str(table.run), "--no-progress"], tmp_path / f"again{number}")
        assert again.wait() == 0, (after_s, again.err)
        assert table.record()["complete"] and set(table.states().values()) == {"done"}
        assert not set(kept) & set(table.ran()[len(before) :]), (after_s, kept, table.ran())


def test_a_finished_run_that_is_resumed_only_reports(table: Desk, tmp_path: Path) -> None:
    table.go()
    assert ran(table.argv, tmp_path / "first").wait() == 0
    before = table.record()
    again = ran(["run", "--resume", str(table.run)], tmp_path / "again")
    assert again.wait() == 0 and "this run is finished" in again.err and "PASS" in again.out
    assert table.record() == before and table.ran() == ["a", "b", "c"]


def test_a_living_run_can_neither_be_resumed_nor_disturbed(table: Desk, tmp_path: Path) -> None:
    with forked(table.argv, tmp_path / "first") as run:
        table.await_step("b")
        second = ran(["run", "--resume", str(table.run)], tmp_path / "second")
        assert second.wait() == 2 and one_line(second.err) and "another ddaudit works" in second.err
        report = ran(["report", str(table.run)], tmp_path / "report")
        assert report.wait() == 3 and "the run goes on" in report.err
        table.go()
        assert run.wait() == 0
    assert table.ran() == ["a", "b", "c"]


def test_three_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    tables = [desk(tmp_path / f"desk{n}") for n in range(3)]
    shared = tmp_path / "runs"
    argvs = [[str(shared) if word.endswith("/runs") else word for word in t.argv] for t in tables]
    with (
        forked(argvs[0], tmp_path / "0") as one,
        forked(argvs[1], tmp_path / "1") as two,
        forked(argvs[2], tmp_path / "2") as three,
    ):
        for table in tables:
            table.await_step("b")  # all three run by now
        for table in tables:
            table.go()
        assert [run.wait() for run in (one, two, three)] == [0, 0, 0], one.err + two.err + three.err
    assert len(list(shared.glob("*/report.html"))) == 3
    assert all(table.ran() == ["a", "b", "c"] for table in tables)


def test_a_reader_that_went_away_does_not_end_the_run(table: Desk, tmp_path: Path) -> None:
    table.go()
    reader, writer = os.pipe()
    os.close(reader)
    run = ran(table.argv, tmp_path / "first", fds=(writer, writer))
    assert run.wait() == 0 and table.record()["complete"]
    assert ran(["list", "checks"], tmp_path / "list", fds=(writer, writer)).wait() == 0
    os.close(writer)


def test_a_terminal_that_was_closed_does_not_end_the_run(table: Desk, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    progress = [word for word in table.argv if word != "--no-progress"]
    # A master that the run held open itself would make a terminal that is full, not one that is closed.
    with forked(progress, tmp_path / "first", fds=(slave, slave), setup=lambda: os.close(master)) as run:
        os.close(slave)
        table.await_step("b")
        os.close(master)  # every further write fails with EIO
        table.go()
        assert run.wait() == 0 and run.left() == []
    assert table.record()["complete"]


def test_a_terminal_that_was_stopped_does_not_stop_the_run(table: Desk, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    progress = [word for word in table.argv if word != "--no-progress"]
    with open(tmp_path / "out", "w") as out, forked(progress, tmp_path / "first", fds=(out.fileno(), slave)) as run:
        table.await_step("b")
        termios.tcflow(slave, termios.TCOOFF)  # Ctrl-S
        table.go()
        assert run.wait() == 0 and run.left() == []
    assert table.record()["complete"]
    os.close(slave)
    os.close(master)


def test_a_full_disk_ends_the_run_in_one_line_and_resume_finishes_it(table: Desk, tmp_path: Path) -> None:
    table.go()

    def starve() -> None:
        # A file that cannot grow fails like a disk that is full, and needs no rights to arrange.
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, resource.RLIM_INFINITY))

    run = ran(table.argv, tmp_path / "first", setup=starve)
    assert run.wait() == 3 and one_line(run.err), run.err
    assert "cannot write to the run folder: File too large; fix: make room, then `ddaudit run --resume" in run.err
    assert run.left() == [] and table.ran() == ["a"]
    again = ran(["run", "--resume", str(table.run), "--no-progress"], tmp_path / "again")
    assert again.wait() == 0, again.err
    assert table.record()["complete"] and table.ran() == ["a", "b", "c"]


def test_output_to_a_full_disk_is_told_and_is_no_pass(table: Desk, tmp_path: Path) -> None:
    table.go()
    with open("/dev/full", "w") as full, open(tmp_path / "err", "w+") as err:
        run = ran([*table.argv, "--json"], tmp_path / "first", fds=(full.fileno(), err.fileno()))
        assert run.wait() == 3
        err.seek(0)
        assert "cannot write the output: No space left on device" in err.read()


@pytest.mark.parametrize("out", ["/proc/ddaudit-runs", "{desk}/three.md/runs"])
def test_a_place_that_cannot_be_written_launches_nothing(table: Desk, tmp_path: Path, out: str) -> None:
    root = out.format(desk=table.path)
    argv = [root if word.endswith("/runs") else word for word in table.argv]
    run = ran(argv, tmp_path / "first")
    assert run.wait() == 2 and one_line(run.err) and "choose another --out" in run.err
    assert table.ran() == []


def test_a_run_folder_that_vanishes_stays_gone(table: Desk, tmp_path: Path) -> None:
    with forked(table.argv, tmp_path / "first") as run:
        table.await_step("b")
        shutil.rmtree(table.path / "runs")
        assert run.wait() == 3 and run.left() == []
    assert one_line(run.err) and "the run folder is gone" in run.err
    assert not (table.path / "runs").exists()
