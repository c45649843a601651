"""Saving and resuming through ``torch.distributed.checkpoint``.

One flat folder per checkpoint. Keys, all of them tensors, so that no value has to be unpickled:

- ``model.<parameter>`` and ``optimizer.<parameter>.<slot>`` under single-device names, each written once by a rank
  that holds it (a DTensor by all of its holders);
- ``scheduler.*``, ``sampler.*`` (epoch, position in it, seed), ``global_step``;
- ``rng.rank<r>.*``: every rank's own random state.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict_loader as loader
import torch.distributed.checkpoint.state_dict_saver as saver
from torch import Tensor
from torch.distributed.checkpoint.planner import SavePlanner
from torch.optim import AdamW, Optimizer

from ddaudit.errors import UsageProblem

if TYPE_CHECKING:
    from ddaudit.training.loop import Trainer

__all__ = ["load", "resume_state", "save", "training_state"]


def training_state(trainer: Trainer) -> dict[str, Any]:
    """Everything that a resumed run needs to go on as if it had not stopped. Tensors are the live ones, not copies."""
    schedule = trainer.scheduler.state_dict()
    return {
        "model": {name: weight.detach() for name, weight in trainer.parallel.named_parameters().items()},
        "optimizer": _slots(trainer),
        "scheduler": {
            "last_epoch": torch.tensor(schedule["last_epoch"]),
            "last_lr": torch.tensor(schedule["_last_lr"], dtype=torch.float64),
        },
        "sampler": {name: torch.tensor(value) for name, value in trainer.feed.sampler.state_dict().items()},
        "global_step": torch.tensor(trainer.updates_done),
        "rng": {f"rank{trainer.place.rank}": random_state(trainer.place.device)},
    }


def random_state(device: torch.device) -> dict[str, Tensor]:
    """State of the random generators that this rank draws from, as byte tensors."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def save(state: Mapping[str, Any], folder: Path, planner: SavePlanner | None = None) -> None:
    """Writes a checkpoint; every rank calls it together."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _quiet_alone():
        saver.save(dict(state), checkpoint_id=folder, planner=planner, no_dist=not dist.is_initialized())


@contextmanager
def _quiet_alone() -> Iterator[None]:
    """A single process is meant; torch warns that it might not be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def load(trainer: Trainer, folder: Path) -> None:
    """Restores a trainer that has been prepared but has not trained yet.

    Only for checkpoints that this program wrote: torch reads the index of a checkpoint with ``pickle``.

    Raises:
        UsageProblem: the folder holds no checkpoint.
    """
    if not (folder / ".metadata").is_file():
        raise UsageProblem("no checkpoint to resume from", where=str(folder), expected="a folder with a .metadata file")
    state = resume_state(trainer)
    with _quiet_alone():
        loader.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    trainer.updates_done = int(state["global_step"])
    trainer.feed.sampler.load_state_dict({name: int(value) for name, value in state["sampler"].items()})
    last_lr = state["scheduler"]["last_lr"].tolist()
    restored = {"last_epoch": int(state["scheduler"]["last_epoch"]), "_last_lr": last_lr}
    trainer.scheduler.load_state_dict(trainer.scheduler.state_dict() | restored)
    for group, lr in zip(trainer.optimizer.param_groups, last_lr, strict=True):
        group["lr"] = lr
    _set_random_state(state["rng"][f"rank{trainer.place.rank}"], trainer.place.device)


def resume_state(trainer: Trainer) -> dict[str, Any]:
    """The state to load into. A fresh optimizer has no slots yet: they are made here, so that loading fills them."""
    inner = trainer.parallel.inner_optimizer(trainer.optimizer)
    if isinstance(inner, AdamW):
        _make_slots(inner)
    return training_state(trainer)


def _make_slots(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(weight, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(weight, requires_grad=False),
            }


def _slots(trainer: Trainer) -> dict[str, dict[str, Any]]:
    state = trainer.parallel.inner_optimizer(trainer.optimizer).state
    named = trainer.parallel.named_parameters().items()
    return {name: dict(state[weight]) for name, weight in named if state.get(weight)}


def _set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
