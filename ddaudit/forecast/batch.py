"""Batch size against steps: gradient noise scale, critical batch, learning rate and warm-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LEAST_UPDATES", "Advice", "NoiseScale", "batch_advice", "noise_scale", "reached", "steps_to_loss"]


#: Updates below which gradient norms tell no noise scale: two halves of four each.
LEAST_UPDATES = 8


@dataclass(frozen=True)
class NoiseScale:
    """``samples`` is B_simple = tr(Sigma) / |G|^2: the batch at which noise and signal of a gradient are equal; a low
    and a high estimate from the halves of the record."""

    samples: float
    low: float
    high: float
    steps: int


def noise_scale(
    local_norms_sq: Sequence[float], averaged_norms_sq: Sequence[float], small: int, big: int
) -> NoiseScale | None:
    """Gradient noise scale from squared gradient norms of two batch sizes, step by step.

    |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b) and tr(Sigma) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B); both are averaged over
    the steps before they are divided, since their ratio is biased (McCandlish et al. 2018, appendix A.1).

    Args:
        local_norms_sq: mean over ranks of the squared norm before averaging, by step.
        averaged_norms_sq: squared norm of the averaged gradient, by step.
        small: samples behind a local gradient; big: behind the averaged one.

    Returns: None where the norms tell no signal from noise: fewer than 8 steps, equal batches, or a sign that is wrong.
    """
    count = min(len(local_norms_sq), len(averaged_norms_sq))
    if count < LEAST_UPDATES or small >= big:
        return None
    whole = _ratio(local_norms_sq, averaged_norms_sq, small, big)
    half = count // 2
    parts = [_ratio(local_norms_sq[a:b], averaged_norms_sq[a:b], small, big) for a, b in ((0, half), (half, count))]
    if whole is None:
        return None
    known = [p for p in parts if p is not None] + [whole]
    return NoiseScale(whole, min(known), max(known), count)


def _ratio(local: Sequence[float], averaged: Sequence[float], small: int, big: int) -> float | None:
    mean_local, mean_averaged = sum(local) / len(local), sum(averaged) / len(averaged)
    signal = (big * mean_averaged - small * mean_local) / (big - small)
    noise = (mean_local - mean_averaged) / (1 / small - 1 / big)
    return noise / signal if signal > 0 and noise > 0 else None


def steps_to_loss(batch: float, critical: float, floor: float = 1.0) -> float:
    """Updates to a fixed loss: S = S_min (1 + B_crit / B) (McCandlish et al. 2018, eq. 5.1), in units of ``floor``."""
    return floor * (1 + critical / batch)


def reached(losses: Sequence[float], goal: float) -> int | None:
    """Updates after which a curve first stays at or below ``goal`` on average over three; None where it never does."""
    for index in range(len(losses)):
        window = losses[max(0, index - 2) : index + 1]
        if sum(window) / len(window) <= goal:
            return index + 1
    return None


@dataclass(frozen=True)
class Advice:
    """What a batch ``ratio`` times larger asks of the schedule; ``lines`` are sentences."""

    ratio: float
    lr_linear: float
    lr_sqrt: float
    lines: tuple[str, ...]


def batch_advice(
    before: int, after: int, rule: str | None, warmup: float | None, critical: float | None = None
) -> Advice:
    """Learning rate and warm-up for a batch of ``after`` samples where one of ``before`` is known to train.

    Linear for SGD (Goyal et al. 2017), square root for Adam (Malladi et al. 2022); above the critical batch neither
    holds, and the rate saturates (McCandlish et al. 2018). A warm-up keeps its samples, so its updates shrink; Goyal
    et al. lengthen it where the rate grows.
    """
    k = after / before
    if math.isclose(k, 1):
        return Advice(1.0, 1.0, 1.0, (f"B_eff stays {after}: learning rate and warm-up stay",))
    scaled = {"linear": f"x{k:.3g} (linear rule)", "sqrt": f"x{math.sqrt(k):.3g} (square-root rule)"}
    rate = scaled.get(rule or "", f"x{k:.3g} linear (SGD) or x{math.sqrt(k):.3g} square root (Adam)")
    lines = [f"B_eff {before} -> {after}: learning rate {rate}"]
    if warmup is not None:
        grown = math.ceil(warmup * (k if k > 1 else 1))
        lines.append(f"warm-up of {warmup:.4g} updates: the same samples in {max(1, math.ceil(warmup / k))} of them;"
                     f" with the raised rate up to {grown}")  # fmt: skip
    if critical is not None and after > critical:
        worth = steps_to_loss(before, critical) / steps_to_loss(after, critical)
        lines.append(
            f"above the critical batch of {critical:,.0f}: {k:.3g}x the batch cuts the updates {worth:.2f}x only;"
            " extra devices buy time only"
        )
    return Advice(k, k, math.sqrt(k), tuple(lines))
