"""Arithmetic of collective timings: bandwidths as nccl-tests defines them, and the latency-bandwidth model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["BUS_FACTOR", "Fit", "algbw_gbps", "busbw_gbps", "fit_alpha_beta"]


def _all_reduce(n: int) -> float:
    return 2 * (n - 1) / n


def _gathering(n: int) -> float:
    return (n - 1) / n


def _whole(n: int) -> float:
    return 1.0


#: Bus bandwidth over algorithm bandwidth, by operation, for a group of ``n`` ranks. Source: nccl-tests,
#: ``doc/PERFORMANCE.md`` ("Summary") and the ``*GetBw`` function of each test; send/recv as in ``sendrecv.cu``.
BUS_FACTOR: Mapping[str, Callable[[int], float]] = {
    "all-reduce": _all_reduce,
    "all-gather": _gathering,
    "reduce-scatter": _gathering,
    "all-to-all": _gathering,
    "broadcast": _whole,
    "send-recv": _whole,
}


def algbw_gbps(size_bytes: int, seconds: float) -> float:
    """Algorithm bandwidth ``S / t`` in GB/s (10**9 bytes).

    ``S`` is the size of the whole buffer: what a rank reduces, broadcasts or sends; for all-gather the gathered output
    (send count x ranks), for reduce-scatter the input (receive count x ranks), for all-to-all one rank's send buffer.
    """
    return size_bytes / seconds / 1e9


def busbw_gbps(op: str, size_bytes: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth in GB/s: algorithm bandwidth times :data:`BUS_FACTOR`, comparable with a link's own.

    ``ranks`` is the size of the group that ran the collective, not the world's.
    """
    return algbw_gbps(size_bytes, seconds) * BUS_FACTOR[op](ranks)


class Fit(NamedTuple):
    """``t(S) = alpha_s + S * s_per_byte``. ``error`` is the root mean square of the relative residuals, and
    ``worst_factor`` measured over fitted time at the size ``worst_bytes`` where it is largest."""

    alpha_s: float
    s_per_byte: float
    error: float
    worst_factor: float
    worst_bytes: int

    def seconds(self, size_bytes: int) -> float:
        """The modelled time of one call."""
        return self.alpha_s + size_bytes * self.s_per_byte

    @property
    def asymptotic_gbps(self) -> float | None:
        """Algorithm bandwidth of an endless message; None where time does not grow with the size."""
        return 1 / self.s_per_byte / 1e9 if self.s_per_byte > 0 else None


def fit_alpha_beta(points: Sequence[tuple[int, float]]) -> Fit | None:
    """Least squares of the relative residuals over ``(bytes, seconds)``, with neither term negative.

    Relative, because times span decades and the small ones carry the latency; one slow size then bends the fit little.
    None with fewer than three sizes (two always fit) or a time that is not positive.
    """
    if len({size for size, _ in points}) < 3 or any(seconds <= 0 for _, seconds in points):
        return None
    weights = [1 / seconds**2 for _, seconds in points]
    one = sum(weights)
    x = sum(w * s for w, (s, _) in zip(weights, points, strict=True))
    xx = sum(w * s * s for w, (s, _) in zip(weights, points, strict=True))
    y = sum(w * t for w, (_, t) in zip(weights, points, strict=True))
    xy = sum(w * s * t for w, (s, t) in zip(weights, points, strict=True))
    slope = (one * xy - x * y) / (one * xx - x * x)
    alpha = (y - slope * x) / one
    if alpha < 0:
        alpha, slope = 0.0, xy / xx
    elif slope < 0:
        alpha, slope = y / one, 0.0
    factors = [(seconds / (alpha + size * slope), size) for size, seconds in points]
    residuals = [(alpha + size * slope) / seconds - 1 for size, seconds in points]
    worst, at = max(factors)
    return Fit(alpha, slope, (sum(r * r for r in residuals) / len(points)) ** 0.5, worst, at)
