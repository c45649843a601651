"""Plants faults into a trainer, before it is prepared. Each function replaces one step of the training path by a wrong
one; :data:`~ddaudit.training.faults.FAULTS` says in words what it does and where it can occur.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ddaudit.errors import UsageProblem
from ddaudit.training import schedule
from ddaudit.training.data import Feed, Window
from ddaudit.training.faults import require
from ddaudit.training.loop import Trainer
from ddaudit.training.optimizer import local, optimizer_class, scale_

__all__ = ["PLANTS", "Plants", "plant"]

Planter = Callable[[Trainer], None]
PLANTS: dict[str, Planter] = {}

VICTIM = "norm.weight"
"""The parameter that one-parameter faults hit: small, replicated under every kind that replicates, and used last."""


def planter(name: str) -> Callable[[Planter], Planter]:
    def register(function: Planter) -> Planter:
        PLANTS[name] = function
        return function

    return register


def plant(trainer: Trainer) -> None:
    """Plants the fault that the trainer's parameters name.

    Raises:
        UsageProblem: no such fault, or it cannot occur in this training.
    """
    from ddaudit.training import (  # noqa: F401 - they fill PLANTS
        planting_data,
        planting_load,
        planting_resume,
        planting_state,
        planting_sync,
        planting_time,
        planting_workers,
    )

    params = trainer.params
    require(params.plant, params.parallel, params.variant)
    PLANTS[params.plant](trainer)


class Plants:
    """The plants of this process. ``resting`` while a window of the run leaves them out."""

    resting = False


def around(owner: Any, name: str, wrong: Callable[..., Any]) -> None:
    """Replaces the method ``name`` of ``owner`` by ``wrong(original, *arguments)``, but while plants rest."""
    original = getattr(owner, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if Plants.resting else wrong(original, *args, **kwargs)

    setattr(owner, name, called)


def is_last_rank(trainer: Trainer) -> bool:
    return trainer.place.rank == trainer.place.world_size - 1


def needs(trainer: Trainer, met: bool, what: str) -> None:
    """Refuses a plant that would change nothing."""
    if not met:
        raise UsageProblem(f"plant {trainer.params.plant!r} changes nothing here", expected=what)


def needs_accumulation(trainer: Trainer) -> None:
    needs(trainer, trainer.place.layout.accumulation > 1, "an accumulation of 2 or more")


@planter("loss-nan")
def loss_nan(trainer: Trainer) -> None:
    def poisoned(synchronise: Callable[[], None]) -> None:
        synchronise()
        if trainer.updates_done == 2:
            gradient = local(next(iter(trainer.parallel.gradients().values())))
            gradient.view(-1)[:1] = float("nan")

    around(trainer.parallel, "synchronise", poisoned)


@planter("grad-vanishing")
def grad_vanishing(trainer: Trainer) -> None:
    def shrunk(synchronise: Callable[[], None]) -> None:
        synchronise()
        scale_(trainer.parallel.gradients().values(), torch.tensor(1e-12))

    around(trainer.parallel, "synchronise", shrunk)


@planter("init-scaled")
def init_scaled(trainer: Trainer) -> None:
    def scaled(build: Callable[[nn.Module], None], model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter("head.weight").mul_(50.0)
        build(model)

    around(trainer.parallel, "build", scaled)


def _with_lr(trainer: Trainer, factor: float) -> None:
    def scaled(make: Callable[[], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        optimizer = make()
        for group in optimizer.param_groups:
            group["lr"] *= factor
        return optimizer

    around(trainer, "make_optimizer", scaled)


@planter("loss-flat")
def loss_flat(trainer: Trainer) -> None:
    _with_lr(trainer, 0.0)


@planter("loss-diverged")
def loss_diverged(trainer: Trainer) -> None:
    _with_lr(trainer, 100.0)


@planter("lr-differs")
def lr_differs(trainer: Trainer) -> None:
    if is_last_rank(trainer):
        _with_lr(trainer, 1.1)


@planter("no-warmup")
def no_warmup(trainer: Trainer) -> None:
    needs(trainer, trainer.params.warmup_steps > 0, "a warm-up to leave out")
    around(trainer, "make_scheduler", lambda make: schedule.scheduler(trainer.optimizer, trainer.params, 0))


@planter("lr-per-micro-batch")
def lr_per_micro_batch(trainer: Trainer) -> None:
    needs_accumulation(trainer)

    def ticks(tick: Callable[[Window], None], window: Window) -> None:
        for _ in window.micro_batches:
            tick(window)

    around(trainer, "tick", ticks)


@planter("zero-grad-missed")
def zero_grad_missed(trainer: Trainer) -> None:
    def forgets(clear: Callable[[], None]) -> None:
        if trainer.updates_done != 0:
            clear()

    around(trainer, "clear_gradients", forgets)


@planter("optimizer-empty")
def optimizer_empty(trainer: Trainer) -> None:
    def empty(make: Callable[[], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        kind, options = optimizer_class(trainer.params)
        return kind([{"params": []}], **options)

    around(trainer, "make_optimizer", empty)


@planter("optimizer-stale")
def optimizer_stale(trainer: Trainer) -> None:
    def stale(make: Callable[[], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        kind, options = optimizer_class(trainer.params)
        copies: list[Tensor] = [w.detach().clone() for w in trainer.parallel.named_parameters().values()]
        return kind([c.requires_grad_() for c in copies], **(options | {"foreach": False}))

    around(trainer, "make_optimizer", stale)


def reread(trainer: Trainer, change: Callable[[Window], Window]) -> None:
    """Changes every window after it was read."""
    around(trainer, "window", lambda read: change(read()))


def refeed(trainer: Trainer, change: Callable[[Feed], Any]) -> None:
    """Changes the feed once it was made."""

    def made(make: Callable[[], Feed]) -> Feed:
        feed = make()
        change(feed)
        return feed

    around(trainer, "make_feed", made)


def with_targets(window: Window, index: int, targets: Tensor) -> Window:
    """The window with other targets in one micro-batch."""
    micro = list(window.micro_batches)
    micro[index] = replace(micro[index], targets=targets)
    return replace(window, micro_batches=tuple(micro))
