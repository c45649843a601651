"""How ranks share the work, and which layouts can exist at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddaudit.forecast.shape import Recompute, Shape

__all__ = ["Layout", "Schedule", "misfit"]

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]


@dataclass(frozen=True)
class Layout:
    """One way to spread a training over ``devices = dp * sharded * tp * pp * cp`` ranks.

    ``dp`` whole copies of ``sharded`` ranks each see different data (N = dp * sharded); ``ep`` lies across those. With
    ``zero_stage`` 1 optimizer states are sharded, with 2 gradients as well, with 3 everything (FSDP; HSDP when
    ``dp`` > 1 too). ``accumulation`` counts the micro-batches of an update, also those that fill a pipeline.
    """

    dp: int = 1
    sharded: int = 1
    zero_stage: int = 3
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    virtual_stages: int = 1
    micro_batch: int = 1
    accumulation: int = 1
    recompute: Recompute = "none"
    schedule: Schedule = "1f1b"
    sequence_parallel: bool = True

    @property
    def devices(self) -> int:
        return self.dp * self.sharded * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """N, ranks that see different data."""
        return self.dp * self.sharded

    @property
    def global_batch(self) -> int:
        """B_eff = N * B_local * A in samples."""
        return self.replicas * self.micro_batch * self.accumulation

    @property
    def bubble(self) -> float:
        """Idle over ideal time of a pipeline, (p - 1) / (v m); 0 where the schedule fills it (Narayanan et al. 2021,
        section 2.2; Qi et al. 2023 for zero-bubble)."""
        if self.pp == 1 or self.schedule == "zero-bubble":
            return 0.0
        return (self.pp - 1) / (self.virtual_stages * self.accumulation)

    def __str__(self) -> str:
        axes = [("DP", self.dp), ("FSDP" if self.zero_stage == 3 else f"ZeRO-{self.zero_stage} ", self.sharded)]
        axes += [("TP", self.tp), ("PP", self.pp), ("EP", self.ep), ("CP", self.cp)]
        words = " x ".join(f"{name}{n}" for name, n in axes if n > 1) or "1 device"
        chunks = f", {self.virtual_stages} chunks" if self.virtual_stages > 1 else ""
        again = "" if self.recompute == "none" else f", {self.recompute} recompute"
        return f"{words}, B_local {self.micro_batch} x A {self.accumulation}{chunks}{again}"


def misfit(layout: Layout, shape: Shape) -> str | None:
    """Why this model cannot be spread so, with what to change; None where it can."""
    if shape.heads % (layout.tp * layout.cp if layout.cp > 1 else layout.tp):
        return f"{shape.heads} heads do not divide by tp {layout.tp} x cp {layout.cp}; use a divisor of the heads"
    if shape.kv_heads and layout.tp > shape.kv_heads:
        return f"tp {layout.tp} is more than the {shape.kv_heads} key-value heads; lower tp"
    chunks = layout.pp * layout.virtual_stages
    if chunks > shape.layers:
        return f"{shape.layers} layers do not fill {chunks} pipeline chunks; lower pp or virtual_stages"
    if layout.accumulation < layout.pp:
        return (
            f"{layout.accumulation} micro-batches do not fill {layout.pp} pipeline stages (m >= p);"
            " raise the batch, lower the micro-batch, or lower pp"
        )
    if layout.ep > 1 and (not shape.experts or shape.experts % layout.ep):
        return f"{shape.experts} experts do not spread over ep {layout.ep}; use a divisor of the experts"
    if layout.ep > 1 and layout.replicas % layout.ep:
        return f"ep {layout.ep} does not divide the {layout.replicas} data-parallel ranks; use a divisor of them"
    if layout.cp > 1 and shape.seq_len % (2 * layout.cp):
        return f"sequences of {shape.seq_len} do not cut into {2 * layout.cp} pieces; use a divisor for cp"
    return None
