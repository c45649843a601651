"""Learning-rate schedules: a warm-up, then constant, linear or cosine decay, ticked once per update."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ddaudit.training.params import TrainParams

__all__ = ["FINAL_FRACTION", "factor", "scheduler"]

FINAL_FRACTION = 0.1
"""Where decay ends, as a fraction of the peak: updates near the end still change something."""


def factor(update: int, *, schedule: str, warmup: int, total: int) -> float:
    """Multiplier of the peak learning rate for the update numbered from 0.

    Warm-up rises linearly and reaches 1 at update ``warmup``'s predecessor, so that the first update already moves:
    ``(update + 1) / warmup``. Decay runs from 1 to :data:`FINAL_FRACTION` at the last update.
    """
    if update < warmup:
        return (update + 1) / warmup
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (update - warmup) / max(1, total - 1 - warmup))
    shape = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return FINAL_FRACTION + (1.0 - FINAL_FRACTION) * shape


def scheduler(optimizer: Optimizer, params: TrainParams, warmup: int) -> LambdaLR:
    """The schedule of ``params`` with a warm-up of ``warmup`` updates."""
    return LambdaLR(
        optimizer, lambda update: factor(update, schedule=params.schedule, warmup=warmup, total=params.steps)
    )
