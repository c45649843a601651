"""Pipeline parallelism: consecutive blocks form stages, one or two per rank; micro-batches flow through them.

The global batch is cut into A micro-batches. GPipe runs all forwards, then all backwards; 1F1B alternates, so fewer
activations wait; the interleaved schedule gives each rank two stages that are far apart, so the pipeline fills faster.
The idle share (bubble) of GPipe and 1F1B is (p - 1) / (A + p - 1) for p stages (Narayanan et al., 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, schedules

from ddaudit.device import Stopwatch
from ddaudit.errors import UsageProblem
from ddaudit.training.data import IGNORED, MicroBatch, Window
from ddaudit.training.model import Transformer, token_loss
from ddaudit.training.parallel.contract import Parallel

__all__ = ["PipelineParallel", "TimedStage"]


class TimedStage(PipelineStage):
    """A stage that times its own work. Waits for other stages are timed where the schedule waits (see ledger.py)."""

    def __init__(self, *args: Any, watch: Stopwatch, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.watch = watch

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.watch.span("forward_s"):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.watch.span("backward_s"):
            return super().backward_one_chunk(*args, **kwargs)


class PipelineParallel(Parallel):
    """torch.distributed.pipelining over all ranks."""

    implementation = "torch.distributed.pipelining"

    def build(self, model: Transformer) -> None:
        group, ranks = self.place.group("pp"), self.place.layout.axes["pp"]
        self.loss_group = group
        per_rank = 2 if self.params.form == "interleaved" else 1
        count = ranks * per_rank
        if model.shape.layers % count:
            raise UsageProblem(f"{model.shape.layers} blocks do not spread evenly over {count} stages")
        indices = [self.place.coords["pp"] + ranks * i for i in range(per_rank)]
        self.parts = nn.ModuleList([_part(model, index, count) for index in indices])
        self.model = self.module = self.parts
        device = self.place.device
        stages = [
            TimedStage(part, index, count, device, group=group, watch=self.watch)
            for part, index in zip(self.parts, indices, strict=True)
        ]
        self.schedule = self._schedule(stages)
        self.first, self.last = indices[0] == 0, indices[-1] == count - 1
        self._share, self._sums = 1.0, list[Tensor]()

    def _schedule(self, stages: Sequence[PipelineStage]) -> Any:
        """``scale_grads`` is off: our loss is divided by the tokens of the whole window already."""
        micro_batches = self.place.layout.accumulation
        options: dict[str, Any] = {"loss_fn": self.micro_loss, "scale_grads": False}
        if self.params.form == "interleaved":
            return ScheduleInterleaved1F1B(list(stages), micro_batches, **options)
        kind = Schedule1F1B if self.params.form == "1f1b" else ScheduleGPipe
        return kind(stages[0], micro_batches, **options)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return {name: weight for part in self.parts for name, weight in part.named_parameters()}

    def replicated(self) -> list[str]:
        return []

    def targets(self, window: Window) -> list[Tensor]:
        """Targets by micro-batch, as the last stage pairs them with outputs."""
        return [micro.targets for micro in window.micro_batches]

    def micro_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of one micro-batch on the last stage, divided for the backward pass."""
        tokens = int((targets != IGNORED).sum())
        micro = MicroBatch(targets, targets, targets, max(1, tokens))
        with self.watch.span("forward_s"):
            loss = token_loss(logits, targets)
        self._sums.append(loss.detach())
        return loss / self.divisor(micro, self._share)

    def accumulate(self, window: Window) -> Tensor:
        """Runs the schedule over the window; only the last stage sees the loss."""
        self._share = self.share(window)
        inputs = (torch.cat([m.inputs for m in window.micro_batches]),) if self.first else ()
        more = {"target": torch.cat(self.targets(window))} if self.last else {}
        self._sums.clear()
        self.schedule.step(*inputs, **more)
        # The first step also runs the loss once on empty tensors, to learn the shapes of gradients: not a micro-batch.
        count = len(window.micro_batches)
        del self._sums[:-count], self.divisors[:-count]
        total = torch.zeros((), dtype=torch.float64, device=self.place.device)
        return total + sum(self._sums)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Times the schedule's waits for activations and gradients of other stages: all of them wait in one function of
        torch's, which is wrapped while the run lasts (CPU ranks only). A wait is for one neighbour, not for a group."""
        wait, ledger = schedules._wait_batch_p2p, self.ledger

        def timed_wait(work: list[dist.Work]) -> None:
            if not ledger.timed:  # a window without timers
                wait(work)
                return
            span = self.watch.span("exchange_s")
            with span:
                wait(work)
            ledger.waited(None, span.begin, span.end)
            ledger.queued_s += span.queued
            ledger.stage_wait_s += span.seconds()

        if ledger.timed:
            schedules._wait_batch_p2p = timed_wait
        try:
            yield
        finally:
            schedules._wait_batch_p2p = wait

    def own_tokens(self, window: Window) -> int:
        return window.tokens if self.last else 0

    def split_over(self) -> dict[str, Sequence[dist.ProcessGroup]]:
        return {name: [self.place.group("pp")] for name in self.named_parameters()}


def _part(model: Transformer, index: int, count: int) -> Transformer:
    """The ``index``-th of ``count`` stages, taken from the full model, so that its weights and names are the same."""
    per_stage = model.shape.layers // count
    part = Transformer.__new__(Transformer)
    nn.Module.__init__(part)
    part.shape, part.embed, part.norm, part.head = model.shape, model.embed, model.norm, model.head
    part.blocks = model.blocks
    layers = range(index * per_stage, (index + 1) * per_stage)
    return part.keep(layers, first=index == 0, last=index == count - 1)
