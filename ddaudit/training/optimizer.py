"""Optimizers of the reference training, the gradient norm and clipping, for parameters that may be spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from ddaudit.training.params import TrainParams

__all__ = ["build", "global_norm", "local", "optimizer_class", "scale_"]


def optimizer_class(params: TrainParams) -> tuple[type[Optimizer], dict[str, Any]]:
    """Class and keyword arguments. Plain SGD has no momentum: an update shows a gradient's scale, which Adam hides."""
    if params.optimizer == "sgd":
        return SGD, {"lr": params.base_lr}
    return AdamW, {"lr": params.base_lr, "betas": (0.9, 0.95), "weight_decay": 0.01}


def build(params: TrainParams, weights: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer over ``weights``. The fused multi-tensor path refuses a mix of DTensor and plain tensors, which
    tensor parallelism has, so it is used only where all are alike."""
    kind, options = optimizer_class(params)
    chosen = list(weights)
    if len({isinstance(w, DTensor) for w in chosen}) > 1:
        options["foreach"] = False
    return kind(chosen, **options)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def global_norm(
    tensors: Mapping[str, Tensor],
    split_over: Mapping[str, Sequence[dist.ProcessGroup]],
    like: Tensor,
    all_reduce: Callable[[Tensor, dist.ProcessGroup], Tensor],
) -> Tensor:
    """L2 norm over all elements of all tensors, wherever they lie.

    ``split_over`` names, for a tensor of which this rank holds a part, the groups whose ranks hold the other parts.
    Squares are summed locally, then once over each set of groups, so replicas are counted once. ``like`` gives dtype
    and device; ``all_reduce`` sums in place over a group.
    """
    sums: dict[tuple[dist.ProcessGroup, ...], Tensor] = {}
    for name, tensor in tensors.items():
        groups = tuple(split_over.get(name, ()))
        square = local(tensor).detach().to(like.dtype).square().sum()
        sums[groups] = sums[groups] + square if groups in sums else square
    total = torch.zeros((), dtype=like.dtype, device=like.device)
    for groups, square in sums.items():
        for group in groups:
            all_reduce(square, group)
        total += square
    return total.sqrt()


def scale_(tensors: Iterable[Tensor], by: Tensor) -> None:
    """Multiplies tensors in place."""
    for tensor in tensors:
        local(tensor).mul_(by)
