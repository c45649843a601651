"""Two kinds at once on a two-dimensional mesh: what large runs use."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ddaudit.training.model import Transformer
from ddaudit.training.parallel.sharded import ShardedData
from ddaudit.training.parallel.tensor import sequence_plan, split_model, tensor_plan

__all__ = ["HybridSharded", "ShardedSequenceTensor", "ShardedTensor"]


class HybridSharded(ShardedData):
    """HSDP: parameters are split over the "shard" axis (fast links) and replicated over "replicate" (slow ones).
    Gradients are reduce-scattered within a shard group, then all-reduced between them. All ranks read different data.
    """

    implementation = "torch.distributed.fsdp.fully_shard on a (replicate, shard) mesh"

    def sample_group(self) -> dist.ProcessGroup:
        world = dist.group.WORLD
        assert world is not None
        return world

    def shard(self, module: nn.Module, ignored: set[nn.Parameter], parameters: int) -> None:
        super().shard(module, ignored, parameters)
        self.units[-1].set_all_reduce_hook(self.reduced_over_replicas)

    def reduced_over_replicas(self, part: Tensor) -> None:
        """Runs after the all-reduce over the replicas, on the slice that was reduced. It follows the reduce-scatter at
        once, so it began when that ended; it carries no further parameters, so only calls and bytes are counted."""
        self.ledger.count(part, 0)
        # A shard axis of one rank has no reduce-scatter before it, so there is no beginning to take.
        if self.ledger.timed and self.ledger.left is not None:
            self.ledger.waited(self.place.group("replicate"), self.ledger.left, time.perf_counter())

    def replicated(self) -> list[str]:
        # Every slice has a copy on the ranks of the replicate axis.
        return list(self.named_parameters())


class ShardedTensor(ShardedData):
    """FSDP x TP: blocks are split over "tp" inside a node, and what each rank then holds is sharded over "dp"."""

    implementation = "fully_shard over dp of a tensor-parallel model"

    def plan(self, layers: int) -> dict[str, object]:
        return tensor_plan(layers)

    def build(self, model: Transformer) -> None:
        assert self.place.mesh is not None
        split_model(model, self.place.mesh["tp"], self.plan(model.shape.layers))
        super().build(model)

    def timing(self) -> AbstractContextManager[None]:
        return self.ledger.functional_waits(self.place.group("tp"))

    def mesh(self) -> DeviceMesh:
        assert self.place.mesh is not None
        return self.place.mesh["dp"]


class ShardedSequenceTensor(ShardedTensor):
    """FSDP x TP with sequence-parallel activations. FSDP completes the norms' partial gradients over "tp" itself,
    before it reduces them over "dp"."""

    def plan(self, layers: int) -> dict[str, object]:
        return sequence_plan(layers)
