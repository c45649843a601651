"""The ``links`` probe: every host meets every other, all pairs of a round at once, and suspects meet again."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.device import device_of, synchronize
from ddaudit.errors import RunbookProblem
from ddaudit.evidence.links import LinkTrials
from ddaudit.evidence.tournament import Pair, confirmation_rounds, rounds, suspect
from ddaudit.network import interface_bytes
from ddaudit.registry import probe

__all__ = ["LinksParams", "links"]

#: What a plant adds to a message or a piece of work.
PLANT_S = 0.15
PINGS = 11
WORK_SIZE, WORK_CALLS, WORK_PASSES = 256, 60, 3
#: A member whose work took this many times the others' works again, as often as suspects meet again, this much later:
#: a core that was busy for a moment is not a slow host.
SLOW_WORK, LATER_S = 1.5, 0.4


class LinksParams(BaseModel):
    """Messages of each of ``sizes`` bytes are sent ``repeats`` times each way in every meeting. No round begins once
    ``budget_s`` is used up. A meeting is suspicious from ``factor`` times the typical one on, and ``floor_s`` more than
    it; suspects meet again ``again`` times. ``expected_gbps`` is what every link should deliver, for the checks.
    ``plant`` breaks something on purpose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sizes: tuple[int, ...] = Field((1 << 20, 4 << 20), min_length=1, max_length=8)
    repeats: int = Field(3, ge=1, le=1000)
    budget_s: float | None = Field(None, gt=0)
    factor: float = Field(4.0, gt=1)
    floor_s: float = Field(0.02, ge=0)
    again: int = Field(3, ge=1, le=100)
    expected_gbps: float | None = Field(None, gt=0)
    plant: Literal["none", "slow-link", "slow-port", "slow-host"] = "none"


@probe("links", produces=(LinkTrials,), params=LinksParams, where="ranks")
def links(context: ProbeContext, params: LinksParams) -> None:
    """Times messages between hosts pair by pair, a piece of work on each, and counts bytes by interface. Suspects are
    tried again, against partners that nobody suspects, before a check may accuse them.

    Raises:
        RunbookProblem: one rank only.
    """
    if context.world_size < 2:
        raise RunbookProblem("links between hosts, with one rank", expected="at least 2 ranks, one on each host")
    members = _members(context)
    context.events.emit("links", members=members, budget_s=params.budget_s, expected_gbps=params.expected_gbps)
    field = _Field(context, params, members)
    before = interface_bytes()
    slow = field.work()
    began = time.monotonic()
    planned = list(rounds(len(members)))
    done = 0
    for pairs in planned:
        if not field.in_time(began):
            break
        field.play(pairs, again=False)
        done += 1
    found = [suspect(costs, factor=params.factor) for costs in field.costs()]
    for one in found:
        for _ in range(params.again):
            for pairs in confirmation_rounds(one, len(members)):
                field.play(pairs, again=True)
    for _ in range(params.again):
        if not slow:
            break
        time.sleep(LATER_S)
        slow = field.work()
    left_out = sum(len(pairs) for pairs in planned[done:])
    context.events.emit("links-end", rounds=done, left_out=left_out)
    _tell_interfaces(context, members, before)


def _members(context: ProbeContext) -> list[int]:
    """The first rank of each host; all ranks where there is one host only."""
    import torch
    import torch.distributed as dist

    mine = torch.tensor([zlib.crc32(context.host.encode())], dtype=torch.int64, device=context.device)
    told = [torch.zeros_like(mine) for _ in range(context.world_size)]
    dist.all_gather(told, mine)
    names = [int(t.item()) for t in told]
    firsts = [rank for rank, name in enumerate(names) if names.index(name) == rank]
    return firsts if len(firsts) > 1 else list(range(context.world_size))


