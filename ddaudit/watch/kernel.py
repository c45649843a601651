"""What the kernel tells of this process: CPU time, waiting for a core, resident memory. Asked after every update."""

from __future__ import annotations

import math
import os
import threading
import time

__all__ = ["Kernel"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_RESIDENT, _QUEUED = "/proc/self/statm", "/proc/thread-self/schedstat"


class Kernel:
    """Keeps the kernel's files open, because opening one costs more than reading it. Counts go on from update to update
    even where nobody asks."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, int], int] = {}
        self._last_cpu = time.process_time()
        self._last_queued = 0.0

    def cpu_seconds(self) -> float:
        """CPU time of the process since this was last asked."""
        now = time.process_time()
        spent, self._last_cpu = now - self._last_cpu, now
        return spent

    def runqueue_seconds(self) -> float:
        """Time that this thread waited for a core since this was last asked (schedstat's second field)."""
        now = self._number(_QUEUED, threading.get_ident()) / 1e9
        waited, self._last_queued = now - self._last_queued, now
        return waited if waited == waited else 0.0

    def resident_bytes(self) -> float:
        """Resident memory of this process."""
        return self._number(_RESIDENT, 0) * _PAGE

    def _number(self, path: str, owner: int) -> float:
        """The second number in a file; NaN where there is none."""
        try:
            file = self._files.get((path, owner))
            if file is None:
                file = self._files[path, owner] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return float(os.pread(file, 256, 0).split(None, 2)[1])
        except (OSError, ValueError, IndexError):  # a script may close what it did not open
            self._files.pop((path, owner), None)
            return math.nan
