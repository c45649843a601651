"""Judging collectives: wrong results point at a rank only where they do, and slowness needs every pass's word."""

from __future__ import annotations

from typing import Any

from ddaudit import packs
from ddaudit.engine.judge import judge
from ddaudit.evidence import CollectivePoint, CollectiveSweep, PairTime, Spread, WrongResult
from ddaudit.findings import Finding, Severity, Status
from ddaudit.runbook.model import PlannedStep

CHECKS = packs.load(entries=False, environment=False).registry.checks
STEP = PlannedStep(id="s", title="t", source="book.md:3", runbook="book")


def ask(check: str, **fields: Any) -> list[Finding]:
    sweep = CollectiveSweep(**{"backend": "gloo", "world_size": 4, "checked": 8, **fields})
    return judge(CHECKS[check], {"collectives": sweep}, step=STEP)


def wrong(rank: int, source: int | None = None, op: str = "all-gather") -> WrongResult:
    fields = {"op": op, "bytes": 64, "host": f"node{rank}", "wrong": 1, "elements": 8, "index": 3, "expected": 2.0}
    return WrongResult(rank=rank, source=source, got=None, **fields)


def spread(low_s: float, median_s: float | None = None) -> Spread:
    return Spread(repeats=5, low_s=low_s, median_s=median_s or low_s, high_s=2 * (median_s or low_s))


def point(size: int, *lows: float, median_s: float | None = None) -> CollectivePoint:
    passes = tuple(spread(low, median_s) for low in lows)
    return CollectivePoint(op="all-reduce", group=(0, 1, 2, 3), bytes=size, passes=passes)


def pair(a: int, b: int, *lows: float, hosts: tuple[str, str] = ("n", "n")) -> PairTime:
    return PairTime(ranks=(a, b), hosts=hosts, bytes=65536, passes=tuple(spread(low) for low in lows))


def test_the_only_rank_that_received_wrong_values_is_named() -> None:
    (finding,) = ask("comm.results", wrong=(wrong(2, 0), wrong(2, 1)))
    assert (finding.id, finding.severity) == ("comm.wrong-result", Severity.CRITICAL)
    assert (finding.where.rank, finding.where.host) == (2, "node2")
    assert "is NaN, not 2" in finding.text


def test_the_only_rank_whose_part_was_wrong_everywhere_is_named() -> None:
    (finding,) = ask("comm.results", wrong=(wrong(0, 3), wrong(1, 3), wrong(3, 3)))
    assert finding.where.rank == 3 and finding.where.host == "node3"


def test_wrong_sums_on_all_ranks_accuse_nobody() -> None:
    (finding,) = ask("comm.results", wrong=(wrong(0, op="all-reduce"), wrong(1, op="all-reduce")))
    assert finding.where.rank is None and "points at" not in finding.text


def test_a_sweep_without_a_checked_result_is_not_a_pass() -> None:
    assert [f.status for f in ask("comm.results", checked=0)] == [Status.SKIP]


def test_a_size_is_slow_only_when_every_pass_says_so() -> None:
    rest = (point(4096, 1e-4, 1e-4, 1e-4), point(1 << 20, 3e-4, 3e-4, 3e-4))
    (slow,) = ask("comm.latency-bandwidth", points=(*rest, point(65536, 9e-3, 8e-3, 7e-3)))
    assert (slow.id, slow.status) == ("comm.slow-size", Status.WARN) and slow.where.key == "all-reduce 65536 B"
    (once,) = ask("comm.latency-bandwidth", points=(*rest, point(65536, 9e-3, 8e-3, 2e-4)))
    assert once.status is Status.PASS and "GB/s at 1048576 B" in once.text


def test_costs_are_not_measured_with_two_sizes() -> None:
    two = (point(4096, 1e-4), point(65536, 1e-4))
    assert [f.status for f in ask("comm.latency-bandwidth", points=two)] == [Status.SKIP]


def test_a_pair_is_compared_with_pairs_on_the_same_kind_of_path() -> None:
    inside = [pair(0, 1, 1e-4, 1e-4), pair(2, 3, 1e-4, 1e-4), pair(4, 5, 1e-4, 1e-4)]
    across = [pair(a, b, 2e-3, 2e-3, hosts=("n", "m")) for a, b in ((0, 2), (1, 3), (0, 3))]
    (healthy,) = ask("comm.pairs", pairs=(*inside, *across))
    assert healthy.status is Status.PASS and "6 pairs" in healthy.text
    slow = pair(1, 2, 9e-3, 9e-3, hosts=("n", "m"))
    (finding,) = ask("comm.pairs", pairs=(*inside, *across, slow))
    assert finding.id == "comm.slow-pair" and finding.where.key == "ranks 1-2" and "between n and m" in finding.text


def test_a_pair_that_was_slow_once_is_not_accused() -> None:
    rest = [pair(0, 1, 1e-4, 1e-4), pair(0, 2, 1e-4, 1e-4)]
    assert [f.status for f in ask("comm.pairs", pairs=(*rest, pair(1, 2, 9e-3, 1e-4)))] == [Status.PASS]


def test_one_pair_has_nothing_to_be_compared_with() -> None:
    assert [f.status for f in ask("comm.pairs", pairs=(pair(0, 1, 1e-4),))] == [Status.SKIP]
