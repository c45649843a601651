"""Do the collectives give the right answer, in the time that latency and bandwidth predict, between all ranks alike?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from ddaudit.api import (
    CollectivePoint,
    CollectiveSweep,
    Finding,
    Fit,
    Limit,
    Limits,
    PairTime,
    Plant,
    Remedy,
    Severity,
    Where,
    WrongResult,
    check,
    fail,
    ok,
    skip,
    warn,
)


class CommLimits(Limits):
    """Limits on timings that two passes agree on."""

    family = "comm"

    size_factor: Limit = Limit(warn_above=3.0, source="default: a message takes no longer than a larger one")
    pair_factor: Limit = Limit(warn_above=3.0, source="default: pairs of one kind of path differ less than this")


QUICK = {"sizes": 3, "max_bytes": 65536, "repeats": 5, "pairs_up_to": 0}


def _plant(name: str, expect: str, plant: str, ranks: int = 2, **params: Any) -> Plant:
    return Plant(
        name,
        expect,
        probe="collectives",
        ranks=ranks,
        params={**QUICK, **params},
        planted={"plant": plant},
        types="comm",
    )


@check(
    "comm.results",
    asks="Does every collective give exactly the right result on every rank?",
    plant=(
        _plant("one rank's received data is altered", "comm.wrong-result", "wrong-output"),
        _plant("one rank sends altered data", "comm.wrong-result", "wrong-input"),
    ),
)
def results(sweep: CollectiveSweep) -> Iterator[Finding]:
    """Compares with whole numbers whose sums are exact in any order. A rank is named when it alone received wrong
    values, or when all wrong values are its part; otherwise the operations are named and nobody is accused."""
    if not sweep.checked:
        yield skip("not measured: no collective ran to its end")
    elif not sweep.wrong:
        operations = len({p.op for p in sweep.points})
        text = f"{sweep.checked} results of {operations} kinds of collective are exact on {sweep.world_size} ranks"
        yield ok(text, measured=0, unit="wrong results", limit=0, limit_source="arithmetic: whole numbers in float32")
    else:
        guilty = _guilty(sweep.wrong)
        for op in dict.fromkeys(w.op for w in sweep.wrong):
            yield _wrong(op, [w for w in sweep.wrong if w.op == op], guilty)


def _guilty(wrong: Sequence[WrongResult]) -> int | None:
    """The only rank that received wrong values, or else the only one whose part was wrong."""
    receivers = {w.rank for w in wrong}
    sources = {w.source for w in wrong if w.source is not None}
    if len(receivers) == 1:
        return receivers.pop()
    return sources.pop() if len(sources) == 1 else None


def _wrong(op: str, found: Sequence[WrongResult], guilty: int | None) -> Finding:
    first = found[0]
    ranks = ", ".join(str(r) for r in sorted({w.rank for w in found})[:8])
    got = "NaN" if first.got is None else f"{first.got:g}"
    part = "" if first.source is None else f" (rank {first.source}'s part)"
    host = next((w.host for w in found if w.rank == guilty), None)
    blame = "" if guilty is None else f"; all of it points at rank {guilty}"
    return fail(
        "comm.wrong-result",
        f"{op} of {first.bytes} bytes gave wrong values on rank(s) {ranks}: element {first.index}{part} is {got}, not"
        f" {first.expected:g}, on rank {first.rank}{blame}",
        severity=Severity.CRITICAL,
        where=Where(rank=guilty, host=host, key=op),
        measured=len(found),
        unit="wrong results",
        limit=0,
        limit_source="arithmetic: whole numbers in float32 are exact",
        remedy=Remedy(
            text="Numbers trained with these collectives are wrong. Repeat with other ranks on other devices: does the"
            " fault follow the device, the host or the size? Then try the library's other algorithms and protocols.",
            commands=("NCCL_ALGO=Ring NCCL_PROTO=Simple ddaudit run scale-out --only collectives",),
        ),
    )


@check(
    "comm.latency-bandwidth",
    asks="What do the collectives cost, and is every size as quick as the next larger one?",
    plant=_plant("one size is slow", "comm.slow-size", "slow-size", ops=["all-reduce"], repeats=3),
)
def latency_bandwidth(sweep: CollectiveSweep, limits: CommLimits) -> Iterator[Finding]:
    """Prints the fit of ``t = alpha + S / B`` per operation and group with its error, and the bus bandwidths.

    A size is called slow when in every pass even its quickest call took far longer than the next larger size does in
    the median: a neighbour's burst does not do that, a wrong choice of algorithm or protocol does.
    """
    fits = sweep.fits()
    if not fits:
        yield skip("not measured: a fit needs times of at least three sizes")
        return
    limit = limits.size_factor
    factors = [
        (_excess(point, larger), point, larger)
        for curve in sweep.curves().values()
        for point, larger in pairwise(curve)
    ]
    slow = [row for row in factors if limit.judge(row[0]).value != "PASS"]
    yield from (_slow_size(*row, limit) for row in slow)
    if not slow:
        worst = max(factor for factor, _, _ in factors)
        yield ok(
            "; ".join(_cost(sweep, key, fit) for key, fit in fits.items()),
            measured=worst,
            unit="times the next larger size",
            limit=limit.bound(worst),
            limit_source=limit.source,
        )


def _excess(point: CollectivePoint, larger: CollectivePoint) -> float:
    """The least, over the passes, of a size's quickest call over the next larger size's median."""
    return min(mine.low_s / other.median_s for mine, other in zip(point.passes, larger.passes, strict=False))


def _cost(sweep: CollectiveSweep, key: tuple[str, tuple[int, ...]], fit: Fit) -> str:
    op, group = key
    largest = max((p for p in sweep.points if (p.op, p.group) == key), key=lambda p: p.bytes)
    band = "no bandwidth term" if fit.asymptotic_gbps is None else f"S/({fit.asymptotic_gbps:.2f} GB/s)"
    where = f" in ranks {group[0]}-{group[-1]}" if len(group) < sweep.world_size else ""
    return (
        f"{op}{where} {fit.alpha_s * 1e6:.0f} us + {band}, fit error {fit.error:.0%},"
        f" bus {largest.busbw_gbps:.2f} GB/s at {largest.bytes} B"
    )


def _slow_size(factor: float, point: CollectivePoint, larger: CollectivePoint, limit: Limit) -> Finding:
    quickest = min(p.low_s for p in point.passes)
    return warn(
        "comm.slow-size",
        f"{point.op} of {point.bytes} bytes takes {quickest * 1e6:.0f} us at best, {larger.bytes} bytes take"
        f" {larger.median_s * 1e6:.0f} us: {factor:.1f} times as long at least, in each of {len(point.passes)} passes",
        where=Where(key=f"{point.op} {point.bytes} B"),
        measured=factor,
        unit="times the next larger size",
        limit=limit.bound(factor),
        limit_source=limit.source,
        remedy=Remedy(text="Look at the library's choice of algorithm and protocol at this size, and at its tuner."),
    )


@check(
    "comm.pairs",
    asks="Do all pairs of ranks on the same kind of path talk equally fast?",
    plant=_plant(
        "one of three pairs is slow",
        "comm.slow-pair",
        "slow-pair",
        3,
        ops=["broadcast"],
        sizes=1,
        pairs_up_to=3,
        repeats=3,
    ),
)
def pairs(sweep: CollectiveSweep, limits: CommLimits) -> Iterator[Finding]:
    """Compares a pair's quickest message with the others' median, inside a host or between hosts. A pair is slow only
    when every round says so; the rounds lie apart in time."""
    judged = 0
    limit = limits.pair_factor
    slow: list[Finding] = []
    worst = 0.0
    for inside in (True, False):
        alike = [p for p in sweep.pairs if (p.hosts[0] == p.hosts[1]) is inside]
        for pair in alike if len(alike) >= 3 else []:
            factor = _factor(pair, [p for p in alike if p is not pair])
            judged, worst = judged + 1, max(worst, factor)
            if limit.judge(factor).value != "PASS":
                slow.append(_slow_pair(pair, factor, limit))
    if not judged:
        yield skip(f"not measured: needs three pairs on one kind of path, there are {len(sweep.pairs)} pair(s) in all")
    elif slow:
        yield from slow
    else:
        yield ok(
            f"{judged} pairs talk alike; half a round trip takes {_median_us(sweep.pairs):.0f} us in the median",
            measured=worst,
            unit="times the others' median",
            limit=limit.bound(worst),
            limit_source=limit.source,
        )


def _factor(pair: PairTime, others: Sequence[PairTime]) -> float:
    """The least, over the rounds, of this pair's quickest time over the median of the others' medians."""
    return min(
        mine.low_s / median(p.passes[number].median_s for p in others if len(p.passes) > number)
        for number, mine in enumerate(pair.passes)
    )


def _median_us(found: Sequence[PairTime]) -> float:
    return median(s.median_s for p in found for s in p.passes) * 1e6


def _slow_pair(pair: PairTime, factor: float, limit: Limit) -> Finding:
    (first, second), (host, other) = pair.ranks, pair.hosts
    path = f"on {host}" if host == other else f"between {host} and {other}"
    best = min(s.low_s for s in pair.passes)
    return warn(
        "comm.slow-pair",
        f"ranks {first} and {second} {path} take {best * 1e6:.0f} us for {pair.bytes} bytes one way, {factor:.1f} times"
        f" the median of the other pairs, in each of {len(pair.passes)} rounds",
        where=Where(host=host, key=f"ranks {first}-{second}"),
        measured=factor,
        unit="times the others' median",
        limit=limit.bound(factor),
        limit_source=limit.source,
        remedy=Remedy(
            text="Compare the path: slot, switch and cable between hosts; NVLink, PCIe root and NUMA node within one.",
            commands=("nvidia-smi topo -m",),
        ),
    )
