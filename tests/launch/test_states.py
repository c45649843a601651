"""States seen from outside: a process is recognised by what it does, not by what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ddaudit.launch.process import strays
from ddaudit.launch.states import Sample, sample, state_between
from ddaudit.launch.text import main_thread_stack, own_frame, tail
from ddaudit.launch.trail import Trail


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def _state_of(pid: int) -> str | None:
    first = sample(pid)
    time.sleep(0.25)  # CPU time is measured over an interval
    return state_between(first, sample(pid))


def test_sleeping_busy_stopped_zombie_and_gone_are_told_apart() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    worker = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=-1)
    try:
        assert sleeper.stdout and sleeper.stdout.readline() and worker.stdout and worker.stdout.readline()
        assert _state_of(sleeper.pid) == "sleeping"
        assert _state_of(worker.pid) == "on-cpu"
        worker.send_signal(signal.SIGSTOP)
        _await(lambda: (s := sample(worker.pid)) is not None and s.letters[0] == "T")
        assert _state_of(worker.pid) == "stopped"
        worker.kill()
        _await(lambda: (s := sample(worker.pid)) is not None and s.letters[0] == "Z")
        assert _state_of(worker.pid) == "zombie"
        worker.wait()
        assert _state_of(worker.pid) is None
    finally:
        for process in (sleeper, worker):
            process.kill()
            process.communicate()


def test_a_thread_in_uninterruptible_sleep_is_seen_behind_a_sleeping_leader() -> None:
    assert state_between(Sample(0.0, "SSD", 1.0), Sample(1.0, "SSD", 1.0)) == "disk"
    assert state_between(Sample(0.0, "SSD", 1.0), Sample(1.0, "SSS", 1.0)) == "sleeping"


def test_a_forked_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    """Parent and child are forked by a helper, since the fork hook cannot be taken back."""
    script = (
        "import os, signal, sys, time\n"
        "from ddaudit.launch.process import children_die_with_me\n"
        "children_die_with_me()\n"
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(60)\n"
        "print(pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    _await(lambda: (s := sample(child)) is None or s.letters[0] in "ZX")


def test_a_process_whose_parent_is_gone_already_leaves_at_once() -> None:
    script = "from ddaudit.launch.process import die_with_parent; die_with_parent(1 << 22); print('alive')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (128 + signal.SIGKILL, "")


def test_strays_are_the_direct_children() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in strays(os.getpid())
    finally:
        child.communicate(b"\n")
    assert child.pid not in strays(os.getpid())


def test_a_trail_reads_only_whole_lines_and_survives_damage(tmp_path: Path) -> None:
    path = tmp_path / "h-0.jsonl"
    trail = Trail(path)
    trail.read()
    assert trail.last_event is None
    with path.open("wb") as file:
        file.write(b'{"event": "start", "t": 1, "main_thread": "0x01"}\n{"event": "enter", "t": 1, "name": "probe"}\n')
        file.write(
            b'{"event": "step", "t": 2, "loss": 1.0, "step": 7}\nrubbish\n{"event": "error", bad}\n{"event": "st'
        )
        file.flush()
        trail.read()
        assert (trail.last_step, trail.phases, trail.main_thread, trail.last_event) == (7, ["probe"], "0x01", "step")
        file.write(b'ep", "t": 3, "step": 8}\n{"event": "collectives", "t": 3, "groups": {"0": {"enqueued": 3}}}\n')
        file.flush()
        trail.read()
    assert (trail.last_step, trail.last_event, trail.groups["0"]["enqueued"]) == (8, "step", 3)
    path.unlink()
    trail.read()
    assert trail.last_step == 8


def test_the_main_threads_newest_stack_and_its_own_frame_are_found(tmp_path: Path) -> None:
    import threading

    library = threading.__file__
    dump = (
        'Thread 0x0000000000000001 (most recent call first):\n  File "/old.py", line 1 in f\n\n'
        'Thread 0x0000000000000002 [ddaudit-link] (most recent call first):\n  File "/other.py", line 3 in g\n\n'
        "Current thread 0x0000000000000001 (most recent call first):\n"
        f'  File "{library}", line 5 in wait\n  File "/home/me/train.py", line 9 in loop\n'
    )
    path = tmp_path / "s.stack"
    path.write_text(dump)
    stack = main_thread_stack(tail(path), "0x0000000000000001")
    assert "wait" in stack and "old.py" not in stack
    assert own_frame(stack) == "train.py:9 in loop"
    assert own_frame("") is None and tail(tmp_path / "none") == ""
