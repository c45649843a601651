"""While a run waits, stderr names who is waited for; ``--no-progress`` keeps it silent."""

from __future__ import annotations

import io
import os
import pty
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from ddaudit.cli import live
from ddaudit.launch import Progress
from ddaudit.runbook.model import PlannedStep
from tests.engine.forks import desk, forked, ran

STEP = PlannedStep(id="data", title="D", source="book.md:3", runbook="book")


def told(view: live.LiveView, *seconds: float) -> None:
    view.step_started(STEP, 1, 3)
    for elapsed_s in seconds:
        view.progress(Progress("data", elapsed_s, 120.0, waiting_for=[0, 2, 3, 5, 8, 9]))


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with live.LiveView() as view:
        told(view, 1, 29, 30.2, 31, 45, 60.3, 61)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"[2/3] data: {s} s of at most 120 s, waiting for rank 0, rank 2, rank 3, rank 5 and 2 more" for s in (30, 60)
    ]


def test_no_progress_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with live.LiveView(enabled=False) as view:
        told(view, 31, 90)
    assert capsys.readouterr().err == ""


def test_no_progress_keeps_a_whole_run_silent(tmp_path: Path) -> None:
    table = desk(tmp_path / "desk")
    table.go()
    run = ran(table.argv, tmp_path / "run")
    assert (run.wait(), run.err) == (0, "")


def test_a_terminal_names_who_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = desk(tmp_path / "desk")
    progress = [word for word in table.argv if word != "--no-progress"]
    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    seen, until = "", time.monotonic() + 60
    with forked(progress, tmp_path / "run", fds=(slave, slave)) as run:
        while "waiting for rank 0" not in seen:
            assert time.monotonic() < until, seen
            seen += os.read(master, 4096).decode(errors="replace")
        table.go()
        while "Report" not in seen:
            seen += os.read(master, 4096).decode(errors="replace")
        assert run.wait() == 0
    os.close(master)
    os.close(slave)
    assert re.search(r"\[2/3\] b: \d+ s of at most 30 s, waiting for rank 0", seen), seen


def on_a_terminal(progress: Progress, monkeypatch: pytest.MonkeyPatch, **options: bool) -> str:
    """What the last refresh of a view showed, without what moves the cursor."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    file = io.StringIO()
    view = live.LiveView(**options)
    view._console = Console(file=file, force_terminal=True, color_system=None, width=100, legacy_windows=False)
    with view:
        view.step_started(STEP, 1, 3)
        view.progress(progress)
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def test_a_terminal_shows_how_far_each_rank_is_those_behind_first(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = dict.fromkeys(range(64), 14) | {9: 3, 40: 13, 41: 13}
    shown = on_a_terminal(Progress("data", 30, 120, [9], steps, hosts={9: "node07"}), monkeypatch)
    assert "[2/3] data: 30 s of at most 120 s, waiting for rank 9 on node07" in shown
    rows = [" ".join(line.split()) for line in shown.splitlines() if "after step" in line][-3:]
    assert rows == [
        "after step 3 1 rank rank 9 on node07, waited for",
        "after step 13 2 ranks 40-41",
        "after step 14 61 ranks 0-8, 10-39, 42-63",
    ]


def test_the_table_of_ranks_stays_small_and_inert(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {rank: rank for rank in range(1024)}
    evil = Progress("data", 1, 9, [0], steps, hosts={0: "\x1b[2J[red]x"})
    shown = on_a_terminal(evil, monkeypatch, ascii_only=True)
    assert "and 1018 more places" in shown and "[red]x" in shown and "\x1b[2J" not in shown
    assert "━" not in shown and len(shown.splitlines()) < 30
