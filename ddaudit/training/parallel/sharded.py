"""Sharded data parallelism: data parallelism whose parameters, gradients and optimizer state are split over the ranks.

FSDP2 keeps a slice of every parameter on each rank, gathers a block's parameters just before it is used, and
reduce-scatters its gradients as soon as they are ready (ZeRO stage 3). Without freeing the parameters between forward
and backward it is ZeRO stage 2.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from ddaudit.training.data import MicroBatch
from ddaudit.training.ledger import SyncLedger
from ddaudit.training.model import Transformer
from ddaudit.training.parallel.contract import Parallel

__all__ = ["CountedReduceScatter", "ShardedData", "ZeroTwo"]


class Counted:
    """A collective of one sharded unit, with a count. ``parameters`` is how many the unit holds."""

    def __init__(self, ledger: SyncLedger, parameters: int) -> None:
        self.ledger, self.parameters = ledger, parameters

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class CountedReduceScatter(Counted):
    """The reduce-scatter of a unit's gradients."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        self.ledger.count(input_tensor, self.parameters)
        with self.ledger.waiting():
            return dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


class CountedAllGather(Counted):
    """The all-gather of a unit's parameters; no gradient, so only the time is counted."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        with self.ledger.waiting():
            return dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class ShardedData(Parallel):
    """FSDP2, one unit per block and one for the rest."""

    syncs_needed = 1.0
    implementation = "torch.distributed.fsdp.fully_shard"
    reshard_after_forward = True

    def build(self, model: Transformer) -> None:
        self.model = self.module = model
        self.data_group = self.loss_group = self.sample_group()
        kept_out = set(self.named_parameters()) - set(self.synchronised())
        ignored = {weight for name, weight in self.named_parameters().items() if name in kept_out}
        self.ledger.parameters = len(self.named_parameters())
        self.units: list[FSDPModule] = []
        claimed: set[int] = {id(weight) for weight in ignored}
        for unit in [*model.blocks.values(), model]:
            mine = {id(weight) for weight in unit.parameters()} - claimed
            claimed |= mine
            self.shard(unit, ignored, len(mine))
            # Sharding replaces parameters, so those of this unit are claimed under their new identity too.
            claimed |= {id(weight) for weight in unit.parameters()}

    def mesh(self) -> DeviceMesh:
        """The mesh whose ranks share a parameter (1-D), or replicate and share it (2-D)."""
        assert self.place.mesh is not None
        return self.place.mesh

    def sample_group(self) -> dist.ProcessGroup:
        """Ranks that read different samples."""
        return self.place.group("dp")

    def shard(self, module: nn.Module, ignored: set[nn.Parameter], parameters: int) -> None:
        """Makes ``module`` one unit that is gathered and reduced as a whole."""
        unit = fully_shard(
            module, mesh=self.mesh(), reshard_after_forward=self.reshard_after_forward, ignored_params=ignored
        )
        assert isinstance(unit, FSDPModule)
        # Both stand in for torch's own classes by shape, since those live in a private module.
        unit.set_custom_reduce_scatter(cast(Any, CountedReduceScatter(self.ledger, parameters)))
        unit.set_custom_all_gather(cast(Any, CountedAllGather(self.ledger, parameters)))
        if self.average_over != self.place.layout.dp:
            unit.set_force_sum_reduction_for_comms(True)
            unit.set_gradient_divide_factor(float(self.average_over))
        self.units.append(unit)

    def replicated(self) -> list[str]:
        return []

    def loss(self, micro: MicroBatch) -> Tensor:
        # FSDP warns that logits are a view, on which an in-place operation would drop its hook. Nothing does one here.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
            return super().loss(micro)

    def synchronising(self, last: bool) -> AbstractContextManager[None]:
        return self._synchronising(last)

    @contextmanager
    def _synchronising(self, last: bool) -> Iterator[None]:
        # Until the last micro-batch gradients stay whole and local: more memory, A - 1 fewer reduce-scatters.
        for unit in self.units:
            unit.set_requires_gradient_sync(last)
        yield


class ZeroTwo(ShardedData):
    """ZeRO stage 2: gradients and optimizer state are split; parameters stay gathered from forward to backward."""

    implementation = "torch.distributed.fsdp.fully_shard(reshard_after_forward=False)"
    reshard_after_forward = False
