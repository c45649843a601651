"""Which layouts a number of devices allows: one axis grown, or all of them searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from ddaudit.forecast.layout import Layout, misfit
from ddaudit.forecast.shape import RECOMPUTE, Shape

__all__ = ["AXES", "Scaling", "candidates", "family", "grown"]

Scaling = Literal["weak", "strong"]
#: Kinds of parallelism that one axis of a layout can be grown by.
AXES: dict[str, str] = {
    "data": "dp",
    "sharded": "sharded",
    "tensor": "tp",
    "pipeline": "pp",
    "expert": "dp",
    "context": "cp",
}
#: Micro-batches that a search tries: a larger one seldom fits where a smaller one does not already fill a device.
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


def grown(base: Layout, kind: str, devices: int, scaling: Scaling, shape: Shape) -> Layout | str:
    """``base`` on ``devices`` devices by growing one axis; a sentence where that cannot be.

    Weak scaling keeps the batch of a replica, so B_eff grows with the replicas; strong scaling keeps B_eff, and fewer
    micro-batches (then smaller ones) remain for each.
    """
    axis = AXES[kind]
    rest = base.devices // getattr(base, axis)
    if devices % rest:
        return f"{devices} devices are not a multiple of the {rest} that the other axes take; use a multiple of {rest}"
    size = devices // rest
    found = replace(base, **{axis: size})
    if kind == "expert":
        found = replace(found, ep=min(size * base.sharded, shape.experts) if shape.experts else size)
    if scaling == "strong" and axis in ("dp", "sharded"):
        cut = _cut(found, base.global_batch)
        if cut is None:
            return (
                f"a batch of {base.global_batch} samples does not spread over {found.replicas} replicas;"
                " raise the batch, or scale weakly (--scaling weak)"
            )
        found = cut
    return misfit(found, shape) or found


def _cut(layout: Layout, batch: int) -> Layout | None:
    """The layout with micro-batches cut so that the batch stays; accumulation shrinks before the micro-batch does."""
    if batch % layout.replicas:
        return None
    each = batch // layout.replicas
    micro = next((m for m in range(min(layout.micro_batch, each), 0, -1) if each % m == 0), None)
    return None if micro is None else replace(layout, micro_batch=micro, accumulation=each // micro)


def candidates(shape: Shape, devices: int, batch: int, node_size: int) -> Iterator[Layout]:
    """Every layout of ``devices`` devices and ``batch`` samples that can exist: DP x sharded (ZeRO-1, ZeRO-3, HSDP) x
    TP (within a node) x PP (plain, interleaved) x EP x micro-batch x recomputation."""
    for tp in _divisors(min(devices, node_size, shape.heads)):
        for pp in _divisors(min(devices // tp, shape.layers)):
            if devices % (tp * pp) or shape.layers % pp:
                continue
            replicas = devices // (tp * pp)
            if batch % replicas:
                continue
            for start in _spreads(replicas, node_size // tp, shape):
                yield from _sized(replace(start, tp=tp, pp=pp), shape, batch // replicas)


def _spreads(replicas: int, near: int, shape: Shape) -> Iterator[Layout]:
    """Ways to spread ``replicas`` data-parallel ranks: copies, ZeRO-1, full shards, and shards within a node."""
    expert = [e for e in _divisors(min(replicas, shape.experts)) if replicas % e == 0] if shape.experts else [1]
    for ep in expert:
        yield Layout(dp=replicas, ep=ep)
        if replicas > 1:
            yield Layout(sharded=replicas, zero_stage=1, ep=ep)
            yield Layout(sharded=replicas, ep=ep)
        if 1 < near < replicas and replicas % near == 0:
            yield Layout(dp=replicas // near, sharded=near, ep=ep)


def _sized(layout: Layout, shape: Shape, each: int) -> Iterator[Layout]:
    for micro in MICRO_BATCHES:
        if each % micro:
            continue
        sized = replace(layout, micro_batch=micro, accumulation=each // micro)
        chunks = [1, 2, 4] if layout.pp > 1 and sized.accumulation % layout.pp == 0 else [1]
        for chunk in chunks:
            if shape.layers % (layout.pp * chunk) and chunk > 1:
                continue
            schedule: Literal["1f1b", "interleaved"] = "interleaved" if chunk > 1 else "1f1b"
            whole = replace(sized, virtual_stages=chunk, schedule=schedule)
            if misfit(whole, shape) is None:
                yield from (replace(whole, recompute=how) for how in RECOMPUTE)


def family(layout: Layout) -> str:
    """What kind of layout it is, for the table of those that lost."""
    axes = {"DP": layout.dp, "TP": layout.tp, "PP": layout.pp, "EP": layout.ep}
    names = [name for name, size in axes.items() if size > 1]
    if layout.sharded > 1:
        names.append("FSDP" if layout.zero_stage == 3 else f"ZeRO-{layout.zero_stage}")
    return " x ".join(names) or "1 device"


def _divisors(limit: int) -> list[int]:
    """Powers of two up to ``limit``, and ``limit`` itself where it is none."""
    powers = [1 << i for i in range(max(1, limit).bit_length()) if 1 << i <= limit]
    return powers if powers[-1] == limit else [*powers, limit]
