"""Waiting for the slowest of N ranks, from the lateness that was measured, not from a bell curve."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["expected_excess", "spread_of"]

#: Quantiles that a spread keeps: enough to follow the tail, few enough to write down.
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1.0)


def spread_of(excesses: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Quantiles of lateness (shares of a step by which one rank of one step exceeds its median); () below 8 values."""
    ordered = sorted(excesses)
    if len(ordered) < 8:
        return ()
    return tuple((q, _quantile(ordered, q)) for q in QUANTILES)


def _quantile(ordered: Sequence[float], q: float) -> float:
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def expected_excess(spread: Sequence[tuple[float, float]], ranks: int) -> float:
    """Mean of the largest of ``ranks`` independent draws, beyond the mean of one: what one rank has is in its own time.

    The largest of N lies below x with probability F(x)^N, so with F piecewise linear between the quantiles
    E[max] = top - integral of F^N (order statistics, David and Nagaraja 2003, section 2.1). It saturates at the largest
    lateness that was seen: a longer tail than was measured cannot be known, and none is invented.
    """
    if not spread or ranks <= 1:
        return 0.0
    return max(0.0, _mean_of_largest(spread, ranks) - _mean_of_largest(spread, 1))


def _mean_of_largest(spread: Sequence[tuple[float, float]], ranks: int) -> float:
    total = 0.0
    for (q0, x0), (q1, x1) in pairwise(spread):
        width = x1 - x0
        if width <= 0:
            continue
        total += width * (q1 ** (ranks + 1) - q0 ** (ranks + 1)) / ((ranks + 1) * (q1 - q0))
    return spread[-1][1] - total
