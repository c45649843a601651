"""Windows of a run in which one suspect was taken out: what an A/B probe compares with the windows between them."""

from __future__ import annotations

__all__ = ["SETTLING", "WINDOWS", "window_code"]

WINDOWS: dict[str, str] = {
    "normal": "the step as it is",
    "memory-input": "batches replayed from memory; the loader still reads, but nobody waits for it",
    "no-sync": "no collective at all: ranks neither exchange gradients nor wait for each other",
    "no-logging": "collectives for gradients only, none that the loop adds for its own records",
    "sync-once": "gradients are synchronised with the last micro-batch only",
    "solo": "one rank at a time, without collectives",
    "swap": "every rank works on the batch of its neighbour",
    "no-gc": "garbage collection is off",
    "one-thread": "one thread for operators",
    "keep-memory": "freed memory stays with the process instead of going back to the system",
    "no-timers": "no phase is timed and no collective is stamped; only the whole step is",
    "idle-workers": "batches replayed from memory, and the loader's workers are stopped",
    "no-plant": "the planted fault rests, where it acts in the rank itself: what it costs in this very run",
}
"""Name of a window -> what is different in it."""

SETTLING = -1
"""Code of the first step of a window: what it does still holds some of the window before."""


def window_code(name: str) -> int:
    """Number by which the series ``window`` records that a step lay in such a window."""
    return list(WINDOWS).index(name)
