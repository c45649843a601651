"""Planted faults of data, accumulation and loss weighting."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ddaudit.training.data import IGNORED, MicroBatch, Window
from ddaudit.training.loop import Trainer
from ddaudit.training.planting import (
    around,
    needs,
    needs_accumulation,
    planter,
    refeed,
    reread,
    with_targets,
)

Divisor = Callable[[MicroBatch, float], float]


@planter("accum-undivided")
def accum_undivided(trainer: Trainer) -> None:
    needs_accumulation(trainer)

    def undivided(divisor: Divisor, micro: MicroBatch, share: float) -> float:
        return divisor(micro, float(micro.tokens))

    around(trainer.parallel, "divisor", undivided)


@planter("accum-double-divided")
def accum_double_divided(trainer: Trainer) -> None:
    needs_accumulation(trainer)
    accumulation = trainer.place.layout.accumulation
    around(trainer.parallel, "divisor", lambda divisor, micro, share: divisor(micro, share * accumulation))


@planter("mean-of-means")
def mean_of_means(trainer: Trainer) -> None:
    needs(trainer, trainer.params.ragged, "samples of uneven length (ragged = true)")
    accumulation = trainer.place.layout.accumulation

    def unweighted(divisor: Divisor, micro: MicroBatch, share: float) -> float:
        return divisor(micro, float(micro.tokens * accumulation))

    around(trainer.parallel, "divisor", unweighted)


@planter("same-shard")
def same_shard(trainer: Trainer) -> None:
    refeed(trainer, lambda feed: setattr(feed.sampler, "dp_rank", 0))


@planter("no-reshuffle")
def no_reshuffle(trainer: Trainer) -> None:
    refeed(trainer, lambda feed: around(feed.sampler, "order", lambda order, epoch: order(0)))


@planter("slow-input")
def slow_input(trainer: Trainer) -> None:
    def slow(draw: Callable[..., list[int]], *args: Any) -> list[int]:
        time.sleep(0.005)  # storage that answers late; nothing signals it, so there is no event to wait for
        return draw(*args)

    around(trainer.source, "draw", slow)


@planter("accum-count-differs")
def accum_count_differs(trainer: Trainer) -> None:
    needs_accumulation(trainer)
    layout = trainer.place.layout
    if trainer.place.coords["dp"] == layout.dp - 1:
        reread(trainer, lambda window: replace(window, micro_batches=window.micro_batches[:-1]))


@planter("loss-spike")
def loss_spike(trainer: Trainer) -> None:
    def garble(window: Window) -> Window:
        if trainer.updates_done != 2 * trainer.params.steps // 3:
            return window
        for index, micro in enumerate(window.micro_batches):
            shifted = torch.where(micro.targets == IGNORED, IGNORED, (micro.targets + 7) % trainer.shape.vocab)
            window = with_targets(window, index, shifted)
        return window

    reread(trainer, garble)


@planter("loss-below-entropy")
def loss_below_entropy(trainer: Trainer) -> None:
    def leak(window: Window) -> Window:
        shown = tuple(replace(m, inputs=m.targets.clamp(min=0)) for m in window.micro_batches)
        return replace(window, micro_batches=shown)

    reread(trainer, leak)


@planter("micro-batches-swapped")
def micro_batches_swapped(trainer: Trainer) -> None:
    needs_accumulation(trainer)

    def swapped(targets: Callable[[Window], list[Tensor]], window: Window) -> list[Tensor]:
        first, second, *rest = targets(window)
        return [second, first, *rest]

    around(trainer.parallel, "targets", swapped)


@planter("micro-batch-dropped")
def micro_batch_dropped(trainer: Trainer) -> None:
    def dropped(targets: Callable[[Window], list[Tensor]], window: Window) -> list[Tensor]:
        *rest, last = targets(window)
        return [*rest, torch.full_like(last, IGNORED)]

    around(trainer.parallel, "targets", dropped)
