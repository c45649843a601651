"""Reads and writes of storage that never come back: a server that went away keeps its clients in the kernel, where no
signal handler of theirs runs. Another thread watches the time, says so in one line, and ends the process."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ddaudit.errors import Exit

__all__ = ["PATIENCE_S", "Patience", "answering", "knock"]

#: A write takes milliseconds. A server that reboots is away for minutes, but agents and schedulers do not wait: what
#: finished is kept, and the run can be resumed.
PATIENCE_S = 60.0
LOOKS = 8


def _leave(path: Path, waited_s: float) -> None:
    text = f"ddaudit: {path}: the run folder's storage has not answered for {waited_s:.0f} s; fix: when it is back, "
    os.write(2, f"{text}`ddaudit run --resume {path}`\n".encode())
    os._exit(Exit.INCONCLUSIVE)  # ranks and their server die with us; agents see the connection end


class Patience:
    """Watches what threads read and write; calls ``give_up`` (path, seconds waited) once when one of these takes
    ``limit_s``, or what the environment says.

    Time is counted in looks: a process that was stopped, or starved, did not wait for storage meanwhile.
    """

    def __init__(self, limit_s: float | None = None, give_up: Callable[[Path, float], None] = _leave) -> None:
        self._limit_s, self._give_up = limit_s, give_up
        self._numbers = itertools.count()
        self._open: dict[int, tuple[int, Path]] = {}
        """By thread, the number of what goes on there, and its folder."""
        self._pid = 0

    @contextmanager
    def watching(self, path: Path) -> Iterator[None]:
        """A read or write below ``path`` goes on inside; one within another is watched by itself."""
        if self._pid != os.getpid():  # threads do not survive a fork
            self._pid, self._open = os.getpid(), {}
            threading.Thread(target=self._watch, name="ddaudit-storage", daemon=True).start()
        me = threading.get_ident()
        before = self._open.get(me)
        self._open[me] = (next(self._numbers), path)
        try:
            yield
        finally:
            if before is None:
                self._open.pop(me, None)
            else:
                self._open[me] = (next(self._numbers), before[1])

    def _watch(self) -> None:
        tick_s = (self._limit_s or _limit_s()) / LOOKS
        looks: dict[int, int] = {}
        while True:
            time.sleep(tick_s)
            going = dict(self._open)
            looks = {number: looks.get(number, 0) + 1 for number, _ in going.values()}
            for number, path in going.values():
                if looks[number] > LOOKS:
                    self._give_up(path, (looks[number] - 1) * tick_s)
                    return


def _limit_s() -> float:
    """The environment's ``DDAUDIT_STORAGE_PATIENCE_S``, where it is a number of at least one second."""
    try:
        return max(1.0, float(os.environ["DDAUDIT_STORAGE_PATIENCE_S"]))
    except (KeyError, ValueError):
        return PATIENCE_S


answering = Patience().watching


def knock(run_dir: Path, folder: Path | None = None) -> None:
    """Opens the files of a folder (default: the run folder) once, watched, before something reads or writes there that
    takes a time of its own and so is not watched."""
    with answering(run_dir), suppress(OSError):  # whoever comes to read or write tells that better
        for entry in os.scandir(folder or run_dir):
            if entry.is_file(follow_symlinks=False):
                with open(entry.path, "rb") as file:  # noqa: PTH123 - thousands of files
                    file.read(1)
