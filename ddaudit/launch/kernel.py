"""Counters of the kernel that explain a SIGKILL which nobody sent."""

from __future__ import annotations

from pathlib import Path

__all__ = ["oom_kills"]


def oom_kills() -> int | None:
    """Processes ended for memory on this host since boot (``oom_kill`` of /proc/vmstat); None where unknown."""
    try:
        lines = Path("/proc/vmstat").read_text("ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None
