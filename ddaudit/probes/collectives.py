"""The ``collectives`` probe: times every collective over sizes, checks every result, and every pair of ranks."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.device import backend, device_of, synchronize
from ddaudit.errors import RunbookProblem
from ddaudit.evidence.collectives import CollectiveSweep
from ddaudit.probes._collective_ops import Prepared, prepare
from ddaudit.registry import probe

__all__ = ["CollectivesParams", "collectives"]

Op = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-recv"]
Plant = Literal["none", "wrong-output", "wrong-input", "slow-size", "slow-pair"]
#: Passes over all sizes and pairs. They lie apart in time, so that a neighbour's burst does not hit the same in each.
PASSES = 3
#: What a plant adds to a call or to a round trip: far more than it takes on a loaded machine.
PLANT_S = 0.08
#: The largest size by default. Links need tens of megabytes to show their bandwidth; a CPU's loopback does not.
MAX_BYTES = {"cpu": 1 << 20, "cuda": 256 << 20}
PAIR_BYTES = {"cpu": 1 << 16, "cuda": 64 << 20}


class CollectivesParams(BaseModel):
    """``sizes`` messages from ``min_bytes`` to ``max_bytes`` (by device where unset), evenly spaced on a log scale,
    each called ``repeats`` times in each of three passes. ``group_size`` splits the ranks into groups of that many
    neighbours, which work at the same time; 0 takes all in one. Pairs are timed in worlds of up to ``pairs_up_to``
    ranks. ``plant`` breaks something on purpose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ops: tuple[Op, ...] = Field(get_args(Op), min_length=1)
    min_bytes: int = Field(4096, ge=4, le=1 << 34)
    max_bytes: int | None = Field(None, ge=4, le=1 << 34)
    sizes: int = Field(4, ge=1, le=64)
    repeats: int = Field(5, ge=1, le=10_000)
    group_size: int = Field(0, ge=0)
    pairs_up_to: int = Field(8, ge=0, le=64)
    pair_bytes: int | None = Field(None, ge=4, le=1 << 30)
    plant: Plant = "none"


@probe("collectives", produces=(CollectiveSweep,), params=CollectivesParams, where="ranks")
def collectives(context: ProbeContext, params: CollectivesParams) -> None:
    """Sweeps the collectives up and down the sizes in turn, and compares each result with the exact answer.

    Each rank records its own times; a barrier before each size lines the ranks up, and the device is waited for in each
    call, so a time holds the call's launch too. Needs at least two ranks.

    Raises:
        RunbookProblem: one rank only, or a group size that does not divide the ranks.
    """
    import torch.distributed as dist

    ranks, group = _group(context, params)
    context.events.emit("collective-sweep", backend=backend(context.device), world_size=context.world_size)
    sizes = _sizes(params, context.device)
    for number in range(PASSES):
        for op, size in itertools.product(params.ops, sizes[:: -1 if number % 2 else 1]):
            prepared = prepare(op, size, ranks, context.rank, group, context.device)
            slow = params.plant == "slow-size" and op == params.ops[0] and size == sizes[len(sizes) // 2]
            _time(context, params, op, prepared, ranks, group, slow=slow and context.rank == ranks[-1])
    if 2 <= context.world_size <= params.pairs_up_to:
        for _ in range(PASSES):
            for pair in itertools.combinations(range(context.world_size), 2):
                _time_pair(context, params, pair)
    dist.barrier()


def _group(context: ProbeContext, params: CollectivesParams) -> tuple[list[int], Any]:
    """This rank's group: its members and its handle. Every rank makes every group, in one order."""
    import torch.distributed as dist

    world = context.world_size
    size = params.group_size or world
    if size < 2 or world % size:
        raise RunbookProblem(
            f"collectives in groups of {size} on {world} rank(s)",
            expected="at least 2 ranks, in groups that divide them evenly",
        )
    if size == world:
        return list(range(world)), dist.group.WORLD
    groups = [list(range(first, first + size)) for first in range(0, world, size)]
    handles = [dist.new_group(members) for members in groups]
    return groups[context.rank // size], handles[context.rank // size]


def _sizes(params: CollectivesParams, device: str) -> list[int]:
    """Message sizes in bytes, ascending, without duplicates."""
    most = max(params.max_bytes or MAX_BYTES.get(device, 1 << 20), params.min_bytes)
    steps = max(1, params.sizes - 1)
    ratio = math.log(most / params.min_bytes) / steps
    return sorted({round(params.min_bytes * math.exp(ratio * i)) // 4 * 4 for i in range(params.sizes)})


def _time(
    context: ProbeContext,
    params: CollectivesParams,
    op: str,
    prepared: Prepared,
    ranks: Sequence[int],
    group: Any,
    *,
    slow: bool,
) -> None:
    """One checked call that also warms up, then the timed ones."""
    import torch.distributed as dist

    device = device_of(context.device, context.local_rank)
    victim = context.rank == context.world_size - 1
    if params.plant == "wrong-input" and victim:
        prepared.input[0] += 1
    prepared.fill()
    prepared.run()
    synchronize(device)
    if params.plant == "wrong-output" and victim:
        prepared.result[-1] += 1
    _verify(context, op, prepared)
    dist.barrier(group=group)
    seconds = []
    for _ in range(params.repeats):
        prepared.fill()
        synchronize(device)
        began = time.perf_counter()
        if slow:
            time.sleep(PLANT_S)
        prepared.run()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    where = {"op": op, "group": list(ranks), "bytes": prepared.size_bytes, "rank": context.rank}
    context.events.emit("collective", **where, seconds=seconds, checked=1)


def _verify(context: ProbeContext, op: str, prepared: Prepared) -> None:
    """Records every part of the result that is not exactly what it must be."""
    sources = prepared.sources or (None,)
    count = prepared.expected.numel() // len(sources)
    for part, source in enumerate(sources):
        mine = slice(part * count, (part + 1) * count)
        got, expected = prepared.result[mine], prepared.expected[mine]
        differ = (got != expected).nonzero().flatten()
        if not differ.numel():
            continue
        first = int(differ[0])
        value = float(got[first])
        result = {"op": op, "bytes": prepared.size_bytes, "rank": context.rank, "host": context.host, "source": source}
        result |= {"wrong": differ.numel(), "elements": count, "index": part * count + first}
        result |= {"expected": float(expected[first]), "got": None if math.isnan(value) else value}
        context.events.emit("collective-wrong", result=result)


def _time_pair(context: ProbeContext, params: CollectivesParams, pair: tuple[int, int]) -> None:
    """Ping-pong of two ranks while the others wait; the first of the two records half the round trips."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    if context.rank not in pair:
        return
    device = device_of(context.device, context.local_rank)
    size_bytes = params.pair_bytes or PAIR_BYTES.get(context.device, 1 << 16)
    data = torch.zeros(size_bytes // 4, device=device)
    first, peer = context.rank == pair[0], pair[1] if context.rank == pair[0] else pair[0]
    slow = params.plant == "slow-pair" and pair[1] == context.world_size - 1 and pair[0] == 0
    seconds = []
    for turn in range(params.repeats + 1):
        began = time.perf_counter()
        if first:
            dist.send(data, peer)
            dist.recv(data, peer)
        else:
            if slow:
                time.sleep(PLANT_S)
            dist.recv(data, peer)
            dist.send(data, peer)
        synchronize(device)
        if turn:  # the first turn opens the connection
            seconds.append((time.perf_counter() - began) / 2)
    if first:
        context.events.emit("pair", ranks=list(pair), bytes=data.numel() * 4, seconds=seconds)
