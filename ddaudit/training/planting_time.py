"""Planted faults of time: nothing is computed wrongly, but some line of the step gets longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddaudit.training.data import Window
from ddaudit.training.loop import Trainer
from ddaudit.training.planting import around, is_last_rank, planter


def length_s(trainer: Trainer, default_ms: float) -> float:
    """How long the planted delay lasts: what the run asks for, or the fault's own length."""
    asked = trainer.params.plant_ms
    return (default_ms if asked is None else asked) / 1e3


def work(seconds: float) -> None:
    """Multiplies matrices for so much CPU time: on a busy machine it takes longer, as true work would."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        torch.ones(64, 64) @ torch.ones(64, 64)


def _computes_longer(trainer: Trainer, seconds: float) -> None:
    def slow(accumulate: Callable[[Window], Tensor], window: Window) -> Tensor:
        with trainer.watch.span("forward_s"):
            work(seconds)
        return accumulate(window)

    around(trainer.parallel, "accumulate", slow)


@planter("slow-rank")
def slow_rank(trainer: Trainer) -> None:
    if is_last_rank(trainer):
        _computes_longer(trainer, length_s(trainer, 50.0))


@planter("slow-compute")
def slow_compute(trainer: Trainer) -> None:
    _computes_longer(trainer, length_s(trainer, 50.0))


@planter("slow-input")
def slow_input(trainer: Trainer) -> None:
    seconds = length_s(trainer, 5.0)

    def slow(draw: Callable[..., list[int]], *args: Any) -> list[int]:
        time.sleep(seconds)  # storage that answers late; nothing signals it, so there is no event to wait for
        return draw(*args)

    around(trainer.source, "draw", slow)


@planter("slow-input-rank")
def slow_input_rank(trainer: Trainer) -> None:
    seconds = length_s(trainer, 50.0)

    def slow(window: Callable[[], Window]) -> Window:
        time.sleep(seconds)
        return window()

    if is_last_rank(trainer):
        around(trainer, "window", slow)


@planter("late-launch")
def late_launch(trainer: Trainer) -> None:
    seconds = length_s(trainer, 50.0)

    def late(accumulate: Callable[[Window], Tensor], window: Window) -> Tensor:
        work(seconds)  # what a slow callback costs before anything is launched
        return accumulate(window)

    around(trainer.parallel, "accumulate", late)


@planter("slow-collective")
def slow_collective(trainer: Trainer) -> None:
    seconds, armed = length_s(trainer, 50.0), list[bool]()

    def arm(accumulate: Callable[[Window], Tensor], window: Window) -> Tensor:
        armed[:] = [True]  # what is reduced between updates is the recorder's own
        return accumulate(window)

    def slow(meet: Callable[..., None], value: Tensor, group: dist.ProcessGroup) -> None:
        meet(value, group)
        if armed:
            armed.clear()
            time.sleep(seconds)  # the wire is slow, for all ranks alike

    around(trainer.parallel, "accumulate", arm)
    around(trainer.parallel.ledger, "meet", slow)


@planter("slow-link")
def slow_link(trainer: Trainer) -> None:
    seconds = length_s(trainer, 50.0)

    def slow(reduced: Callable[..., Tensor], done: torch.futures.Future[list[Tensor]], launched: float) -> Tensor:
        time.sleep(seconds * done.value()[0].numel() / trainer.parameters)
        return reduced(done, launched)

    around(trainer.parallel, "_reduced", slow)


@planter("slow-rank-blocked")
def slow_rank_blocked(trainer: Trainer) -> None:
    seconds = length_s(trainer, 50.0)

    def slow(accumulate: Callable[[Window], Tensor], window: Window) -> Tensor:
        with trainer.watch.span("forward_s"):
            time.sleep(seconds)  # a device that takes longer uses no CPU time meanwhile
        return accumulate(window)

    if is_last_rank(trainer):
        around(trainer.parallel, "accumulate", slow)


@planter("lateness-roams")
def lateness_roams(trainer: Trainer) -> None:
    seconds, place = length_s(trainer, 50.0), trainer.place

    def slow(accumulate: Callable[[Window], Tensor], window: Window) -> Tensor:
        if trainer.updates_done % place.world_size == place.rank:
            with trainer.watch.span("forward_s"):
                time.sleep(seconds)
        return accumulate(window)

    around(trainer.parallel, "accumulate", slow)


@planter("host-work-on-rank0")
def host_work_on_rank0(trainer: Trainer) -> None:
    if trainer.place.rank == 0:
        late_launch(trainer)


@planter("forced-sync")
def forced_sync(trainer: Trainer) -> None:
    meetings = max(1, round(length_s(trainer, 50.0) * 1e3 * SYNCS_PER_MS))

    def synced(accumulate: Callable[[Window], Tensor], window: Window) -> Tensor:
        total = accumulate(window)
        with trainer.watch.span("loss_s"):
            for _ in range(meetings):  # a metric of each layer, averaged over the ranks and read at once
                float(trainer.parallel.ledger.all_reduce(total.clone(), trainer.parallel.loss_group))
        return total

    around(trainer.parallel, "accumulate", synced)


SYNCS_PER_MS = 4.0
"""A small all-reduce over loopback takes a quarter of a millisecond."""


@planter("stage-imbalance")
def stage_imbalance(trainer: Trainer) -> None:
    seconds = length_s(trainer, 50.0) / trainer.place.layout.accumulation

    def slow(loss: Callable[..., Tensor], *args: Any) -> Tensor:
        with trainer.watch.span("forward_s"):
            work(seconds)  # only the last stage computes the loss: here it owns a head too large for its share
        return loss(*args)

    around(trainer.parallel, "micro_loss", slow)


@planter("untimed-work")
def untimed_work(trainer: Trainer) -> None:
    seconds = length_s(trainer, 50.0)

    def late(read: Callable[[], dict[str, float]]) -> dict[str, float]:
        work(seconds)
        return read()

    around(trainer.watch, "read", late)
