"""Collectives that gradients flow through, timed in both directions.

The gradient of an exchange is the exchange back: an all-to-all's is the all-to-all with the sizes swapped, and an
all-gather's is a reduce-scatter, since every rank used every slice. (torch's functional versions are the same; their
backward passes wait where nothing can be timed.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from ddaudit.training.ledger import SyncLedger

__all__ = ["all_gather", "all_to_all"]


def all_to_all(
    rows: Tensor, received: Sequence[int], sent: Sequence[int], group: dist.ProcessGroup, ledger: SyncLedger
) -> Tensor:
    """Sends ``sent[r]`` of ``rows`` [sum(sent), width], in order, to each rank r of the group; returns the rows that
    came [sum(received), width], by source rank."""
    return cast(Tensor, AllToAll.apply(rows, received, sent, group, ledger))  # type: ignore[no-untyped-call]


def all_gather(part: Tensor, dim: int, group: dist.ProcessGroup, ledger: SyncLedger) -> Tensor:
    """All ranks' slices joined along ``dim``, in rank order."""
    return cast(Tensor, AllGather.apply(part, dim, group, ledger))  # type: ignore[no-untyped-call]


class AllToAll(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, received: Any, sent: Any, group: Any, ledger: SyncLedger) -> Tensor:
        ctx.back = (sent, received, group, ledger)
        return _all_to_all(rows, received, sent, group, ledger)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _all_to_all(gradient, *ctx.back), None, None, None, None


class AllGather(Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: Any, ledger: SyncLedger) -> Tensor:
        ctx.back = (dim, group, ledger)
        first = part.movedim(dim, 0).contiguous()
        whole = first.new_empty(dist.get_world_size(group) * first.shape[0], *first.shape[1:])
        with ledger.waiting(group):
            dist.all_gather_single(whole, first, group=group)
        return whole.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        dim, group, ledger = ctx.back
        first = gradient.movedim(dim, 0).contiguous()
        part = first.new_empty(first.shape[0] // dist.get_world_size(group), *first.shape[1:])
        with ledger.waiting(group):
            dist.reduce_scatter_single(part, first, group=group)
        return part.movedim(0, dim), None, None, None


def _all_to_all(rows: Tensor, received: Any, sent: Any, group: dist.ProcessGroup, ledger: SyncLedger) -> Tensor:
    arriving = torch.empty(sum(received), *rows.shape[1:], dtype=rows.dtype, device=rows.device)
    with ledger.waiting(group):
        dist.all_to_all_single(arriving, rows.contiguous(), list(received), list(sent), group=group)
    return arriving
