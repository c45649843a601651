"""Which host, rail, port or link is slow? Nobody is accused by one measurement alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from ddaudit.api import (
    Finding,
    Limit,
    LinkTrials,
    Plant,
    RailAccused,
    Remedy,
    Where,
    check,
    confirm_rails,
    fail,
    ok,
    skip,
    suspect_rails,
)

from ._links import QUICK, NetLimits, carrier

Pair = tuple[int, int]
#: Fewer passes than this were all made within a moment.
WORK_PASSES = 6


def _plant(name: str, expect: str, plant: str) -> Plant:
    return Plant(name, expect, probe="links", ranks=3, params=QUICK, planted={"plant": plant}, types="links")


@check(
    "net.isolation",
    asks="Is one host, one rail, one port or one link slower than the rest of the fleet?",
    plant=(
        _plant("one of three links is slow", "net.bad-link", "slow-link"),
        _plant("one of three members is slow with everybody", "net.bad-port", "slow-port"),
        _plant("one of three members works slowly", "net.slow-host", "slow-host"),
        Plant(
            "one of two rails is slow for everybody",
            "net.bad-rail",
            probe="links",
            ranks=6,
            params=QUICK | {"rails": 2, "repeats": 1},
            planted={"plant": "slow-rail"},
            types="links",
        ),
    ),
)
def isolation(trials: LinkTrials, limits: NetLimits) -> Iterator[Finding]:
    """A round-robin tournament: who is slow with everybody has a bad port, or is a slow host where its own work is slow
    too; who is slow with one partner only shares a bad link with it. With several rails a rail on which all are slow is
    a bad rail, and a host that is slow on every rail a bad node. Each suspect met good partners again, and only what
    was slow every time is accused. Says which pairs the budget left out.
    """
    if len(trials.members) < 3:
        yield skip(f"not measured: {len(trials.members)} hosts cannot outvote each other; needs three")
        return
    slow_ranks = _slow_workers(trials, limits.work_factor)
    found: list[Finding] = [_slow_host(trials, m, times, limits.work_factor) for m, times in slow_ranks.items()]
    for reading in _readings(trials, limits):
        found += reading.accusations(slow_ranks)
    told = {f.where.key: f for f in reversed(found)}  # large and small messages often say the same
    yield from reversed(told.values())
    if not told:
        yield _quiet(trials, limits)


def _slow_workers(trials: LinkTrials, limit: Limit) -> dict[int, float]:
    """Members that took far longer than the others' median in every pass, also in those that were made later because
    of it: a core that was busy for a moment accuses nobody."""
    found = {}
    for member, mine in trials.work_s.items():
        others = [times for m, times in trials.work_s.items() if m != member]
        factors = [t / median(o[i] for o in others if len(o) > i) for i, t in enumerate(mine) if others]
        if len(factors) >= WORK_PASSES and limit.judge(min(factors)).value != "PASS":
            found[member] = min(factors)
    return found if len(found) * 2 < len(trials.work_s) else {}


def _slow_host(trials: LinkTrials, member: int, factor: float, limit: Limit) -> Finding:
    host = trials.hosts[member]
    return fail(
        "net.slow-host",
        f"host {host} (rank {member}) takes {factor:.1f} times as long as the other hosts for the same work, in each of"
        f" {len(trials.work_s[member])} passes without any message: the host is slow, not its network",
        where=Where(host=host, rank=member, key=f"host {host}"),
        measured=factor,
        unit="times the other hosts",
        limit=limit.bound(factor),
        limit_source=limit.source,
        remedy=Remedy(
            text="Look for a CPU quota, a neighbour, heat or a power limit on that host; leave it out until then.",
            commands=(f"ssh {host} ddaudit run smoke --only host", f"srun --exclude={host} ..."),
        ),
    )


def _readings(trials: LinkTrials, limits: NetLimits) -> Iterator[_Reading]:
    """Costs of pairs (by rail and place in it), of the first meetings and of the repeated ones: the slower direction
    of the largest message, then half the round trip of the smallest. A fixed amount is added to all, so that a large
    factor of next to nothing is nothing."""
    factor, excess = limits.slow_factor.fail_above or 4.0, limits.slow_excess_s.fail_above or 0.0
    floor_s = excess / (factor - 1)
    place = {rank: (rail, index) for rail, lane in enumerate(trials.lanes) for index, rank in enumerate(lane)}
    for what in ("large messages", "small messages"):
        costs: dict[int, dict[Pair, float]] = {rail: {} for rail in range(len(trials.lanes))}
        sides: dict[tuple[int, Pair], list[list[float]]] = {}
        for meeting in trials.meetings:
            (rail, mine), (_, other) = place[meeting.source], place[meeting.target]
            pair = (min(mine, other), max(mine, other))
            cost = (meeting.cost_s if what == "large messages" else meeting.latency_s) + floor_s
            if meeting.again:
                sides.setdefault((rail, pair), [[], []])[0 if mine < other else 1].append(cost)
            else:
                costs[rail][pair] = max(cost, costs[rail].get(pair, 0.0))
        again: dict[int, dict[Pair, list[float]]] = {rail: {} for rail in costs}
        for (rail, pair), (one, two) in sides.items():
            again[rail][pair] = [max(x) for x in zip(one, two, strict=False)]
        if any(costs.values()):
            yield _Reading(trials, what, costs, again, limits.slow_factor, factor)


@dataclass(frozen=True)
class _Reading:
    """What one size of message says of the fleet."""

    trials: LinkTrials
    what: str
    costs: Mapping[int, Mapping[Pair, float]]
    again: Mapping[int, Mapping[Pair, list[float]]]
    limit: Limit
    factor: float

    def accusations(self, slow_ranks: Mapping[int, float]) -> Iterator[Finding]:
        """One finding per accused; meetings of a host that is slow by itself say nothing about its network."""
        suspects = suspect_rails(self.costs, factor=self.factor)
        accused: RailAccused = confirm_rails(suspects, self.costs, self.again, factor=self.factor)
        slow = {lane.index(rank) for lane in self.trials.lanes for rank in slow_ranks if rank in lane}
        for rail, sure in accused.rails.items():
            yield self.bad_rail(rail, self._times(suspects.typical, rail), sure)
        for member, sure in accused.nodes.items():
            if member not in slow:
                times = median(self._times(suspects.typical, rail, member) for rail in suspects.by_rail)
                yield self.bad_node(member, len(suspects.by_rail), times, sure)
        for (member, rail), sure in accused.ports.items():
            if member not in slow:
                yield self.bad_port(member, rail, self._times(suspects.typical, rail, member), sure)
        for (rail, pair), sure in accused.links.items():
            if not slow & set(pair):
                yield self.bad_link(rail, pair, self.costs[rail][pair] / suspects.typical, sure)

    def _times(self, typical: float, rail: int, member: int | None = None) -> float:
        """The median of the rail's meetings, or of a member's on it, in times of the typical one."""
        return median(c for p, c in self.costs[rail].items() if member is None or member in p) / typical

    def host(self, member: int, rail: int = 0) -> str:
        return self.trials.hosts[self.trials.lanes[rail][member]]

    def on(self, rail: int) -> str:
        """Which rail, where there are several."""
        return f" on rail {rail}" if len(self.trials.lanes) > 1 else ""

    def failed(self, id: str, text: str, where: Where, times: float, remedy: Remedy) -> Finding:
        kept = {"limit": self.limit.bound(times), "limit_source": self.limit.source, "remedy": remedy}
        return fail(id, text, where=where, measured=times, unit="times the typical pair", **kept)

    def bad_rail(self, rail: int, times: float, sure: float) -> Finding:
        text = (
            f"{self.what} on rail {rail} (local rank {rail} of every host) take {times:.1f} times as long as elsewhere,"
            f" while the same hosts were quick when swapped to another rail; {sure:.0%} of the rail's meetings agree"
        )
        remedy = Remedy(
            text="What all interfaces of this index share: the rail's switch, its uplinks, or the order in which hosts"
            " number their interfaces. Leave the rail out until then.",
            commands=("ibstat", "nvidia-smi topo -m", "export NCCL_IB_HCA=^<the rail's device>"),
        )
        return self.failed("net.bad-rail", text, Where(key=f"rail {rail}"), times, remedy)

    def bad_node(self, member: int, rails: int, times: float, sure: float) -> Finding:
        host = self.host(member)
        text = (
            f"{self.what} of host {host} take {times:.1f} times as long as elsewhere with every partner on each of"
            f" {rails} rails; at least {sure:.0%} of its meetings agree: the node, not one of its ports"
        )
        remedy = Remedy(
            text="What all interfaces of the host share: PCIe, its CPU, memory and settings. Leave it out until then.",
            commands=(
                f"ssh {host} lspci -vv",
                f"ssh {host} ddaudit run smoke --only host",
                f"srun --exclude={host} ...",
            ),
        )
        return self.failed("net.bad-node", text, Where(host=host, key=f"host {host}"), times, remedy)

    def bad_port(self, member: int, rail: int, times: float, sure: float) -> Finding:
        host, rank = self.host(member, rail), self.trials.lanes[rail][member]
        wire = carrier(self.trials.interfaces, host)
        named = f", interface {wire.name}" if wire else ""
        text = (
            f"{self.what} of host {host} (rank {rank}{named}){self.on(rail)} take {times:.1f} times as long as"
            " elsewhere with every partner, also when it was swapped to partners that are quick with others;"
            f" {sure:.0%} of its meetings agree"
        )
        remedy = Remedy(
            text="The port, its cable or its switch port: compare rate and errors with another host's; leave it out.",
            commands=(f"ssh {host} ip -s link", f"ssh {host} ibstat", f"srun --exclude={host} ..."),
        )
        where = Where(host=host, rank=rank, key=f"host {host}{self.on(rail)}")
        return self.failed("net.bad-port", text, where, times, remedy)

    def bad_link(self, rail: int, pair: Pair, times: float, sure: float) -> Finding:
        first, second = (self.host(member, rail) for member in pair)
        text = (
            f"{self.what} between hosts {first} and {second}{self.on(rail)} take {times:.1f} times as long as"
            f" elsewhere, while both are quick with others; {sure:.0%} of their meetings agree"
        )
        remedy = Remedy(
            text="Both ends are sound, so look at what lies between them: the cable or the route over the switches.",
            commands=(f"ssh {first} ip -s link", f"ssh {second} ip -s link", f"ssh {first} tracepath {second}"),
        )
        where = Where(host=first, rank=self.trials.lanes[rail][pair[0]], key=f"{first}-{second}{self.on(rail)}")
        return self.failed("net.bad-link", text, where, times, remedy)


def _quiet(trials: LinkTrials, limits: NetLimits) -> Finding:
    count = len({tuple(sorted((m.source, m.target))) for m in trials.meetings})
    costs = [m.cost_s for m in trials.meetings if not m.again]
    worst = max(costs) / median(costs) if costs else 0.0
    spared = f"; {trials.left_out} pairs were not tested in the {trials.budget_s:g} s given" if trials.left_out else ""
    rails = f" on {len(trials.lanes)} rails" if len(trials.lanes) > 1 else ""
    met = f"{len(trials.members)} members{rails} in {trials.rounds} rounds, {count} pairs"
    text = f"{met}: no host, port or link is at fault{spared}"
    limit = limits.slow_factor
    return ok(text, measured=worst, unit="times the typical pair", limit=limit.bound(worst), limit_source=limit.source)
