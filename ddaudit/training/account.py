"""Closes the books of a step: what the timers counted, what the timers themselves cost, and who arrived when."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ddaudit.device import Stopwatch
from ddaudit.training.ledger import SyncLedger

__all__ = ["StepAccount", "timer_costs_s"]


def timer_costs_s(device: torch.device, calls: int = 16, batches: int = 5) -> tuple[float, float]:
    """CPU seconds of one timed span and of one timed wait, measured on such that hold nothing: the median of batches,
    since the first calls of a process and an interrupt cost more than any later one."""
    watch, ledger = Stopwatch(device), SyncLedger(device)

    def cost(timer: Callable[[], AbstractContextManager[None]]) -> float:
        batch_s = []
        for _ in range(batches):
            begin = time.thread_time()
            for _ in range(calls):
                with timer():
                    pass
            batch_s.append((time.thread_time() - begin) / calls)
        return statistics.median(batch_s)

    return cost(lambda: watch.span("host_s")), cost(lambda: ledger.waiting(None))


class StepAccount:
    """What one rank's timers say of each update. ``stamps`` belongs to the update that was closed last: ``begin_s``,
    the monotonic clock at its start, ``groups``, the ranks of each group that met, and ``stamps``, a triple (group,
    arrived, left; seconds since the start) for each collective."""

    def __init__(self, device: torch.device) -> None:
        self.span_cost_s, self.wait_cost_s = timer_costs_s(device)
        self.stamps: dict[str, Any] = {}
        self.reopen()

    def reopen(self) -> None:
        """Starts to count overhead from now: what came before was the run's own work."""
        self._closed = time.perf_counter()

    def close(self, watch: Stopwatch, ledger: SyncLedger) -> dict[str, float]:
        """Series of the update that ends here. Its overhead is what was paused in it, and all since the previous one
        was closed: digests, records and captures, which the training would not do."""
        between = watch.begin_s - self._closed
        values = watch.read()
        values["overhead_s"] += max(0.0, between)
        values["timer_s"] = watch.calls * self.span_cost_s + ledger.timings * self.wait_cost_s
        marks = [[group, arrived - watch.begin_s, left - watch.begin_s] for group, arrived, left in ledger.stamped]
        self.stamps = {"begin_s": watch.begin_s}
        if marks:
            self.stamps |= {"groups": ledger.groups, "stamps": [[g, round(a, 6), round(b, 6)] for g, a, b in marks]}
        values |= ledger.take()
        self.reopen()
        return values
