"""Tensor parallelism: the matrices of each block are split over the ranks, and every rank reads the same samples.

The first matrix of a pair is split by columns, so each rank computes some heads or hidden units alone; the second by
rows, so each rank holds a partial sum and one all-reduce per pair completes it (Shoeybi et al., Megatron-LM, 2019).
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ddaudit.errors import UsageProblem
from ddaudit.training.model import Transformer
from ddaudit.training.optimizer import local
from ddaudit.training.parallel.contract import Parallel

__all__ = ["SequenceParallelTensor", "TensorParallel", "UnreducedRowwise", "sequence_plan", "tensor_plan"]


def tensor_plan(layers: int) -> dict[str, Any]:
    """How each module is split. What is not named stays whole on every rank: embeddings and norms."""
    plan: dict[str, Any] = {"head": ColwiseParallel(output_layouts=Replicate())}
    for i in range(layers):
        block = f"blocks.{i}"
        plan |= {f"{block}.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        plan |= {f"{block}.attention.out": RowwiseParallel(), f"{block}.mlp.up": ColwiseParallel()}
        plan[f"{block}.mlp.down"] = RowwiseParallel()
    return plan


def sequence_plan(layers: int) -> dict[str, Any]:
    """The tensor plan with activations between the pairs split along the sequence (Korthikanti et al., 2022): an
    all-reduce becomes a reduce-scatter and an all-gather, and norms work on a slice of the positions."""
    along, whole = Shard(1), Replicate()
    plan = tensor_plan(layers)
    plan["embed"] = PrepareModuleOutput(output_layouts=whole, desired_output_layouts=along)
    plan["norm"] = SequenceParallel()
    plan["head"] = ColwiseParallel(input_layouts=along, output_layouts=whole)
    for i in range(layers):
        block = f"blocks.{i}"
        for norm in ("attention_norm", "mlp_norm"):
            plan[f"{block}.{norm}"] = SequenceParallel()
        for pair, second in (("attention", "out"), ("mlp", "down")):
            plan[f"{block}.{pair}"] = PrepareModuleInput(input_layouts=along, desired_input_layouts=whole)
            plan[f"{block}.{pair}.{second}"] = RowwiseParallel(output_layouts=along)
    return plan


class UnreducedRowwise(RowwiseParallel):
    """A row-parallel layer that hands out its partial sum (or its slice of it) as if it were the result. For drills."""

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: bool, mod: nn.Module, outputs: DTensor, device_mesh: DeviceMesh
    ) -> Any:
        partial = outputs.to_local()
        if isinstance(output_layouts[0], Shard):
            partial = partial.chunk(device_mesh.size(), dim=output_layouts[0].dim)[device_mesh.get_local_rank()]
        return partial


def split_model(model: Transformer, mesh: DeviceMesh, plan: dict[str, Any]) -> None:
    """Applies a plan in place.

    Raises:
        UsageProblem: the heads do not spread evenly over the mesh.
    """
    if model.shape.heads % mesh.size():
        raise UsageProblem(f"{model.shape.heads} attention heads do not spread evenly over {mesh.size()} ranks")
    parallelize_module(model, mesh, plan)


class TensorParallel(Parallel):
    """DTensor's column and row plans over all ranks; nothing to synchronise between updates, since every rank computes
    the same gradient for what it holds whole."""

    implementation = "torch.distributed.tensor.parallel"

    def plan(self, layers: int) -> dict[str, Any]:
        return tensor_plan(layers)

    def build(self, model: Transformer) -> None:
        assert self.place.mesh is not None
        split_model(model, self.place.mesh["tp"], self.plan(model.shape.layers))
        self.model = self.module = model

    def replicated(self) -> list[str]:
        return [name for name, weight in self.named_parameters().items() if not _is_split(weight)]


class SequenceParallelTensor(TensorParallel):
    """Tensor parallelism with sequence-parallel activations. A norm sees a slice of the positions, so its gradient is a
    partial sum that must be reduced over the ranks before the update."""

    syncs_needed = 1.0

    def plan(self, layers: int) -> dict[str, Any]:
        return sequence_plan(layers)

    def build(self, model: Transformer) -> None:
        super().build(model)
        self.ledger.parameters = len(self.norms())

    def sync_ranks(self) -> int:
        return self.place.world_size

    def norms(self) -> list[str]:
        """Names of the parameters whose gradients are partial sums."""
        return [name for name in self.named_parameters() if "norm." in name]

    def synchronised(self) -> list[str]:
        return self.norms()

    def synchronise(self) -> None:
        """Completes the norms' gradients: a sum over the ranks, since each holds the part of its own positions."""
        partial = self.gradients(self.synchronised())
        self.ledger.reduce_gradients([local(g) for g in partial.values()], self.place.group("tp"), divide_by=1)
        for weight in self.named_parameters().values():
            gradient = weight.grad
            if isinstance(gradient, DTensor) and any(p.is_partial() for p in gradient.placements):
                weight.grad = DTensor.from_local(gradient.to_local(), gradient.device_mesh, [Replicate()])


def _is_split(weight: nn.Parameter) -> bool:
    return isinstance(weight, DTensor) and any(p.is_shard() for p in weight.placements)
