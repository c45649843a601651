"""Counts gradient synchronisation as it happens: what was reduced, how often, how many bytes, and the time blocked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

__all__ = ["SyncLedger"]


class SyncLedger:
    """One rank's account of one update.

    ``parameters`` is how many parameters must be synchronised; each collective says how many of them it carried, so
    ``grad_syncs`` is the mean number of reductions per parameter: 1 when each was reduced once, less when one was
    left out, A when every micro-batch was synchronised. Waiting is timed on CPU ranks only: a CUDA collective
    returns to the host at once.
    """

    def __init__(self, device: torch.device) -> None:
        self.timed = device.type == "cpu"
        self.parameters = 0
        self._clear()

    def _clear(self) -> None:
        self.reductions = self.calls = self.bytes = 0
        self.wait_s = 0.0
        self._launched = self._finished = 0.0

    def count(self, buffer: Tensor, parameters: int) -> None:
        """Notes one gradient collective over ``buffer`` that carries ``parameters`` whole parameters."""
        self.reductions += parameters
        self.calls += 1
        self.bytes += buffer.numel() * buffer.element_size()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Times a blocking collective."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.wait_s += time.perf_counter() - begin

    @contextmanager
    def off(self) -> Iterator[None]:
        """Forgets waits inside the block: bookkeeping of ours that the training would not do."""
        kept = self.wait_s
        try:
            yield
        finally:
            self.wait_s = kept

    @contextmanager
    def functional_waits(self) -> Iterator[None]:
        """Charges waits of torch's functional collectives, which tensor, expert and context parallelism use. They offer
        no hook, so the function that all of them wait in is wrapped while the block runs (CPU ranks only)."""
        wait = functional.wait_tensor

        def timed_wait(tensor: Tensor) -> Any:
            with self.waiting():
                return wait(tensor)  # type: ignore[no-untyped-call]

        if self.timed:
            functional.wait_tensor = timed_wait
        try:
            yield
        finally:
            functional.wait_tensor = wait

    def launched(self) -> None:
        """An asynchronous collective was started: its gradients were ready."""
        self._launched = time.perf_counter()

    def finished(self) -> None:
        """An asynchronous collective ended. May be called by the backend's thread."""
        self._finished = time.perf_counter()

    def close_backward(self) -> None:
        """Charges the tail of a backward pass: from the moment the last gradients were ready until the last collective
        ended, when nothing was left to compute."""
        if self._launched:
            self.wait_s += max(0.0, self._finished - self._launched)
        self._launched = self._finished = 0.0

    def all_reduce(self, value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """Sums ``value`` over ``group`` in place, as bookkeeping (not counted as gradient); None is a group of one."""
        if group is not None:
            with self.waiting():
                dist.all_reduce(value, group=group)
        return value

    def reduce_gradients(self, gradients: Sequence[Tensor], group: dist.ProcessGroup, divide_by: int) -> None:
        """Sums gradients over ``group`` through one flat buffer and divides them by ``divide_by``, in place."""
        flat = torch.cat([g.flatten() for g in gradients])
        self.count(flat, len(gradients))
        with self.waiting():
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
        }
        if self.timed:
            series["comm_wait_s"] = self.wait_s
        self._clear()
        return series
