"""When ddaudit itself dies, at any moment and by any signal, its server, ranks and their loaders die with it."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.launch import drive

BUSY = [{"fault": "none", "ranks": 2, "steps": 100_000, "pause_s": 0.01, "loader_workers": 1, "timeout_s": 60}]
STUCK = [{"fault": "stop", "ranks": 2, "at_step": 3, "loader_workers": 1, "timeout_s": 60}]


def test_sigkill_with_a_stopped_rank_and_loaders_leaves_nothing(tmp_path: Path) -> None:
    with drive.driver(tmp_path, STUCK) as process:
        _await_members(process.pid, 6)  # driver, server, two ranks, two loader workers
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert drive.seconds_until_gone(process.pid, 5.0) is not None, drive.session_members(process.pid)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_a_random_moment_leaves_nothing(tmp_path: Path, signum: int) -> None:
    after_s = random.SystemRandom().uniform(0.05, 3.0)
    with drive.driver(tmp_path, BUSY) as process:
        time.sleep(after_s)  # the random moment is the point of the test
        os.kill(process.pid, signum)
        process.wait()
        assert drive.seconds_until_gone(process.pid, 5.0) is not None, (after_s, drive.session_members(process.pid))


def _await_members(sid: int, count: int, limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while len(drive.session_members(sid)) < count:
        assert time.monotonic() < until, drive.session_members(sid)
        time.sleep(0.02)
