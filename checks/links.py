"""Which host, port or link is slow, and which wire carried the bytes? Nobody is accused by one measurement alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from ddaudit.api import (
    Accused,
    Finding,
    Interface,
    Limit,
    Limits,
    LinkTrials,
    Meeting,
    Plant,
    Remedy,
    Suspects,
    Where,
    check,
    confirm,
    fail,
    ok,
    skip,
    suspect,
    warn,
)

Pair = tuple[int, int]
#: Fewer passes than this were all made within a moment.
WORK_PASSES = 6


class NetLimits(Limits):
    """Limits on links between hosts."""

    family = "net"

    slow_factor: Limit = Limit(
        fail_above=4.0,
        source="default: hosts of one fleet differ less, a port that fell back a generation more",
    )
    slow_excess_s: Limit = Limit(
        fail_above=0.02, source="default: less than this on the largest message is what a busy CPU does to a thread"
    )
    work_factor: Limit = Limit(
        fail_above=2.5, source="default: the same work on hosts of one kind; a busy core at worst halves it"
    )
    nominal_share: Limit = Limit(
        warn_below=0.3, source="default: one stream reaches a third of a hardware link's rate unless something is wrong"
    )


QUICK = {"sizes": [65536], "repeats": 3}


def _plant(name: str, expect: str, plant: str) -> Plant:
    return Plant(name, expect, probe="links", ranks=3, params=QUICK, planted={"plant": plant}, types="links")


@check(
    "net.isolation",
    asks="Is one host, one port or one link slower than the rest of the fleet?",
    plant=(
        _plant("one of three links is slow", "net.bad-link", "slow-link"),
        _plant("one of three members is slow with everybody", "net.bad-port", "slow-port"),
        _plant("one of three members works slowly", "net.slow-host", "slow-host"),
    ),
)
def isolation(trials: LinkTrials, limits: NetLimits) -> Iterator[Finding]:
    """A round-robin tournament: who is slow with everybody has a bad port, or is a slow host where its own work is slow
    too; who is slow with one partner only shares a bad link with it. Each suspect met good partners again, and only
    what was slow every time is accused. Says which pairs the budget left out.
    """
    if len(trials.members) < 3:
        yield skip(f"not measured: {len(trials.members)} hosts cannot outvote each other; needs three")
        return
    slow_hosts = _slow_workers(trials, limits.work_factor)
    found: list[Finding] = [_slow_host(trials, m, times, limits.work_factor) for m, times in slow_hosts.items()]
    for what, costs, again in _readings(trials, limits):
        factor = limits.slow_factor.fail_above or limits.slow_factor.warn_above or 4.0
        suspects = suspect(costs, factor=factor)
        accused = confirm(suspects, costs, again, factor=factor)
        found += _accusations(trials, what, accused, suspects, costs, limits, skip_members=set(slow_hosts))
    told = {f.where.key: f for f in reversed(found)}  # large and small messages often say the same
    yield from reversed(told.values())
    if not told:
        yield _quiet(trials, limits)


def _readings(
    trials: LinkTrials, limits: NetLimits
) -> Iterator[tuple[str, dict[Pair, float], dict[Pair, list[float]]]]:
    """Costs of pairs (by place in ``members``), of the first meetings and of the repeated ones: the slower direction
    of the largest message, then half the round trip of the smallest. A fixed amount is added to all, so that a large
    factor of next to nothing is nothing."""
    factor, excess = limits.slow_factor.fail_above or 4.0, limits.slow_excess_s.fail_above or 0.0
    floor_s = excess / (factor - 1)
    place = {rank: index for index, rank in enumerate(trials.members)}
    for what in ("large messages", "small messages"):
        costs: dict[Pair, float] = {}
        again: dict[Pair, list[float]] = {}
        sides: dict[Pair, list[list[float]]] = {}
        for meeting in trials.meetings:
            a, b = sorted((place[meeting.source], place[meeting.target]))
            cost = (meeting.cost_s if what == "large messages" else meeting.latency_s) + floor_s
            if meeting.again:
                mine = 0 if place[meeting.source] == a else 1
                sides.setdefault((a, b), [[], []])[mine].append(cost)
            else:
                costs[a, b] = max(cost, costs.get((a, b), 0.0))
        for pair, (one, other) in sides.items():
            again[pair] = [max(x) for x in zip(one, other, strict=False)]
        if costs:
            yield what, costs, again


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


def _accusations(
    trials: LinkTrials,
    what: str,
    accused: Accused,
    suspects: Suspects,
    costs: Mapping[Pair, float],
    limits: NetLimits,
    skip_members: set[int],
) -> Iterator[Finding]:
    """One finding per accused; meetings of a host that is slow by itself say nothing about its network."""
    slow = {i for i, rank in enumerate(trials.members) if rank in skip_members}
    for member, confidence in accused.members.items():
        if member not in slow:
            factor = median(c for p, c in costs.items() if member in p) / suspects.typical
            yield _bad_port(trials, trials.members[member], what, factor, confidence, limits.slow_factor)
    for pair, confidence in accused.links.items():
        if not slow & set(pair):
            factor = costs[pair] / suspects.typical
            yield _bad_link(trials, pair, what, factor, confidence, limits.slow_factor)


def _bad_port(trials: LinkTrials, rank: int, what: str, factor: float, confidence: float, limit: Limit) -> Finding:
    host, wire = trials.hosts[rank], _wire(trials, trials.hosts[rank])
    text = (
        f"{what} of host {host} (rank {rank}{wire}) take {factor:.1f} times as long as elsewhere with every partner,"
        f" also when it was swapped to partners that are quick with others; {confidence:.0%} of its meetings agree"
    )
    remedy = Remedy(
        text="The port, its cable or its switch port: compare rate and errors with another host's; leave it out.",
        commands=(f"ssh {host} ip -s link", f"ssh {host} ibstat", f"srun --exclude={host} ..."),
    )
    where = Where(host=host, rank=rank, key=f"host {host}")
    return fail("net.bad-port", text, where=where, measured=factor, unit="times the typical pair",
                limit=limit.bound(factor), limit_source=limit.source, remedy=remedy)  # fmt: skip


def _bad_link(trials: LinkTrials, pair: Pair, what: str, factor: float, confidence: float, limit: Limit) -> Finding:
    first, second = (trials.hosts[trials.members[m]] for m in pair)
    text = (
        f"{what} between hosts {first} and {second} take {factor:.1f} times as long as elsewhere, while both are quick"
        f" with others; {confidence:.0%} of their meetings agree"
    )
    remedy = Remedy(
        text="Both ends are sound, so look at what lies between them: the cable or the route over the switches.",
        commands=(f"ssh {first} ip -s link", f"ssh {second} ip -s link", f"ssh {first} tracepath {second}"),
    )
    where = Where(host=first, rank=trials.members[pair[0]], key=f"{first}-{second}")
    return fail("net.bad-link", text, where=where, measured=factor, unit="times the typical pair",
                limit=limit.bound(factor), limit_source=limit.source, remedy=remedy)  # fmt: skip


def _wire(trials: LinkTrials, host: str) -> str:
    used = _used(trials.interfaces, host)
    return f", interface {used.name}" if used else ""


def _used(interfaces: Sequence[Interface], host: str) -> Interface | None:
    """The interface of a host that carried most bytes."""
    mine = [i for i in interfaces if i.host == host and i.sent + i.received > 0]
    return max(mine, key=lambda i: i.sent + i.received, default=None)


def _quiet(trials: LinkTrials, limits: NetLimits) -> Finding:
    count = len({tuple(sorted((m.source, m.target))) for m in trials.meetings})
    costs = [m.cost_s for m in trials.meetings if not m.again]
    worst = max(costs) / median(costs) if costs else 0.0
    spared = f"; {trials.left_out} pairs were not tested in the {trials.budget_s:g} s given" if trials.left_out else ""
    met = f"{len(trials.members)} members in {trials.rounds} rounds, {count} pairs"
    text = f"{met}: no host, port or link is at fault{spared}"
    limit = limits.slow_factor
    return ok(text, measured=worst, unit="times the typical pair", limit=limit.bound(worst), limit_source=limit.source)


@check(
    "net.paths",
    question="bottleneck",
    asks="What do the links between hosts deliver, and over which interface?",
    plant=Plant(
        "messages take far longer than the rate that was promised",
        "net.below-nominal",
        probe="links",
        ranks=3,
        params=QUICK | {"sizes": [65536, 262144], "expected_gbps": 0.01},
        planted={"expected_gbps": 10000.0},
        types="links",
    ),
)
def paths(trials: LinkTrials, limits: NetLimits) -> Iterator[Finding]:
    """Bandwidth by the slope between large messages, latency as half a ping-pong's round trip, and the interface by the
    bytes that each host counted. A rate is held against what the runbook expects, or else the hardware's own."""
    rated = [(m.gbps, m) for m in trials.meetings if not m.again and m.gbps is not None]
    if not rated:
        yield skip(f"bandwidth not measured: needs messages of two sizes whose times differ; {_wires(trials)}")
        return
    limit = limits.nominal_share
    for host in dict.fromkeys(trials.hosts.values()):
        yield from _wrong_wire(trials, host)
    slowest = min(rated, key=lambda r: r[0] or 0.0)
    share, nominal, who = _share(trials, *slowest)
    text = _told(trials, rated, slowest[1])
    kept = {"where": Where(host=trials.hosts[slowest[1].source], key=who), "measured": slowest[0], "unit": "Gbit/s"}
    if nominal is None or limit.judge(share).value == "PASS":
        yield ok(text, **kept, limit=nominal, limit_source="what the interface's driver says" if nominal else None)
        return
    below = f"; that is {share:.1%} of the {nominal:g} Gbit/s expected of {who}: communication is the bottleneck"
    remedy = Remedy(
        text="Look at the negotiated rate, at shapers and at retransmissions of that interface on both hosts.",
        commands=(f"ethtool {who.partition(' ')[0]}", "tc qdisc show", "nstat -az TcpRetransSegs"),
    )
    kept |= {"limit": nominal * (limit.warn_below or limit.fail_below or 1.0), "limit_source": limit.source}
    yield warn("net.below-nominal", text + below, remedy=remedy, **kept)


