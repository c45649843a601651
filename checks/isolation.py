"""Which host, rail, port or link is slow? Nobody is accused by one measurement alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from ddaudit.api import (
    Finding,
    Limit,
    LinkTrials,
    Plant,
    RailAccused,
    Remedy,
    Where,
    check,
    fail,
    ok,
    skip,
)

from ._links import QUICK, NetLimits, carrier
from ._meetings import TIMES, Pair, Reading, readings

#: One set of passes was made within a moment.
WORK_SETS = 2
#: A host whose work is slower than this by itself may be why its messages are slow: its network is not accused then.
DOUBTFUL_WORK = 1.5


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
    a bad rail, and a host that is slow on every rail a bad node. A share of TCP segments that had to be sent again is
    judged as slowness is: loss costs a long transfer little on average, and a collective a timeout now and then. Each
    suspect met good partners again, and only what was bad every time is accused. Says which pairs the budget left out.
    """
    if len(trials.members) < 3:
        yield skip(f"not measured: {len(trials.members)} hosts cannot outvote each other; needs three")
        return
    work = _work_factors(trials)
    slow = {m: times for m, times in work.items() if limits.work_factor.judge(times).value != "PASS"}
    if len(slow) * 2 >= len(trials.work_s):
        slow = {}
    doubtful = {m for m, times in work.items() if times >= DOUBTFUL_WORK}
    found: list[Finding] = [_slow_host(trials, m, times, limits.work_factor) for m, times in slow.items()]
    accused = [(_Verdict(trials, reading), reading.accused()) for reading in readings(trials, limits)]
    bad = _all_accused([told for _, told in accused])
    for verdict, told in accused:
        found += verdict.accusations(told, bad, doubtful)
    told_once = {f.where.key: f for f in reversed(found)}  # large and small messages often say the same
    yield from reversed(told_once.values())
    if not told_once:
        hidden = [f for verdict, told in accused for f in verdict.accusations(told, bad, set())]
        yield _not_proven(trials, doubtful, hidden[0].text) if hidden else _quiet(trials, limits)


def _not_proven(trials: LinkTrials, doubtful: set[int], text: str) -> Finding:
    hosts = ", ".join(sorted({trials.hosts[rank] for rank in doubtful}))
    return skip(
        f"not proven: {text}; but {hosts} worked more slowly than the others without any message too, though not by"
        " enough to be the cause: needs another run while nothing else runs there"
    )


def _all_accused(many: Sequence[RailAccused]) -> RailAccused:
    """What any of the readings accuses."""
    rails = {rail: sure for told in many for rail, sure in told.rails.items()}
    nodes = {node: sure for told in many for node, sure in told.nodes.items()}
    ports = {port: sure for told in many for port, sure in told.ports.items()}
    return RailAccused(rails, nodes, ports)


def _work_factors(trials: LinkTrials) -> dict[int, float]:
    """How many times as long as the others' each member's work took, of the best passes (whatever else runs on a host
    only adds time, so of two others the quicker one counts) of that set in which it was least: a core that was busy for
    a moment accuses nobody."""
    found = {}
    for member, mine in trials.work_s.items():
        others = [sets for m, sets in trials.work_s.items() if m != member]
        best = [(min(passes), [min(o[i]) for o in others if len(o) > i and o[i]]) for i, passes in enumerate(mine)]
        factors = [least / median_low(rest) for least, rest in best if rest]
        if len(factors) >= WORK_SETS:
            found[member] = min(factors)
    return found


