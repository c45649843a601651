"""What do the links between hosts deliver, and which wire carried the bytes?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddaudit.api import Finding, LinkTrials, Meeting, Plant, Remedy, Where, check, ok, skip, warn

from ._links import QUICK, NetLimits, carrier


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
    used = carrier(trials.interfaces, host)
    nominal = trials.expected_gbps or (used.nominal_gbps if used else None)
    return (gbps or 0.0) / nominal if nominal else 1.0, nominal, f"{used.name if used else 'the network'} of {host}"


def _told(trials: LinkTrials, rated: Sequence[tuple[float | None, Meeting]], slowest: Meeting) -> str:
    rates = [r for r, _ in rated if r is not None]
    slow = f"{trials.hosts[slowest.source]} to {trials.hosts[slowest.target]}"
    return f"one way {min(rates):.3g} to {max(rates):.3g} Gbit/s (slowest {slow}), {_wires(trials)}"


def _wires(trials: LinkTrials) -> str:
    """Latency, and which interfaces carried the bytes."""
    latencies = [m.latency_s for m in trials.meetings if not m.again]
    carriers = [carrier(trials.interfaces, host) for host in dict.fromkeys(trials.hosts.values())]
    wires = [f"{used.host} {used.name} sent {used.sent / 1e6:.1f} MB" for used in carriers if used]
    span = f"{min(latencies) * 1e6:.0f} to {max(latencies) * 1e6:.0f} us" if latencies else "not measured"
    return f"latency {span}; bytes went over {', '.join(wires[:8]) or 'interfaces that are not counted'}"


def _wrong_wire(trials: LinkTrials, host: str) -> Iterator[Finding]:
    """The bytes went over an interface slower than another one of the same host."""
    used = carrier(trials.interfaces, host)
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
