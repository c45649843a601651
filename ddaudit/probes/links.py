"""The ``links`` probe: every host meets every other, all pairs of a round at once, and suspects meet again."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from statistics import median, median_low
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.device import device_of, synchronize
from ddaudit.errors import RunbookProblem
from ddaudit.evidence.links import LinkTrials, Meeting, Segments
from ddaudit.evidence.rails import Round, repeat_rounds, suspect_rails
from ddaudit.evidence.tournament import Pair, rounds
from ddaudit.network import interface_bytes, tcp_carrier, tcp_counts
from ddaudit.registry import probe

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LinksParams", "links"]

#: What a plant adds to a message.
PLANT_S = 0.15
PINGS = 11
WORK_SIZE, WORK_CALLS, WORK_PASSES = 256, 20, 3
#: A member whose best pass took this many times the others' best works again, as often as suspects meet again, this
#: much later: a core that was busy for a moment is not a slow host.
SLOW_WORK, LATER_S = 1.5, 0.4
#: Stands in the table of shares for "not measured".
NOT_COUNTED = -1.0


class LinksParams(BaseModel):
    """Messages of each of ``sizes`` bytes are sent ``repeats`` times each way in every meeting. No round begins once
    ``budget_s`` is used up. The first ``rails`` ranks of each host play on a rail of their own each, all at the same
    time: of use where each has a network interface of its own. A meeting is suspicious from ``factor`` times the
    typical one on, and ``floor_s`` more than it, or where a share of ``floor_loss`` more of its TCP segments was lost;
    suspects meet again ``again`` times. ``expected_gbps`` is what every link should deliver, for the checks. ``plant``
    breaks something on purpose.

    A pass of work takes ``work_s``. A host with a CPU quota works at full speed for up to two slices of it (Linux deals
    them out every 0.1 s) and shows only in passes that are longer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sizes: tuple[int, ...] = Field((1 << 20, 4 << 20), min_length=1, max_length=8)
    repeats: int = Field(3, ge=1, le=1000)
    budget_s: float | None = Field(None, gt=0)
    rails: int = Field(1, ge=1, le=64)
    factor: float = Field(4.0, gt=1)
    floor_s: float = Field(0.02, ge=0)
    floor_loss: float = Field(0.01, gt=0, lt=1)
    again: int = Field(3, ge=1, le=100)
    work_s: float = Field(0.3, gt=0, le=60)
    expected_gbps: float | None = Field(None, gt=0)
    plant: Literal["none", "slow-link", "slow-port", "slow-host", "slow-rail"] = "none"


@probe("links", produces=(LinkTrials,), params=LinksParams, where="ranks")
def links(context: ProbeContext, params: LinksParams) -> None:
    """Times messages between hosts pair by pair, counts what TCP sent again meanwhile and the bytes by interface, and
    times a piece of work on each host. Suspects are tried again, against partners that nobody suspects, before a check
    may accuse them.

    Raises:
        RunbookProblem: one rank only.
    """
    if context.world_size < 2:
        raise RunbookProblem("links between hosts, with one rank", expected="at least 2 ranks, one on each host")
    lanes = _lanes(context, params.rails)
    told = {"budget_s": params.budget_s, "expected_gbps": params.expected_gbps}
    context.events.emit("links", members=lanes[0], lanes=lanes, **told)
    field = _Field(context, params, lanes)
    before = interface_bytes()
    slow = field.work()
    began = time.monotonic()
    planned = list(rounds(field.count))
    done = 0
    for pairs in planned:
        if not field.in_time(began):
            break
        field.play(dict.fromkeys(range(len(lanes)), pairs), again=False)
        done += 1
    plans = [repeat_rounds(suspect_rails(costs, factor=params.factor), field.count) for costs in field.costs()]
    # Who is slow and loses packets is suspected twice, and meets the same partners: once is enough.
    for plan in (plan for number, plan in enumerate(plans) if plan not in plans[:number]):
        for met in plan * params.again:
            field.play(met, again=True)
    for _ in range(params.again):
        if not slow:
            break
        time.sleep(LATER_S)
        slow = field.work()
    left_out = sum(len(pairs) for pairs in planned[done:]) * len(lanes)
    context.events.emit("links-end", rounds=done, left_out=left_out)
    _tell_interfaces(context, lanes[0], before)


def _lanes(context: ProbeContext, rails: int) -> list[list[int]]:
    """For each rail, one rank of every host, hosts in the order of their first ranks. Where there is one host only,
    each ``rails`` ranks in a row stand for one."""
    import torch
    import torch.distributed as dist

    mine = torch.tensor([zlib.crc32(context.host.encode())], dtype=torch.int64, device=context.device)
    told = [torch.zeros_like(mine) for _ in range(context.world_size)]
    dist.all_gather(told, mine)
    names = [int(t.item()) for t in told]
    hosts = [[rank for rank, name in enumerate(names) if name == one] for one in dict.fromkeys(names)]
    if len(hosts) == 1:
        hosts = [hosts[0][at : at + rails] for at in range(0, context.world_size, rails)]
    return [list(lane) for lane in zip(*hosts, strict=False)][:rails]