def _slow_host(trials: LinkTrials, member: int, factor: float, limit: Limit) -> Finding:
    host = trials.hosts[member]
    return fail(
        "net.slow-host",
        f"host {host} (rank {member}) takes {factor:.1f} times as long as the other hosts for the same work, in each of"
        f" {len(trials.work_s[member])} sets of passes without any message: the host is slow, not its network",
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


@dataclass(frozen=True)
class _Verdict:
    """What one reading of the fleet accuses."""

    trials: LinkTrials
    reading: Reading

    def accusations(self, told: RailAccused, bad: RailAccused, doubtful: set[int]) -> Iterator[Finding]:
        """One finding per accused. Meetings of a ``doubtful`` rank's host say nothing about its network, and those on a
        bad rail or of a bad node or port (which loses packets too, where its queue is full) nothing about links."""
        slow = {lane.index(rank) for lane in self.trials.lanes for rank in doubtful if rank in lane}
        for rail, sure in told.rails.items():
            yield self.bad_rail(rail, self.reading.usual(rail), sure)
        for member, sure in told.nodes.items():
            if member not in slow:
                usual = median(self.reading.usual(rail, member) for rail in self.reading.suspects.by_rail)
                yield self.bad_node(member, len(self.reading.suspects.by_rail), usual, sure)
        for (member, rail), sure in told.ports.items():
            if member not in slow and member not in bad.nodes and rail not in bad.rails:
                yield self.bad_port(member, rail, self.reading.usual(rail, member), sure)
        for (rail, pair), sure in told.links.items():
            ends = [m for m in pair if m in slow or m in bad.nodes or (m, rail) in bad.ports]
            if not ends and rail not in bad.rails:
                yield self.bad_link(rail, pair, self.reading.costs[rail][pair], sure)

    def host(self, member: int, rail: int = 0) -> str:
        return self.trials.hosts[self.trials.lanes[rail][member]]

    def on(self, rail: int) -> str:
        """Which rail, where there are several."""
        return f" on rail {rail}" if len(self.trials.lanes) > 1 else ""

    def failed(self, id: str, text: str, where: Where, cost: float, remedy: Remedy) -> Finding:
        value, kind = self.reading.value(cost), self.reading.kind
        kept = {"limit": kind.limit.bound(value), "limit_source": kind.limit.source, "remedy": remedy}
        return fail(id, f"{kind.what} {text}", where=where, measured=value, unit=kind.unit, **kept)

    def bad_rail(self, rail: int, cost: float, sure: float) -> Finding:
        worse, well = self.reading.worse(cost), self.reading.kind.well
        text = (
            f"on rail {rail} (local rank {rail} of every host) {worse}, while the same hosts were {well}"
            f" when swapped to another rail; {sure:.0%} of the rail's meetings agree"
        )
        remedy = Remedy(
            text="What all interfaces of this index share: the rail's switch, its uplinks, or the order in which hosts"
            " number their interfaces. Leave the rail out until then.",
            commands=("ibstat", "nvidia-smi topo -m", "export NCCL_IB_HCA=^<the rail's device>"),
        )
        return self.failed("net.bad-rail", text, Where(key=f"rail {rail}"), cost, remedy)

    def bad_node(self, member: int, rails: int, cost: float, sure: float) -> Finding:
        host = self.host(member)
        worse = self.reading.worse(cost)
        text = (
            f"of host {host} {worse} with every partner on each of {rails} rails; at least {sure:.0%} of its meetings"
            " agree: the node, not one of its ports"
        )
        remedy = Remedy(
            text="What all interfaces of the host share: PCIe, its CPU, memory and settings. Leave it out until then.",
            commands=(
                f"ssh {host} lspci -vv",
                f"ssh {host} ddaudit run smoke --only host",
                f"srun --exclude={host} ...",
            ),
        )
        return self.failed("net.bad-node", text, Where(host=host, key=f"host {host}"), cost, remedy)

    def bad_port(self, member: int, rail: int, cost: float, sure: float) -> Finding:
        host, rank = self.host(member, rail), self.trials.lanes[rail][member]
        wire = carrier(self.trials.interfaces, host)
        named = f", interface {wire.name}" if wire else ""
        worse, well = self.reading.worse(cost), self.reading.kind.well
        text = (
            f"of host {host} (rank {rank}{named}){self.on(rail)} {worse} with every partner, also when it was swapped"
            f" to partners that are {well} with others; {sure:.0%} of its meetings agree"
        )
        remedy = Remedy(
            text="The port, its cable or its switch port: compare rate and errors with another host's; leave it out.",
            commands=(f"ssh {host} ip -s link", f"ssh {host} ibstat", f"srun --exclude={host} ..."),
        )
        where = Where(host=host, rank=rank, key=f"host {host}{self.on(rail)}")
        return self.failed("net.bad-port", text, where, cost, remedy)

    def bad_link(self, rail: int, pair: Pair, cost: float, sure: float) -> Finding:
        first, second = (self.host(member, rail) for member in pair)
        worse, well = self.reading.worse(cost), self.reading.kind.well
        text = (
            f"between hosts {first} and {second}{self.on(rail)} {worse}, while both are {well} with"
            f" others; {sure:.0%} of their meetings agree"
        )
        remedy = Remedy(
            text="Both ends are sound, so look at what lies between them: the cable or the route over the switches.",
            commands=(f"ssh {first} ip -s link", f"ssh {second} ip -s link", f"ssh {first} tracepath {second}"),
        )
        where = Where(host=first, rank=self.trials.lanes[rail][pair[0]], key=f"{first}-{second}{self.on(rail)}")
        return self.failed("net.bad-link", text, where, cost, remedy)


def _quiet(trials: LinkTrials, limits: NetLimits) -> Finding:
    count = len({tuple(sorted((m.source, m.target))) for m in trials.meetings})
    costs = [m.cost_s for m in trials.meetings if not m.again]
    worst = max(costs) / median(costs) if costs else 0.0
    spared = f"; {trials.left_out} pairs were not tested in the {trials.budget_s:g} s given" if trials.left_out else ""
    rails = f" on {len(trials.lanes)} rails" if len(trials.lanes) > 1 else ""
    met = f"{len(trials.members)} members{rails} in {trials.rounds} rounds, {count} pairs"
    lost = [m.lost_share for m in trials.meetings if not m.again and m.lost_share is not None]
    losses = f"at most {max(lost):.2%} of TCP segments lost" if lost else "losses not counted (too few TCP segments)"
    text = f"{met}, {losses}: no host, port or link is at fault{spared}"
    limit = limits.slow_factor
    return ok(text, measured=worst, unit=TIMES, limit=limit.bound(worst), limit_source=limit.source)
