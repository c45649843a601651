"""Memory of the fullest rank, by kind."""

from __future__ import annotations

from dataclasses import dataclass

from ddaudit.forecast.layout import Layout
from ddaudit.forecast.shape import Shape
from ddaudit.forecast.volumes import expert_share

__all__ = ["Memory", "States", "layer_bytes", "memory"]


@dataclass(frozen=True)
class States:
    """Bytes per parameter: ``weight`` + ``gradient`` + ``optimizer``. The default is Adam in mixed precision, 16
    (Rajbhandari et al. 2020, section 3.1); Megatron accumulates gradients in float32, 18."""

    weight: float = 2.0
    gradient: float = 2.0
    optimizer: float = 12.0


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank by kind. ``gathered`` are the units that full sharding holds whole; ``reserved`` is what the
    context, communicators and fragmentation take."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float
    reserved: float

    @property
    def total(self) -> float:
        return sum(self.kinds.values())

    @property
    def kinds(self) -> dict[str, float]:
        """Bytes by kind, in the order of the fields."""
        return dict(self.__dict__)


def layer_bytes(shape: Shape, layout: Layout, width: int = 2) -> float:
    """Activations of one layer and micro-batch that backward needs, nothing recomputed, bytes.

    s b h (34 + 5 a s / h) in 16 bits: attention 11, feed-forward 19, norms 4 and scores. Tensor parallelism splits all
    but 10 of them, with sequence parallelism all; selective recomputation drops the scores (Korthikanti et al. 2022,
    equations 1 to 4). A gated or wider feed-forward layer scales its 16, routed experts their 19 by ``top_k``.
    """
    tokens = layout.micro_batch * shape.seq_len / layout.cp
    copies = shape.top_k if shape.experts else 1
    wide = 16.0 * shape.width / (4 * shape.hidden) * (1.5 if shape.gated else 1.0)
    scores = 0.0 if layout.recompute == "selective" else 5.0 * shape.heads * shape.seq_len / shape.hidden
    split = 9 + wide * copies + scores
    whole = 10.0 - 2 + 2 * copies
    whole_part = whole / layout.tp if layout.sequence_parallel else whole
    return tokens * shape.hidden * (width / 2) * (whole_part + (split - 1) / layout.tp)


def memory(
    shape: Shape, layout: Layout, states: States | None = None, width: int = 2, reserved: float = 0.0, kept: float = 1.0
) -> Memory:
    """Bytes of the fullest rank (the first pipeline stage holds most micro-batches; first and last hold a table).

    1F1B keeps p micro-batches on the first stage, interleaved 1 + (p - 1) / (p v) times that, GPipe all m, zero-bubble
    as many as 1F1B (Narayanan et al. 2021; Korthikanti et al. 2022, section 4.2.3; Qi et al. 2023, ZB-H1). ``kept``
    multiplies activations and logits.
    """
    per = states or States()
    dense, routed = expert_share(shape, layout)
    over = max(1, layout.sharded // layout.ep)

    def held(width_bytes: float, stage: int) -> float:
        shards = (layout.sharded, over) if layout.zero_stage >= stage else (1, 1)
        return width_bytes * (dense / shards[0] + routed / shards[1])

    layers = -(-shape.layers // layout.pp)
    return Memory(
        weights=held(per.weight, 3),
        gradients=held(per.gradient, 2),
        optimizer=held(per.optimizer, 1),
        gathered=_gathered(shape, layout, per.weight),
        activations=kept * _activations(shape, layout, layers, width),
        logits=kept * _logits(shape, layout, width),
        reserved=reserved,
    )


def _activations(shape: Shape, layout: Layout, layers: int, width: int) -> float:
    kept = in_flight(layout) * layers
    each = layer_bytes(shape, layout, width)
    if layout.recompute != "full":
        return kept * each
    inputs = layout.micro_batch * shape.seq_len / layout.cp * shape.hidden * width
    return kept * inputs / (layout.tp if layout.sequence_parallel else 1) + each


def in_flight(layout: Layout) -> float:
    """Micro-batches whose activations the first stage holds at once."""
    if layout.pp == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return float(layout.accumulation)
    chunks = layout.virtual_stages
    more = 1 + (layout.pp - 1) / (layout.pp * chunks) if chunks > 1 else 1.0
    return min(float(layout.accumulation), layout.pp * more)


def _logits(shape: Shape, layout: Layout, width: int) -> float:
    """Logits in float32 beside those of the product; on the last stage, whose activations are fewer, so counted only
    without a pipeline."""
    if layout.pp > 1:
        return 0.0
    tokens = layout.micro_batch * shape.seq_len / layout.cp
    return tokens * shape.vocab / layout.tp * (4 + width)


def _gathered(shape: Shape, layout: Layout, weight: float) -> float:
    """Two layers in full: the one in use and the next, which is gathered ahead."""
    if layout.sharded == 1 or layout.zero_stage < 3:
        return 0.0
    routed = shape.expert_parameters * max(1.0, shape.experts / layout.ep)
    return 2 * weight * (shape.attention_parameters + routed) / layout.tp
