"""Storage that breaks in ``benchmarks/chaos.py``: full, read-only, or hanging."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Storage", "hang_with"]

SIZE_BYTES = 24 << 20
#: What opens, makes, moves or lists a file.
TOUCHES = ("open", "os.mkdir", "os.rename", "os.listdir", "os.scandir", "os.remove", "os.rmdir", "os.truncate")


def hang_with(root: Path, pipe: Path) -> None:
    """From now on this process, and what it forks, hangs at the next file below ``root`` that it opens, makes, moves or
    lists while ``pipe`` is there: as on a server that went away, in the kernel, where no signal but KILL arrives."""
    below = str(root)

    def hook(event: str, told: tuple[object, ...]) -> None:
        if event in TOUCHES and any(isinstance(p, str | os.PathLike) and str(p).startswith(below) for p in told[:2]):
            _wait_in_kernel(pipe)

    sys.addaudithook(hook)


def _wait_in_kernel(pipe: Path) -> None:
    while pipe.exists():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            os.close(os.open(pipe, os.O_WRONLY))
        except FileNotFoundError:
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Storage:
    """A small file system of its own for the run folders, which can fill up, go read-only, or hang."""

    def __init__(self, root: Path) -> None:
        self.root, self.pipe = root, root.with_name("hang")
        self._undo: list[list[str]] = []
        self._ballast: Path | None = None

    @contextmanager
    def mounted(self) -> Iterator[None]:
        self.root.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "none", str(self.root)], check=True)
        try:
            yield
        finally:
            self.heal()
            subprocess.run(["umount", "-l", str(self.root)], check=True)

    def break_(self, how: str) -> None:
        {"full": self._fill, "read-only": self._freeze, "hangs": self._hang}[how]()

    def _fill(self) -> None:
        self._ballast = self.root / ".ballast"
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def _freeze(self) -> None:
        # A mount with files open for writing cannot be made read-only, a second one over it can.
        where = str(next((p for p in self.root.iterdir() if p.is_dir()), self.root))
        subprocess.run(["mount", "--bind", where, where], check=True)
        self._undo.append(["umount", "-l", where])
        subprocess.run(["mount", "-o", "remount,ro,bind", where], check=True)

    def _hang(self) -> None:
        os.mkfifo(self.pipe)

    def heal(self) -> None:
        while self._undo:
            subprocess.run(self._undo.pop(), check=True)
        if self._ballast is not None:
            self._ballast.unlink(missing_ok=True)
        self._ballast = None
        if self.pipe.exists():
            reader = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)
            self.pipe.unlink()
            time.sleep(0.2)  # whoever opens it at this moment gets through
            os.close(reader)
