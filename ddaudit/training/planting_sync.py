"""Planted faults of gradient synchronisation, replicas, tensor, expert and context parallelism."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddaudit.training.loop import Trainer
from ddaudit.training.model import Transformer
from ddaudit.training.optimizer import local
from ddaudit.training.planting import VICTIM, around, is_last_rank, needs, needs_accumulation, planter
from ddaudit.training.planting_time import slow_link

Context = AbstractContextManager[None]


@planter("grad-sum")
def grad_sum(trainer: Trainer) -> None:
    trainer.parallel.average_over = 1


@planter("param-unsynced")
def param_unsynced(trainer: Trainer) -> None:
    def ignoring(build: Callable[[Transformer], None], model: Transformer) -> None:
        ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, [VICTIM])
        build(model)

    if trainer.params.parallel == "data" and trainer.params.form != "zero2":
        around(trainer.parallel, "build", ignoring)
    else:
        around(trainer.parallel, "synchronised", lambda names: [name for name in names() if name != VICTIM])


@planter("sync-every-micro-step")
def sync_every_micro_step(trainer: Trainer) -> None:
    needs_accumulation(trainer)
    around(trainer.parallel, "synchronising", lambda synchronising, last: synchronising(True))
    if trainer.params.plant_ms is not None and trainer.params.parallel == "data":
        slow_link(trainer)  # what it costs shows on a wire that takes its time


@planter("sync-skipped-step")
def sync_skipped_step(trainer: Trainer) -> None:
    needs(trainer, trainer.params.steps > 1, "2 steps or more")

    def skipped(synchronising: Callable[[bool], Context], last: bool) -> Context:
        return synchronising(last and trainer.updates_done != 1)

    def skips(synchronise: Callable[[], None]) -> None:
        if trainer.updates_done != 1:
            synchronise()

    around(trainer.parallel, "synchronising", skipped)
    around(trainer.parallel, "synchronise", skips)


@planter("clip-before-sync")
def clip_before_sync(trainer: Trainer) -> None:
    needs(trainer, trainer.params.clip_norm is not None, "a clip_norm")
    norms: dict[str, float] = {}
    true_clip = trainer.clip

    def clipped_first(synchronise: Callable[[], None]) -> None:
        norms.update(true_clip())
        if trainer.params.parallel != "data":
            synchronise()
            return
        group = trainer.place.group("dp")
        gradients = list(trainer.parallel.gradients().values())
        trainer.parallel.ledger.reduce_gradients(gradients, group, trainer.place.layout.dp)

    around(trainer.parallel, "synchronising", lambda synchronising, last: synchronising(False))
    around(trainer.parallel, "synchronise", clipped_first)
    around(trainer, "clip", lambda clip: dict(norms))


def _change_victim(trainer: Trainer, change: Callable[[Tensor], object]) -> None:
    with torch.no_grad():
        change(local(trainer.parallel.named_parameters()[VICTIM].detach()))


@planter("init-differs")
def init_differs(trainer: Trainer) -> None:
    def other(build: Callable[[Transformer], None], model: Transformer) -> None:
        build(model)
        _change_victim(trainer, lambda weight: weight.add_(0.05))

    if is_last_rank(trainer):
        around(trainer.parallel, "build", other)


@planter("replica-drift")
def replica_drift(trainer: Trainer) -> None:
    needs(trainer, trainer.params.steps > 1, "2 steps or more")

    def drifting(clear: Callable[[], None]) -> None:
        clear()
        if trainer.updates_done >= 1:
            _change_victim(trainer, lambda weight: weight.mul_(1.001))

    if is_last_rank(trainer):
        around(trainer, "clear_gradients", drifting)


@planter("tp-reduce-skipped")
def tp_reduce_skipped(trainer: Trainer) -> None:
    from ddaudit.training.parallel.tensor import UnreducedRowwise

    def unreduced(plan: Callable[[int], dict[str, Any]], layers: int) -> dict[str, Any]:
        styles = plan(layers)
        (layout,) = styles["blocks.0.mlp.down"].output_layouts
        return {**styles, "blocks.0.mlp.down": UnreducedRowwise(output_layouts=layout)}

    around(trainer.parallel, "plan", unreduced)


@planter("expert-undivided")
def expert_undivided(trainer: Trainer) -> None:
    around(trainer.parallel, "divide_experts", lambda divide: None)


@planter("expert-token-dropped")
def expert_token_dropped(trainer: Trainer) -> None:
    def dropping(forward: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        done = forward(rows)
        return torch.cat([done[:-1], torch.zeros_like(done[-1:])])

    def leaky(build: Callable[[Transformer], None], model: Transformer) -> None:
        build(model)
        mixture = cast(nn.Module, model.blocks["0"].mlp)
        experts = cast(nn.ModuleDict, mixture.experts)
        around(next(iter(experts.values())), "forward", dropping)

    if is_last_rank(trainer):
        around(trainer.parallel, "build", leaky)


@planter("context-mask-off-by-one")
def context_mask_off_by_one(trainer: Trainer) -> None:
    def ahead(mask: Callable[..., Tensor], *sizes: int) -> Tensor:
        wrong = mask(*sizes).clone()
        wrong[:-1] = wrong[1:].clone()
        return wrong

    around(trainer.parallel, "mask", ahead)


@planter("rng-identical")
def rng_identical(trainer: Trainer) -> None:
    around(trainer, "seed_rank", lambda seed: torch.manual_seed(trainer.params.seed + 1))
