"""Calibration: the few numbers of a machine that measured steps decide, held near what was known before.

Each number is multiplied by a factor whose logarithm has a normal prior around 0; the factors are the most probable
ones given the measured times (maximum a posteriori), found by damped Gauss-Newton steps. A prior is how far a
description may be wrong; with few rows it keeps a factor that the rows cannot see where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Fitted", "fit"]

Vector = np.ndarray[Any, np.dtype[Any]]
Matrix = Vector
#: Width of a numerical derivative, the last step that still matters, and rounds at most, in logarithms of factors.
STEP, SMALL, ROUNDS = 1e-4, 1e-6, 60


@dataclass(frozen=True)
class Fitted:
    """Factors by name, their standard deviations (of the logarithm), and the residuals ln(predicted / measured)."""

    factors: Mapping[str, float]
    deviations: Mapping[str, float]
    residuals: tuple[float, ...]


def fit(
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    measured_s: Sequence[float],
    priors: Mapping[str, float],
    noise: float = 0.02,
    robust: float | None = None,
) -> Fitted:
    """Fits factors so that ``predict(factors)`` meets ``measured_s``.

    Args:
        predict: times in seconds for factors by name.
        measured_s: what was measured, in the same order.
        priors: standard deviation of each factor's logarithm before anything was measured.
        noise: standard deviation of ln(measured / true): what a repeat of the measurement would differ by.
        robust: residuals beyond this many ``noise`` count linearly, not squared (Huber 1964); None for all squared.
    """
    names = list(priors)
    target = np.log(np.asarray(measured_s, dtype=float))

    def residuals(point: Vector) -> Vector:
        times = predict(dict(zip(names, np.exp(point).tolist(), strict=True)))
        off: Vector = np.log(np.asarray(times, dtype=float)) - target
        return off

    width: Vector = np.asarray([priors[name] for name in names])
    point, off, normal = _descend(residuals, width, noise, robust)
    spread = np.sqrt(np.diag(np.linalg.inv(normal)))
    return Fitted(
        dict(zip(names, np.exp(point).tolist(), strict=True)),
        dict(zip(names, spread.tolist(), strict=True)),
        tuple(off.tolist()),
    )


def _descend(
    residuals: Callable[[Vector], Vector], width: Vector, noise: float, robust: float | None
) -> tuple[Vector, Vector, Matrix]:
    """The point of least cost, its residuals, and the normal matrix there (Levenberg 1944; Marquardt 1963)."""
    axes = np.eye(len(width))
    point: Vector = np.zeros(len(width))
    off = residuals(point)
    damping, normal = 1e-3, axes
    for _ in range(ROUNDS):
        jacobian = np.stack([(residuals(point + STEP * axis) - off) / STEP for axis in axes], axis=1)
        weight = _weights(off, noise, robust)
        normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(1 / width**2)
        slope = jacobian.T @ (weight * off) + point / width**2
        step: Vector = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), slope)
        moved = residuals(point + step)
        if _cost(point + step, moved, width, noise, robust) > _cost(point, off, width, noise, robust):
            damping *= 4
            continue
        point, off, damping = point + step, moved, damping / 3
        if float(np.max(np.abs(step))) < SMALL:
            break
    return point, off, normal


def _cost(point: Vector, off: Vector, width: Vector, noise: float, robust: float | None) -> float:
    size = np.abs(off) / noise
    data = size**2 if robust is None else np.where(size <= robust, size**2, 2 * robust * size - robust**2)
    return float(np.sum(data) + np.sum((point / width) ** 2))


def _weights(off: Vector, noise: float, robust: float | None) -> Vector:
    plain: Vector = np.full(off.shape, noise**-2)
    if robust is None:
        return plain
    size = np.maximum(np.abs(off) / noise, 1e-12)
    huber: Vector = plain * np.minimum(1.0, robust / size)
    return huber