class _Field:
    """Where the members meet. Every rank plays every round, so that all stay in step; most only watch."""

    def __init__(self, context: ProbeContext, params: LinksParams, lanes: list[list[int]]) -> None:
        import torch

        self.context, self.params, self.count = context, params, len(lanes[0])
        self.rail = next((rail for rail, lane in enumerate(lanes) if context.rank in lane), None)
        self.lane = lanes[self.rail or 0]
        self.me = None if self.rail is None else self.lane.index(context.rank)
        self.rails = len(lanes)
        self.device = device_of(context.device, context.local_rank)
        self.data = {size: torch.zeros(max(1, size // 4), device=self.device) for size in params.sizes}
        self.word = torch.zeros(1, device=self.device)
        self.met: list[tuple[int, float, float, float]] = []

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
        """Times the same piece of work in several passes, while nobody sends. True, on all ranks, where a member's best
        pass was far slower than the others'."""
        import torch
        import torch.distributed as dist

        matrix = torch.ones(WORK_SIZE, WORK_SIZE, device=self.device) / WORK_SIZE
        self._piece(matrix)  # warms up
        seconds = []
        for _ in range(WORK_PASSES):
            dist.barrier()
            seconds.append(self._pass(matrix))
        if self.me is not None:
            self.context.events.emit("work", rank=self.context.rank, seconds=seconds)
        return self._one_is_slow(seconds)

    def _pass(self, matrix: Tensor) -> float:
        """Seconds that a piece of work takes on average over ``work_s``."""
        began, pieces = time.perf_counter(), 0
        while not pieces or (took := time.perf_counter() - began) < self.params.work_s:
            self._piece(matrix)
            pieces += 1
        return took / pieces

    def _piece(self, matrix: Tensor) -> None:
        began = time.perf_counter()
        for _ in range(WORK_CALLS):
            matrix = matrix @ matrix
        synchronize(self.device)
        if self._planted("slow-host"):  # in proportion, so that a busy machine does not hide it
            time.sleep(9 * (time.perf_counter() - began))

    def _one_is_slow(self, seconds: list[float]) -> bool:
        import torch
        import torch.distributed as dist

        places = self.rails * self.count
        table = torch.zeros(places, dtype=torch.float64, device=self.device)
        if self.rail is not None and self.me is not None:
            table[self.rail * self.count + self.me] = min(seconds)
        dist.all_reduce(table)
        best = table.tolist()
        others = [best[:place] + best[place + 1 :] for place in range(places)]
        return any(rest and mine > SLOW_WORK * median_low(rest) for mine, rest in zip(best, others, strict=True))

    def _planted(self, plant: str) -> bool:
        if plant == "slow-rail":
            return self.params.plant == plant and self.rail == self.rails - 1
        return self.params.plant == plant and self.me == self.count - 1

    def play(self, met: Round, *, again: bool) -> None:
        import torch.distributed as dist

        dist.barrier()
        mine = () if self.rail is None else met.get(self.rail, ())
        for pair in mine:
            if self.me in pair:
                self._meet(pair[0] if self.me == pair[1] else pair[1], again)

    def _meet(self, other: int, again: bool) -> None:
        peer, first = self.lane[other], self.me is not None and self.me < other
        before = tcp_counts()
        latency_s = self._ping(peer, first)
        seconds: dict[int, list[float]] = {size: [] for size in self.data}
        for sends in (first, not first):
            for size, data in self.data.items():
                for _ in range(self.params.repeats):
                    if sends:
                        seconds[size].append(max(1e-9, self._send(data, peer, other) - latency_s))
                    else:
                        self._receive(data, peer)
        sent = tcp_carrier(before, tcp_counts())
        told = {"source": self.context.rank, "target": peer, "again": again, "latency_s": latency_s}
        met = Meeting(**told, seconds=seconds, segments=Segments(**sent._asdict()) if sent else None)
        self.context.events.emit("meeting", meeting=met.model_dump(mode="json"))
        if not again:
            lost = NOT_COUNTED if met.lost_share is None else met.lost_share
            self.met.append((other, met.cost_s, met.latency_s, lost))

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
        if link or self._planted("slow-port") or self._planted("slow-rail"):
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

    def costs(self) -> list[dict[int, dict[Pair, float]]]:
        """What every pair's meeting cost on each rail, the worse direction counting: seconds for large messages, for
        small ones, and the share of lost segments; the same on every rank. ``floor_s`` or ``floor_loss`` is added to
        all, so that a factor of next to nothing is nothing."""
        import torch
        import torch.distributed as dist

        count = self.count
        table = torch.zeros(self.rails, count, count, 3, dtype=torch.float64, device=self.device)
        for other, *cost in self.met:
            table[self.rail, self.me, other] = torch.tensor(cost, dtype=torch.float64)
        dist.all_reduce(table)
        worst = torch.maximum(table, table.transpose(1, 2)).tolist()
        params = self.params
        floors = [floor / (params.factor - 1) for floor in (params.floor_s, params.floor_s, params.floor_loss)]
        pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
        return [
            {rail: {(a, b): met[a][b][kind] + floor for a, b in pairs if met[a][b][0] > 0 and met[a][b][kind] >= 0}
             for rail, met in enumerate(worst)}
            for kind, floor in enumerate(floors)
        ]  # fmt: skip


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
