"""Runs the user's command in the foreground with the hooks on its PYTHONPATH, and sees to it that it ends."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ddaudit.errors import UsageProblem
from ddaudit.evidence.events import read_streams
from ddaudit.watch.source import guarded

__all__ = ["Ended", "environment", "run_command"]

STARTUP = Path(__file__).resolve().parent / "startup"
ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.2
LOOK_S = 2.0
#: CPU seconds a second below which a process counts as waiting (launchers poll now and then).
IDLE_SHARE = 0.05
GRACE_S = 10.0
MAX_FRAMES = 32
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass
class Ended:
    """How the command ended. ``hang_s`` is set where it was ended for want of progress."""

    exit_code: int
    signal: str | None = None
    hang_s: float | None = None
    stacks: dict[str, list[str]] = field(default_factory=dict)
    guards: dict[str, str] = field(default_factory=dict)
    """By rank: where it waits, if only some ranks come there by a condition on the rank."""
    seconds: float = 0.0


def environment(folder: Path, every: int, base: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: as it was, with the start-up hook first on PYTHONPATH."""
    path = os.pathsep.join([str(STARTUP), *filter(None, [base.get("PYTHONPATH")])])
    ours = {"PYTHONPATH": path, "DDAUDIT_WATCH_DIR": str(folder), "DDAUDIT_WATCH_ROOT": str(ROOT)}
    return {**base, **ours, "DDAUDIT_WATCH_EVERY": str(every)}


def run_command(
    argv: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    *,
    to_stderr: bool,
    hang_s: float,
    until_saved: bool = False,
) -> Ended:
    """Runs ``argv`` with this process's stdin, stdout and stderr (``to_stderr``: its stdout goes to our stderr).

    With ``until_saved`` it is killed, with all that it started, once a checkpoint was saved and two updates more were
    made. Otherwise ends it when for ``hang_s`` seconds no rank wrote an event and no process of it used the CPU.

    Raises:
        UsageProblem: the program is not there or cannot be started.
    """
    program = shutil.which(argv[0], path=env.get("PATH", ""))
    if program is None:
        raise UsageProblem(f"the program {argv[0]!r} is not there or not executable", fix="give its path after --")
    began = time.monotonic()
    try:
        process = subprocess.Popen([program, *argv[1:]], env=dict(env), stdout=sys.stderr if to_stderr else None)
    except OSError as error:
        raise UsageProblem(f"the program {argv[0]!r} did not start: {error.strerror}") from error
    with _forwarding(process):
        ended = _wait(process, folder, hang_s, until_saved)
    ended.seconds = time.monotonic() - began
    return ended


def _wait(process: subprocess.Popen[bytes], folder: Path, hang_s: float, until_saved: bool = False) -> Ended:
    seen, since, looked = _progress(process.pid, folder), time.monotonic(), time.monotonic()
    while True:
        try:
            code = process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if until_saved and _saved(folder):
                _kill(process)
                return Ended(128 + signal.SIGKILL, "SIGKILL")
            if now - looked < LOOK_S:
                continue
            fresh = _progress(process.pid, folder)
            if _moved(seen, fresh, now - looked):
                since = now
            seen, looked = fresh, now
            if now - since > hang_s:
                return _end_hung(process, folder, now - since)
            continue
        name = signal.Signals(-code).name if code < 0 else None
        stacks = _stacks(folder) if code else {}
        return Ended(code if code >= 0 else 128 - code, name, None, stacks, _guards(stacks))


def _progress(pid: int, folder: Path) -> tuple[int, dict[int, float]]:
    """Bytes of events, and CPU seconds of each process of the command."""
    written = sum(p.stat().st_size for p in folder.glob("*.jsonl"))
    spent: dict[int, float] = {}
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                spent[process.pid] = times.user + times.system
    return written, spent


def _moved(before: tuple[int, dict[int, float]], after: tuple[int, dict[int, float]], seconds: float) -> bool:
    if before[0] != after[0] or before[1].keys() != after[1].keys():
        return True
    return any(after[1][pid] - before[1][pid] > IDLE_SHARE * seconds for pid in after[1])


def _end_hung(process: subprocess.Popen[bytes], folder: Path, seconds: float) -> Ended:
    """Asks every rank for its stacks, then ends the command and what it started."""
    for pid in _pids(folder):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR2)
    time.sleep(1.0)  # the stacks are written by a signal handler in another process: there is no event to wait for
    stacks = _stacks(folder)
    family = _family(process)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    _kill(process, family)
    return Ended(124, None, seconds, stacks, _guards(stacks))


def _saved(folder: Path) -> bool:
    """True when a rank told of a saved checkpoint and has made two updates since."""
    for stream in read_streams(folder):
        told = stream.of("watched")
        saves = [int(c["update"]) for e in told for c in e.get("checkpoints", ()) if c.get("action") == "save"]
        if saves and max((int(e["step"]) for e in stream.of("step")), default=-1) >= min(saves) + 1:
            return True
    return False


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    return []


def _kill(process: subprocess.Popen[bytes], family: Sequence[psutil.Process] | None = None) -> None:
    """Kills the command and what it started, launcher last, so that it cannot start ranks anew."""
    for member in _family(process) if family is None else family:
        with contextlib.suppress(psutil.Error):
            member.kill()
    process.wait()


def _pids(folder: Path) -> dict[int, int]:
    """Process id of each rank that reported -> its rank."""
    return {int(e["place"]["pid"]): int(e["place"]["rank"]) for s in read_streams(folder) for e in s.of("rank")}


def _stacks(folder: Path) -> dict[str, list[str]]:
    """What ranks were doing when they were asked, or when a signal ended them."""
    found = {str(rank): _stack(folder / f"stack-{pid}.txt") for pid, rank in _pids(folder).items()}
    return {rank: lines for rank, lines in found.items() if lines}


def _guards(stacks: Mapping[str, Sequence[str]]) -> dict[str, str]:
    found = {}
    for rank, lines in stacks.items():
        places = [(m["file"], int(m["line"])) for line in lines if (m := _FRAME.match(line))]
        if (where := guarded(places)) is not None:
            found[rank] = where
    return found


def _stack(path: Path) -> list[str]:
    """Frames of the main thread, innermost first, as faulthandler wrote them."""
    if not path.is_file():
        return []
    text = path.read_text("utf-8", "replace")[-40_000:]
    main = text.rpartition("Current thread")[2] or text
    return [line.strip() for line in main.splitlines() if line.strip().startswith("File ")][:MAX_FRAMES]


@contextlib.contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hands TERM, HUP and Ctrl-C on to the command, which decides how it ends; then our report is still written."""

    def hand_on(number: int, frame: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    before = {s: signal.signal(s, hand_on) for s in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN if sys.stdin.isatty() else hand_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