def _share(trials: LinkTrials, gbps: float | None, meeting: Meeting) -> tuple[float, float | None, str]:
    """Share of the expected rate, that rate, and ``interface of host``."""
    host = trials.hosts[meeting.source]
    used = _used(trials.interfaces, host)
    nominal = trials.expected_gbps or (used.nominal_gbps if used else None)
    return (gbps or 0.0) / nominal if nominal else 1.0, nominal, f"{used.name if used else 'the network'} of {host}"


def _told(trials: LinkTrials, rated: Sequence[tuple[float | None, Meeting]], slowest: Meeting) -> str:
    rates = [r for r, _ in rated if r is not None]
    slow = f"{trials.hosts[slowest.source]} to {trials.hosts[slowest.target]}"
    return f"one way {min(rates):.3g} to {max(rates):.3g} Gbit/s (slowest {slow}), {_wires(trials)}"


def _wires(trials: LinkTrials) -> str:
    """Latency, and which interfaces carried the bytes."""
    latencies = [m.latency_s for m in trials.meetings if not m.again]
    carriers = [_used(trials.interfaces, host) for host in dict.fromkeys(trials.hosts.values())]
    wires = [f"{used.host} {used.name} sent {used.sent / 1e6:.1f} MB" for used in carriers if used]
    span = f"{min(latencies) * 1e6:.0f} to {max(latencies) * 1e6:.0f} us" if latencies else "not measured"
    return f"latency {span}; bytes went over {', '.join(wires[:8]) or 'interfaces that are not counted'}"


