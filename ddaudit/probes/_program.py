"""Starting a program and waiting for it: argv only, bounded output, a deadline, nothing left behind."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

__all__ = ["Ended", "run_program"]

#: How long to wait for output that a surviving grandchild may hold open after the program itself has ended.
GRACE_S = 1.0


@dataclass(frozen=True)
class Ended:
    """How it went. ``exit_code`` is None when it did not start or was ended at the deadline."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    signal: str | None = None
    seconds: float | None = None
    timed_out: bool = False
    truncated: bool = False
    not_started: str | None = None


class _Reader(threading.Thread):
    """Reads a pipe to its end and keeps the first ``limit`` bytes, so that no program blocks on a full pipe."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        super().__init__(daemon=True)
        self.pipe, self.limit = pipe, limit
        self.kept = bytearray()
        self.truncated = False
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError), self.pipe:
            while chunk := self.pipe.read1(65536):  # type: ignore[attr-defined]
                room = self.limit - len(self.kept)
                self.kept += chunk[:room]
                self.truncated = self.truncated or len(chunk) > room

    def text(self) -> str:
        self.join(GRACE_S)
        return bytes(self.kept).decode("utf-8", "replace")


def run_program(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout_s: float, max_bytes: int, merge: bool
) -> Ended:
    """Runs ``argv`` without a shell and without input, in this process's group, which the launcher ends as a whole.
    ``merge`` sends stderr where stdout goes."""
    program = shutil.which(argv[0], path=env.get("PATH", ""))
    if program is None:
        where = "is not there or not executable" if "/" in argv[0] else "is not on PATH"
        return Ended(not_started=f"the program {argv[0]!r} {where}")
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
        )
    except OSError as error:
        return Ended(not_started=f"the program {argv[0]!r} did not start: {error.strerror}")
    assert process.stdout is not None
    readers = [_Reader(pipe, max_bytes) for pipe in (process.stdout, process.stderr) if pipe is not None]
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        code = None
    seconds = time.monotonic() - began
    out, err = [*(reader.text() for reader in readers), ""][:2]
    return Ended(
        stdout=out,
        stderr=err,
        exit_code=None if code is None else code if code >= 0 else 128 - code,
        signal=signal.Signals(-code).name if code is not None and code < 0 else None,
        seconds=seconds,
        timed_out=code is None,
        truncated=any(reader.truncated for reader in readers),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a program and everything it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()
