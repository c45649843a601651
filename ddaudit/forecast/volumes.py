"""Bytes that one rank puts on the wire in one update, by kind of parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from ddaudit.forecast.layout import Layout
from ddaudit.forecast.shape import Shape

__all__ = ["Volumes", "expert_share", "rank_parameters", "volumes"]


@dataclass(frozen=True)
class Volumes:
    """Bytes per rank and update. A ring all-reduce of S bytes over n ranks sends 2 (n - 1) / n S per rank."""

    data: float
    tensor: float
    pipeline: float
    expert: float
    context: float

    @property
    def total(self) -> float:
        return self.data + self.tensor + self.pipeline + self.expert + self.context


def expert_share(shape: Shape, layout: Layout) -> tuple[float, float]:
    """Parameters of one rank before sharding over data-parallel ranks: (dense, routed experts), in the largest stage:
    its share of the layers, rounded up, and one embedding table."""
    layers = -(-shape.layers // layout.pp)
    tables = shape.embedding_parameters * (1 if shape.tied or layout.pp > 1 else 2)
    dense = shape.attention_parameters * layers + tables
    routed = shape.expert_parameters * layers
    if not shape.experts:
        return (dense + routed) / layout.tp, 0.0
    return dense / layout.tp, routed * shape.experts / layout.ep / layout.tp


def rank_parameters(shape: Shape, layout: Layout) -> float:
    """Parameters of one rank of the largest stage, before sharding over data-parallel ranks."""
    return sum(expert_share(shape, layout))


def volumes(shape: Shape, layout: Layout, width: int = 2, gradient_width: int = 0) -> Volumes:
    """Bytes on the wire, ``width`` bytes a number for weights and activations, ``gradient_width`` for gradients.

    Data: an all-reduce of the gradients; ZeRO-1 and ZeRO-2 move the same in two halves; ZeRO-3 gathers weights twice
    and for every micro-batch, 1.5 times as much at A = 1 (Rajbhandari et al. 2020, section 7). HSDP adds an all-reduce
    of the shards between copies. Tensor: four all-reduces of activations per layer and micro-batch, six with full
    recompute; with sequence parallelism the same in halves (Korthikanti et al. 2022). Pipeline: activations and their
    gradients per boundary. Expert: four all-to-alls per layer and micro-batch. Context: key and value pass the ring
    once forward and twice backward.
    """
    micro = float(layout.micro_batch * shape.seq_len * shape.hidden * width) / layout.cp
    count, layers = layout.accumulation, shape.layers / layout.pp
    again = 6 if layout.recompute == "full" else 4
    tensor = again * 2 * _part(layout.tp) * micro * layers * count
    ends = 0 if layout.pp == 1 else 2 * layout.virtual_stages
    pipeline = ends * micro * count / (layout.tp if layout.sequence_parallel else 1)
    expert = 4 * _part(layout.ep) * micro * shape.top_k * layers * count if shape.experts else 0.0
    kv = 2 * (shape.kv_heads or shape.heads) / shape.heads / layout.tp
    context = 3 * (layout.cp - 1) * micro * kv * layers * count
    return Volumes(_data(shape, layout, width, gradient_width or width), tensor, pipeline, expert, context)


def _part(ranks: int) -> float:
    return (ranks - 1) / ranks


def _data(shape: Shape, layout: Layout, width: int, gradient_width: int) -> float:
    parts = [(expert_share(shape, layout)[0], layout.sharded, layout.dp)]
    if shape.experts:
        left = max(1, layout.sharded // layout.ep)
        copies = layout.replicas // layout.ep // left if layout.replicas >= layout.ep else 1
        parts.append((expert_share(shape, layout)[1], left, max(1, copies)))
    total = 0.0
    for count, shards, copies in parts:
        gradients = count * gradient_width
        gathers = 2 * layout.accumulation if layout.zero_stage == 3 else 1
        total += _part(shards) * (gradients + gathers * count * width)
        total += 2 * _part(copies) * gradients / shards
    return total
