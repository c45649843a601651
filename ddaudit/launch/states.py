"""What a process is doing, seen from outside: /proc only, so it works on a process that cannot answer."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddaudit.launch.process import stat_fields

__all__ = ["LivingState", "Sample", "sample", "state_between"]

LivingState = Literal["on-cpu", "sleeping", "disk", "stopped", "zombie"]

#: Share of one core above which a process counts as running. A rank waiting in gloo uses less than 1 %, one that spins
#: with four ranks on two loaded cores still gets a quarter.
ON_CPU_SHARE = 0.2
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """One look at a process: kernel state letters of all threads, and CPU seconds of the whole process."""

    at: float
    letters: str
    cpu_s: float


def sample(pid: int) -> Sample | None:
    """Looks at a process once; None when it is gone."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    try:
        threads = [stat_fields(pid, int(t.name)) for t in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        threads = []
    letters = fields[0] + "".join(t[0] for t in threads if t)
    return Sample(time.monotonic(), letters, (int(fields[11]) + int(fields[12])) * _TICK_S)


def state_between(first: Sample | None, second: Sample | None) -> LivingState | None:
    """The state over the time between two samples; None when the process was gone at the second."""
    if second is None:
        return None
    leader = second.letters[0]
    if leader in "Tt":
        return "stopped"
    if leader in "ZX":
        return "zombie"
    if first is not None and second.at > first.at:
        if (second.cpu_s - first.cpu_s) / (second.at - first.at) >= ON_CPU_SHARE:
            return "on-cpu"
        # A thread seen in uninterruptible sleep twice waits for a device or a file server, not for a peer.
        if "D" in second.letters and "D" in first.letters:
            return "disk"
    return "sleeping"