def _wrong_wire(trials: LinkTrials, host: str) -> Iterator[Finding]:
    """The bytes went over an interface slower than another one of the same host."""
    used = _used(trials.interfaces, host)
    faster = [
        i for i in trials.interfaces
        if i.host == host and used and i.nominal_gbps and used.nominal_gbps and i.nominal_gbps > 2 * used.nominal_gbps
    ]  # fmt: skip
    if used is None or not faster or used.sent + used.received < 1 << 20:
        return
    best = max(faster, key=lambda i: i.nominal_gbps or 0.0)
    yield warn(
        "net.wrong-interface",
        f"host {host} sent {used.sent / 1e6:.1f} MB over {used.name} ({used.nominal_gbps:g} Gbit/s) while {best.name}"
        f" has {best.nominal_gbps:g} Gbit/s and carried {best.sent / 1e6:.1f} MB",
        where=Where(host=host, key=f"{used.name} of {host}"),
        measured=used.nominal_gbps,
        unit="Gbit/s",
        limit=best.nominal_gbps,
        limit_source="the fastest interface of the host",
        remedy=Remedy(
            text="Name the fast interface on every host.",
            commands=(f"export GLOO_SOCKET_IFNAME={best.name} NCCL_SOCKET_IFNAME={best.name}",),
        ),
    )
