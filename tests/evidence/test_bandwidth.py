"""The arithmetic of collective timings, against values worked out by hand."""

from __future__ import annotations

import pytest

from ddaudit.evidence import algbw_gbps, busbw_gbps, fit_alpha_beta
from ddaudit.evidence.bandwidth import BUS_FACTOR

#: A buffer of 1 GB (10**9 bytes) in half a second: algorithm bandwidth 2 GB/s. Bus bandwidth by the definitions of
#: nccl-tests (doc/PERFORMANCE.md, "Summary"): all-reduce x 2(n-1)/n; reduce-scatter, all-gather, all-to-all x (n-1)/n;
#: broadcast and send/recv x 1.
TABLE = {
    "all-reduce": {2: 2.0, 3: 8 / 3, 4: 3.0, 8: 3.5},
    "all-gather": {2: 1.0, 3: 4 / 3, 4: 1.5, 8: 1.75},
    "reduce-scatter": {2: 1.0, 3: 4 / 3, 4: 1.5, 8: 1.75},
    "all-to-all": {2: 1.0, 3: 4 / 3, 4: 1.5, 8: 1.75},
    "broadcast": {2: 2.0, 3: 2.0, 4: 2.0, 8: 2.0},
    "send-recv": {2: 2.0, 3: 2.0, 4: 2.0, 8: 2.0},
}


def test_the_table_covers_every_operation() -> None:
    assert set(TABLE) == set(BUS_FACTOR)


@pytest.mark.parametrize(("op", "ranks"), [(op, n) for op, row in TABLE.items() for n in row])
def test_bus_bandwidth_is_that_of_nccl_tests(op: str, ranks: int) -> None:
    assert algbw_gbps(10**9, 0.5) == 2.0
    assert busbw_gbps(op, 10**9, 0.5, ranks) == pytest.approx(TABLE[op][ranks], rel=1e-12)


def test_a_subgroup_of_two_among_eight_ranks_counts_as_two() -> None:
    """The world's size would inflate the bus bandwidth of a small group: 3.5 instead of 2 GB/s."""
    from ddaudit.evidence import CollectivePoint, Spread

    half = Spread(repeats=1, low_s=0.5, median_s=0.5, high_s=0.5)
    point = CollectivePoint(op="all-reduce", group=(4, 5), bytes=10**9, passes=(half,))
    assert point.busbw_gbps == 2.0
    assert point.model_copy(update={"group": tuple(range(8))}).busbw_gbps == 3.5


def test_the_model_finds_latency_and_bandwidth_again() -> None:
    fit = fit_alpha_beta([(size, 20e-6 + size / 10e9) for size in (4096, 65536, 1 << 20, 1 << 24)])
    assert fit is not None
    assert fit.alpha_s == pytest.approx(20e-6) and fit.asymptotic_gbps == pytest.approx(10.0)
    assert fit.error < 1e-9 and fit.worst_factor == pytest.approx(1.0)
    assert fit.seconds(10**9) == pytest.approx(0.10002)


def test_one_slow_size_bends_the_fit_little_and_is_named() -> None:
    points = [(size, 20e-6 + size / 10e9) for size in (4096, 65536, 1 << 20, 1 << 24)]
    points[1] = (65536, 2e-3)
    fit = fit_alpha_beta(points)
    assert fit is not None
    assert fit.worst_bytes == 65536 and fit.worst_factor > 20
    assert fit.alpha_s == pytest.approx(20e-6, rel=0.2)


def test_neither_term_is_negative() -> None:
    falling = fit_alpha_beta([(1000, 3e-3), (2000, 2e-3), (4000, 1e-3)])
    through_zero = fit_alpha_beta([(1000, 1e-6), (2000, 9e-6), (4000, 30e-6)])
    assert falling is not None and falling.s_per_byte == 0.0 and falling.asymptotic_gbps is None
    assert through_zero is not None and through_zero.alpha_s == 0.0 and through_zero.s_per_byte > 0


@pytest.mark.parametrize(
    "points", [[], [(1, 1.0), (2, 2.0)], [(1, 1.0), (1, 2.0), (2, 3.0)], [(1, 0.0), (2, 1.0), (3, 1.0)]]
)
def test_too_few_sizes_or_impossible_times_give_no_model(points: list[tuple[int, float]]) -> None:
    assert fit_alpha_beta(points) is None