class _Field:
    """Where the members meet. Every rank plays every round, so that all stay in step; most only watch."""

    def __init__(self, context: ProbeContext, params: LinksParams, members: list[int]) -> None:
        import torch

        self.context, self.params, self.members = context, params, members
        self.me = members.index(context.rank) if context.rank in members else None
        self.device = device_of(context.device, context.local_rank)
        self.data = {size: torch.zeros(max(1, size // 4), device=self.device) for size in params.sizes}
        self.word = torch.zeros(1, device=self.device)
        self.met: list[tuple[int, float, float]] = []

    def in_time(self, began: float) -> bool:
        """Whether another round may begin; rank 0's clock decides for all."""
        import torch
        import torch.distributed as dist

        used = time.monotonic() - began
        left = torch.tensor([self.params.budget_s is None or used < self.params.budget_s], dtype=torch.int64)
        left = left.to(self.device)
        dist.broadcast(left, src=0)
        return bool(left.item())

    def work(self) -> bool:
        """Times the same piece of work several times, while nobody sends. True, on all ranks, where a member was slower
        than the others in each pass."""
        import torch
        import torch.distributed as dist

        matrix = torch.ones(WORK_SIZE, WORK_SIZE, device=self.device) / WORK_SIZE
        seconds = []
        for number in range(WORK_PASSES + 1):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(WORK_CALLS):
                matrix = matrix @ matrix
            synchronize(self.device)
            if self._planted("slow-host"):
                time.sleep(PLANT_S)
            if number:  # the first pass warms up
                seconds.append(time.perf_counter() - began)
        if self.me is not None:
            self.context.events.emit("work", rank=self.context.rank, seconds=seconds)
        return self._one_is_slow(seconds)

    def _one_is_slow(self, seconds: list[float]) -> bool:
        import torch
        import torch.distributed as dist

        table = torch.zeros(len(self.members), len(seconds), dtype=torch.float64, device=self.device)
        if self.me is not None:
            table[self.me] = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(table)
        rows = table.tolist()
        for member, mine in enumerate(rows):
            others = [row for m, row in enumerate(rows) if m != member]
            if others and min(t / median(o[i] for o in others) for i, t in enumerate(mine)) > SLOW_WORK:
                return True
        return False

    def _planted(self, plant: str) -> bool:
        return self.params.plant == plant and self.me == len(self.members) - 1

    def play(self, pairs: list[Pair], *, again: bool) -> None:
        import torch.distributed as dist

        dist.barrier()
        for pair in pairs:
            if self.me in pair:
                self._meet(pair[0] if self.me == pair[1] else pair[1], again)

    def _meet(self, other: int, again: bool) -> None:
        peer, first = self.members[other], self.me is not None and self.me < other
        latency_s = self._ping(peer, first)
        seconds: dict[int, list[float]] = {size: [] for size in self.data}
        for sends in (first, not first):
            for size, data in self.data.items():
                for _ in range(self.params.repeats):
                    if sends:
                        seconds[size].append(max(1e-9, self._send(data, peer, other) - latency_s))
                    else:
                        self._receive(data, peer)
        told = {"source": self.context.rank, "target": peer, "again": again, "latency_s": latency_s}
        self.context.events.emit("meeting", meeting={**told, "seconds": seconds})
        if not again:
            self.met.append((other, median(seconds[max(seconds)]), latency_s))

    def _ping(self, peer: int, first: bool) -> float:
        """Half the median round trip of four bytes; both sides measure it."""
        import torch.distributed as dist

        trips, sent = [], 0.0
        for turn in range(PINGS + 2):
            if first:
                sent = time.perf_counter()
                dist.send(self.word, peer)
            dist.recv(self.word, peer)
            if turn > 1:  # the first turn opens the connection, and ends a lead of the other side
                trips.append(time.perf_counter() - sent)
            if not first:
                sent = time.perf_counter()
                dist.send(self.word, peer)
        return median(trips) / 2

    def _send(self, data: Any, peer: int, other: int) -> float:
        import torch.distributed as dist

        began = time.perf_counter()
        link = self.params.plant == "slow-link" and {self.me, other} == {0, 1}
        if link or self._planted("slow-port"):
            time.sleep(PLANT_S)
        dist.send(data, peer)
        dist.recv(self.word, peer)
        return time.perf_counter() - began

    def _receive(self, data: Any, peer: int) -> None:
        import torch.distributed as dist

        dist.recv(data, peer)
        if self._planted("slow-port"):
            time.sleep(PLANT_S)
        dist.send(self.word, peer)

    def costs(self) -> list[dict[Pair, float]]:
        """What every pair's meeting cost, the slower direction counting, for large messages and for small ones; the
        same on every rank. ``floor_s`` is added to all, so that a factor of next to nothing is nothing."""
        import torch
        import torch.distributed as dist

        count = len(self.members)
        table = torch.zeros(count, count, 2, dtype=torch.float64, device=self.device)
        for other, large, small in self.met:
            table[self.me, other] = torch.tensor([large, small], dtype=torch.float64)
        dist.all_reduce(table)
        worst = torch.maximum(table, table.transpose(0, 1)).tolist()
        floor_s = self.params.floor_s / (self.params.factor - 1)
        pairs = [(a, b) for a in range(count) for b in range(a + 1, count) if worst[a][b][0] > 0]
        return [{p: worst[p[0]][p[1]][kind] + floor_s for p in pairs} for kind in (0, 1)]


def _tell_interfaces(context: ProbeContext, members: list[int], before: dict[str, tuple[int, int]]) -> None:
    if context.rank not in members:
        return
    chosen = os.environ.get("NCCL_SOCKET_IFNAME" if context.device == "cuda" else "GLOO_SOCKET_IFNAME", "").split(",")
    for name, (received, sent) in interface_bytes().items():
        old = before.get(name, (0, 0))
        told = {"name": name, "received": max(0, received - old[0]), "sent": max(0, sent - old[1])}
        told |= {"host": context.host, "nominal_gbps": _nominal_gbps(name), "chosen": name in chosen}
        context.events.emit("interface", interface=told)


def _nominal_gbps(name: str) -> float | None:
    """What the driver of a piece of hardware says; a virtual interface's number means nothing."""
    folder = Path("/sys/class/net") / name
    try:
        speed = int((folder / "speed").read_text("ascii"))
    except (OSError, ValueError):
        return None
    return speed / 1000 if speed > 0 and (folder / "device").exists() else None
