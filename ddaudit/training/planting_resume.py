"""Planted faults of resuming: state that was saved and is not put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddaudit.training.data import Feed
from ddaudit.training.loop import Trainer
from ddaudit.training.optimizer import local
from ddaudit.training.planting import around, needs, planter


def _needs_a_checkpoint(trainer: Trainer) -> None:
    needs(trainer, trainer.params.resume_from is not None, "a checkpoint to resume from (resume_from)")


@planter("resume-sampler-ignored")
def sampler_ignored(trainer: Trainer) -> None:
    _needs_a_checkpoint(trainer)

    def deaf(make: Callable[[], Feed]) -> Feed:
        feed = make()
        around(feed.sampler, "load_state_dict", lambda load, state: None)
        return feed

    around(trainer, "make_feed", deaf)


@planter("resume-schedule-reset")
def schedule_reset(trainer: Trainer) -> None:
    _needs_a_checkpoint(trainer)

    def deaf(make: Callable[[], LRScheduler]) -> LRScheduler:
        scheduler = make()
        around(scheduler, "load_state_dict", lambda load, state: None)
        return scheduler

    around(trainer, "make_scheduler", deaf)


@planter("resume-optimizer-reset")
def optimizer_reset(trainer: Trainer) -> None:
    _needs_a_checkpoint(trainer)
    needs(trainer, trainer.params.optimizer == "adamw", "an optimizer with state (adamw)")

    def forgetful(make: Callable[[], Optimizer]) -> Optimizer:
        optimizer = make()
        seen: list[bool] = []

        def forget(inner: Optimizer, args: Any, kwargs: Any) -> None:
            if not seen:
                for slots in inner.state.values():
                    for value in slots.values():
                        local(value).zero_()
            seen.append(True)

        trainer.parallel.inner_optimizer(optimizer).register_step_pre_hook(forget)
        return optimizer

    around(trainer, "make_optimizer", forgetful)
