"""Two kinds at once on a two-dimensional mesh: what large runs use."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
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
        # The hook runs after the all-reduce over the replicas, on the slice that was reduced; it carries no further
        # parameters, so only calls and bytes are counted.
        self.units[-1].set_all_reduce_hook(lambda part: self.ledger.count(part, 0))

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

    def mesh(self) -> DeviceMesh:
        assert self.place.mesh is not None
        return self.place.mesh["dp"]


class ShardedSequenceTensor(ShardedTensor):
    """FSDP x TP with sequence-parallel activations. FSDP completes the norms' partial gradients over "tp" itself,
    before it reduces them over "dp"."""

    def plan(self, layers: int) -> dict[str, object]:
        return sequence_plan(layers)
