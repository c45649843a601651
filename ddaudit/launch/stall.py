"""Reads and writes of storage that never come back: a server that went away keeps its clients in the kernel, where no
signal handler of theirs runs. Another thread watches the time, says so in one line, and ends the process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ddaudit.errors import Exit

__all__ = ["PATIENCE_S", "Patience", "answering"]

#: A write takes milliseconds. A server that reboots is away for minutes, but agents and schedulers do not wait: what
#: finished is kept, and the run can be resumed.
PATIENCE_S = 60.0
LOOKS = 8


def _leave(path: Path, waited_s: float) -> None:
    text = f"ddaudit: {path}: the run folder's storage has not answered for {waited_s:.0f} s; fix: when it is back, "
    os.write(2, f"{text}`ddaudit run --resume {path}`\n".encode())
    os._exit(Exit.INCONCLUSIVE)  # ranks and their server die with us; agents see the connection end


class Patience:
    """Watches what one thread reads and writes; calls ``give_up`` (path, seconds waited) once when it takes
    ``limit_s``, or what the environment says.

    Time is counted in looks: a process that was stopped, or starved, did not wait for storage meanwhile.
    """

    def __init__(self, limit_s: float | None = None, give_up: Callable[[Path, float], None] = _leave) -> None:
        self._limit_s, self._give_up = limit_s, give_up
        self._path: Path | None = None
        self._number = 0
        self._pid = 0

    @contextmanager
    def watching(self, path: Path) -> Iterator[None]:
        """A read or write below ``path`` goes on inside."""
        if self._pid != os.getpid():  # threads do not survive a fork
            self._pid = os.getpid()
            threading.Thread(target=self._watch, name="ddaudit-storage", daemon=True).start()
        self._number += 1
        self._path = path
        try:
            yield
        finally:
            self._path = None

    def _watch(self) -> None:
        tick_s = (self._limit_s or _limit_s()) / LOOKS
        number, looks = 0, 0
        while True:
            time.sleep(tick_s)
            path = self._path
            looks = looks + 1 if path is not None and number == self._number else 0
            number = self._number
            if path is not None and looks >= LOOKS:
                self._give_up(path, looks * tick_s)
                return


def _limit_s() -> float:
    """The environment's ``DDAUDIT_STORAGE_PATIENCE_S``, where it is a number of at least one second."""
    try:
        return max(1.0, float(os.environ["DDAUDIT_STORAGE_PATIENCE_S"]))
    except (KeyError, ValueError):
        return PATIENCE_S


answering = Patience().watching
