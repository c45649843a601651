"""Planted faults of checkpoints: something that a resumed run would need is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

from ddaudit.training.loop import Trainer
from ddaudit.training.planting import around, is_last_rank, needs, planter


def _without(trainer: Trainer, key: str) -> None:
    needs(trainer, trainer.params.checkpoint_after is not None, 'a checkpoint ("end" or "step:K")')

    def partial(state: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in state().items() if name != key}

    around(trainer, "state", partial)


@planter("ckpt-no-sampler")
def no_sampler(trainer: Trainer) -> None:
    _without(trainer, "sampler")


@planter("ckpt-no-scheduler")
def no_scheduler(trainer: Trainer) -> None:
    _without(trainer, "scheduler")


@planter("ckpt-no-rng")
def no_rng(trainer: Trainer) -> None:
    _without(trainer, "rng")


@planter("ckpt-no-step")
def no_step(trainer: Trainer) -> None:
    _without(trainer, "global_step")


@planter("ckpt-no-optimizer")
def no_optimizer(trainer: Trainer) -> None:
    needs(trainer, trainer.params.optimizer == "adamw", "an optimizer with state (adamw)")
    _without(trainer, "optimizer")


class ForgetfulPlanner(DefaultSavePlanner):
    """Plans like everyone else, then writes none of its optimizer tensors: the index names bytes that do not exist."""

    def finish_plan(self, central_plan: SavePlan) -> SavePlan:
        plan = super().finish_plan(central_plan)
        kept = [item for item in plan.items if not item.index.fqn.startswith("optimizer.")]
        self.plan = replace(plan, items=kept)
        return self.plan


@planter("ckpt-no-optimizer-shard")
def no_optimizer_shard(trainer: Trainer) -> None:
    needs(trainer, trainer.params.checkpoint_after is not None, 'a checkpoint ("end" or "step:K")')
    needs(trainer, trainer.params.optimizer == "adamw", "an optimizer with state (adamw)")
    if is_last_rank(trainer):
        around(trainer, "planner", lambda make: ForgetfulPlanner())
