"""Counts gradient synchronisation as it happens: what was reduced, how often, how many bytes, and the time blocked;
and stamps when this rank came to each collective and left it, which parts waiting for peers from the wire."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

from ddaudit.device import RunQueue

__all__ = ["MOST_STAMPS", "SyncLedger"]

MOST_STAMPS = 512
"""Collectives of one update that are stamped; an update with more of them is not stamped at all."""


class _Waiting:
    """One blocking collective of a :class:`SyncLedger`. (A generator would cost half as much again.)"""

    __slots__ = ("arrived", "group", "ledger", "queue", "queued")

    def __init__(self, ledger: SyncLedger, queue: RunQueue, group: dist.ProcessGroup | None) -> None:
        self.ledger, self.queue, self.group = ledger, queue, group

    def __enter__(self) -> None:
        self.arrived, self.queued = time.perf_counter(), self.queue.read()

    def __exit__(self, *_: object) -> None:
        self.ledger.timings += 1
        self.ledger.queued_s += self.queue.read() - self.queued
        self.ledger.waited(self.group, self.arrived, time.perf_counter())


class SyncLedger:
    """One rank's account of one update.

    ``parameters`` is how many parameters must be synchronised; each collective says how many of them it carried, so
    ``grad_syncs`` is the mean number of reductions per parameter: 1 when each was reduced once, less when one was
    left out, A when every micro-batch was synchronised. Waiting is timed on CPU ranks only: a CUDA collective
    returns to the host at once.

    ``stamps`` holds one entry per collective: index of its group in ``groups`` (global ranks), and the moments on the
    host's monotonic clock at which this rank arrived and left. No collective is added to learn when the others came:
    whoever reads all ranks' stamps can tell.
    """

    def __init__(self, device: torch.device) -> None:
        self.timed = device.type == "cpu"
        self.parameters = 0
        self.groups: list[list[int]] = []
        self._index: dict[dist.ProcessGroup, int] = {}
        self._queue = RunQueue()
        self.left: float | None = None
        """When the last blocking collective ended; None before the first."""
        self.muted = False
        """True in windows of a run that leave collectives of the loop's own records out."""
        self._clear()

    def _clear(self) -> None:
        self.reductions = self.calls = self.bytes = self.timings = self.extra = self.expert_tokens = 0
        self.wait_s = self.stage_wait_s = self.queued_s = 0.0
        self.stamps: list[tuple[int, float, float]] = []
        self.hidden_s: float | None = None
        self._launched = self._finished = self._flying_s = self._queued_before = 0.0

    def count(self, buffer: Tensor, parameters: int) -> None:
        """Notes one gradient collective over ``buffer`` that carries ``parameters`` whole parameters."""
        self.reductions += parameters
        self.calls += 1
        self.bytes += buffer.numel() * buffer.element_size()

    def waiting(self, group: dist.ProcessGroup | None) -> _Waiting:
        """Times and stamps a blocking collective over ``group``, for the length of a ``with`` block."""
        return _Waiting(self, self._queue, group)

    def waited(self, group: dist.ProcessGroup | None, arrived: float, left: float) -> None:
        """Notes a wait that was timed elsewhere. None: the group is not known, so nobody can tell who came last."""
        self.wait_s += left - arrived
        self.left = left
        if group is not None:
            self.stamps.append((self._group(group), arrived, left))

    def _group(self, group: dist.ProcessGroup) -> int:
        if group not in self._index:
            self._index[group] = len(self.groups)
            self.groups.append(dist.get_process_group_ranks(group))
        return self._index[group]

    @property
    def stamped(self) -> list[tuple[int, float, float]]:
        """The stamps of this update, if they are not too many to keep."""
        return self.stamps if len(self.stamps) <= MOST_STAMPS else []

    @contextmanager
    def off(self) -> Iterator[None]:
        """Forgets waits inside the block: bookkeeping of ours that the training would not do."""
        kept = self.wait_s, self.queued_s, self.extra, len(self.stamps)
        try:
            yield
        finally:
            self.wait_s, self.queued_s, self.extra, stamps = kept
            del self.stamps[stamps:]

    @contextmanager
    def functional_waits(self, group: dist.ProcessGroup) -> Iterator[None]:
        """Charges waits of torch's functional collectives over ``group``, which tensor parallelism uses. They offer no
        hook, so the function that all of them wait in is wrapped while the block runs (CPU ranks only). A rank counts
        as arrived when it begins to wait, shortly after it issued its part."""
        wait = functional.wait_tensor

        def timed_wait(tensor: Tensor) -> Any:
            with self.waiting(group):
                return wait(tensor)  # type: ignore[no-untyped-call]

        if self.timed:
            functional.wait_tensor = timed_wait
        try:
            yield
        finally:
            functional.wait_tensor = wait

    def launched(self) -> float:
        """An asynchronous collective was started: its gradients were ready. Returns the moment."""
        self._queued_before = self._queue.read()
        self._launched = time.perf_counter()
        return self._launched

    def finished(self, launched: float) -> None:
        """The asynchronous collective that was launched then has ended. May be called by the backend's thread."""
        begin, self._finished = max(launched, self._finished), time.perf_counter()
        self._flying_s += self._finished - begin

    def close_backward(self, group: dist.ProcessGroup | None) -> None:
        """Charges the tail of a backward pass: from the moment the last gradients were ready until the last collective
        ended, when nothing was left to compute."""
        if self._launched and self.timed:
            finished = max(self._launched, self._finished)
            self.timings += 1
            self.waited(group, self._launched, finished)
            self.hidden_s = (self.hidden_s or 0.0) + max(0.0, self._flying_s - (finished - self._launched))
            # Of the time without a core, what does not fit behind the collective's end lay before it.
            queued = self._queue.read() - self._queued_before
            self.queued_s += max(0.0, queued - (time.perf_counter() - finished))
        self._launched = self._finished = self._flying_s = 0.0

    def all_reduce(self, value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """Sums ``value`` over ``group`` in place, as bookkeeping (not counted as gradient); None is a group of one."""
        if group is not None and not self.muted:
            self.extra += 1
            with self.waiting(group):
                self.meet(value, group)
        return value

    def meet(self, value: Tensor, group: dist.ProcessGroup) -> None:
        """The collective behind :meth:`all_reduce`."""
        dist.all_reduce(value, group=group)

    def reduce_gradients(self, gradients: Sequence[Tensor], group: dist.ProcessGroup, divide_by: int) -> None:
        """Sums gradients over ``group`` through one flat buffer and divides them by ``divide_by``, in place."""
        flat = torch.cat([g.flatten() for g in gradients])
        self.count(flat, len(gradients))
        with self.waiting(group):
            dist.all_reduce(flat, group=group)
        flat /= divide_by
        for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def take(self) -> dict[str, float]:
        """Series of the update that ends here; starts the next one."""
        series: dict[str, float] = {
            "grad_syncs": self.reductions / self.parameters if self.parameters else 0.0,
            "grad_sync_calls": float(self.calls),
            "grad_sync_bytes": float(self.bytes),
            "extra_collectives": float(self.extra),
        }
        if self.timed:
            series |= {"comm_wait_s": self.wait_s, "stage_wait_s": self.stage_wait_s, "runqueue_comm_s": self.queued_s}
        if self.expert_tokens:
            series["expert_tokens"] = float(self.expert_tokens)
        if self.hidden_s is not None:
            series["comm_hidden_s"] = self.hidden_s
        self._clear()
        return series
