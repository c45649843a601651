"""Does training under a parallelism equal training on one device?

By gradients, never by an AdamW loss curve: Adam is invariant to the gradient's scale, so a gradient that is N times too
large moves its loss by 1e-6, inside float32 noise. Relative L2 errors of per-parameter gradients separate best: clean
runs stay below 1.5e-15 in float64 and 7.3e-7 in float32, the smallest planted fault gives 0.14.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddaudit.api import (
    Finding,
    Limit,
    Limits,
    Remedy,
    TensorCapture,
    TrainingTrace,
    Where,
    check,
    fail,
    ok,
    skip,
)

from ._arrays import curve, place, recorded
from ._matrix import matrix

NOISE = {"fp64": "1.5e-15", "fp32": "7.3e-7"}
MIDDLE = "more than 100 times from both the measured noise floor ({noise}) and the smallest planted fault (0.14)"


class ParallelLimits(Limits):
    """Tolerances of the comparison with one device; the unsuffixed ones are for float64."""

    family = "parallel"

    grad_rel_l2: Limit = Limit(fail_above=1e-10, source=MIDDLE.format(noise="1.5e-15 in float64"))
    grad_rel_l2_fp32: Limit = Limit(fail_above=1e-4, source=MIDDLE.format(noise="7.3e-7 in float32"))
    loss_abs: Limit = Limit(fail_above=1e-10, source="noise floor 2e-15 in float64 with SGD")
    loss_abs_fp32: Limit = Limit(
        fail_above=5e-6, source="noise floor 7.2e-7 in float32 with SGD; smallest planted fault 4.4e-5"
    )
    param_rel_l2: Limit = Limit(fail_above=1e-10, source="noise floor 4e-14 in float64 with SGD")
    param_rel_l2_fp32: Limit = Limit(fail_above=1e-4, source="noise floor 3e-7 in float32 with SGD")

    def for_dtype(self, name: str, dtype: str) -> Limit:
        """The limit of a metric in the precision that was trained in."""
        limit: Limit = getattr(self, name if dtype == "fp64" else f"{name}_fp32")
        return limit


@dataclass(frozen=True)
class Deviation:
    """How far one rank's tensor is from the single device's. ``scale`` is the factor that fits best (least squares),
    ``residual`` the relative L2 error that remains after it."""

    capture: TensorCapture
    rel_l2: float
    scale: float
    residual: float


@check(
    "parallel.equals-single",
    asks="Does every rank compute the gradients, losses and parameters of one device on the same global batch?",
    plant=matrix("gradients"),
)
def equals_single(trace: TrainingTrace, reference: TrainingTrace, limits: ParallelLimits) -> Iterator[Finding]:
    """Compares per-parameter gradients of every rank at the captured steps, the loss of every step, and the final
    parameters with the single-device run of the same seed and global batch.
    """
    dtype = trace.job.dtype or "fp32"
    if dtype not in NOISE or not trace.tensors or not reference.tensors:
        yield skip("not measured: needs gradients captured in fp32 or fp64 by both runs")
        return
    yield from _tensors(trace, reference, "grad", limits.for_dtype("grad_rel_l2", dtype))
    yield from _tensors(trace, reference, "param", limits.for_dtype("param_rel_l2", dtype))
    yield _norms(trace, reference, limits.for_dtype("grad_rel_l2", dtype))
    yield _losses(trace, reference, limits.for_dtype("loss_abs", dtype))


WORDS = {
    "grad": ("gradients", "parallel.gradients-differ"),
    "param": ("final parameters", "parallel.parameters-differ"),
}


def _tensors(trace: TrainingTrace, reference: TrainingTrace, role: str, limit: Limit) -> Iterator[Finding]:
    word, id = WORDS[role]
    wanted = {(t.step, t.name): t.values for t in reference.tensors if t.role == role}
    mine = [t for t in trace.tensors if t.role == role]
    seen = {(t.step, t.name) for t in mine}
    absent = sorted(name for key in wanted if key not in seen for name in [key[1]])
    if absent or not mine:
        text = f"{word} of {len(absent)} parameters were seen on no rank, first {absent[0] if absent else '-'}"
        yield fail(
            id, text, measured=len(absent), unit="parameters", limit=0, limit_source="the single device has them"
        )
        return
    rows = [d for t in mine if (d := _deviation(t, wanted.get((t.step, t.name)))) is not None]
    worst = max(rows, key=lambda d: d.rel_l2 if np.isfinite(d.rel_l2) else np.inf)
    steps = sorted({d.capture.step for d in rows})
    kept = {"measured": worst.rel_l2, "unit": "relative L2", "limit": limit.fail_above, "limit_source": limit.source}
    where = _where(trace, worst.capture)
    if limit.judge(worst.rel_l2).value == "PASS":
        span = f"steps {steps[0]} to {steps[-1]}" if role == "grad" else f"{len(trace.steps)} updates"
        floor = f"noise floor {NOISE[trace.job.dtype or 'fp32']}" if role == "grad" else "SGD, no Adam to hide a scale"
        text = f"{word} of every rank equal one device over {span}: worst {worst.rel_l2:.2g} ({floor})"
        yield ok(text, where=where, **kept)
        return
    bad = [d for d in rows if limit.judge(d.rel_l2).value != "PASS"]
    named, why = _explain(trace, bad, rows) if role == "grad" else (id, "")
    first = min(d.capture.step for d in bad)
    names = sorted({d.capture.name for d in bad})
    text = f"{word} differ from one device in {len(names)} parameters from step {first} on"
    text += f"; worst {worst.capture.name}: {worst.rel_l2:.3g}{why}"
    remedy = Remedy(text="Start at the first step and parameter named; right at step 0 and wrong later: not cleared.")
    yield fail(named, text, where=where, first_seen_step=first, remedy=remedy, **kept)


def _deviation(capture: TensorCapture, expected: object) -> Deviation | None:
    """None for a tensor that the single device does not have (it is judged by name elsewhere)."""
    if not isinstance(expected, np.ndarray):
        return None
    if capture.values.shape != expected.shape:
        return Deviation(capture, np.inf, np.nan, np.inf)
    got, want = capture.values.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    norm = float(np.linalg.norm(want))
    if norm == 0.0:
        return Deviation(capture, float(np.linalg.norm(got)), 1.0, float(np.linalg.norm(got)))
    scale = float(got @ want) / norm**2
    return Deviation(
        capture, float(np.linalg.norm(got - want)) / norm, scale, float(np.linalg.norm(got - scale * want)) / norm
    )


def _explain(trace: TrainingTrace, bad: list[Deviation], rows: list[Deviation]) -> tuple[str, str]:
    """Names the fault when every gradient is off by one and the same factor; otherwise only where it differs."""
    first = min(d.capture.step for d in bad)
    scales = np.array([d.scale for d in rows if d.capture.step == first])
    residuals = max(d.residual for d in rows if d.capture.step == first)
    if not (residuals < 1e-3 and np.ptp(scales) < 1e-3):
        return "parallel.gradients-differ", ""
    factor = float(np.median(scales))
    for value, id, what in (
        (trace.job.dp or 0, "grad.scaled-by-world-size", "N: summed, not averaged, or divided once too often"),
        (trace.job.accumulation or 0, "loss.not-divided-by-accum", "A: the accumulated loss is not divided, or twice"),
    ):
        if value > 1 and min(abs(factor - value), abs(factor - 1 / value)) < 1e-3:
            return id, f"; all by the factor {factor:.4g}, which is {what}"
    return "grad.scale-off", f"; all by the factor {factor:.4g}"


def _norms(trace: TrainingTrace, reference: TrainingTrace, limit: Limit) -> Finding:
    """The global gradient norm of every rank, by which it would clip; over shards it is a computation of its own."""
    mine, other = recorded(trace, "grad_norm"), recorded(reference, "grad_norm")
    if mine is None or other is None:
        return skip("not measured: the gradient norms were not recorded")
    shared = min(mine.shape[1], other.shape[1])
    with np.errstate(all="ignore"):
        distance = np.abs(mine[:, :shared] - other[0, :shared]) / np.abs(other[0, :shared])
    row, column = np.unravel_index(int(np.nanargmax(distance)), distance.shape)
    value = float(distance[row, column])
    kept = {"measured": value, "unit": "relative", "limit": limit.fail_above, "limit_source": limit.source}
    where = place(trace, int(row), int(column))
    if limit.judge(value).value == "PASS":
        return ok(
            f"the gradient norm of {shared} steps equals one device on every rank within {value:.2g}",
            where=where,
            **kept,
        )
    text = f"the gradient norm differs from one device by {value:.3g} of its size at step {trace.steps[int(column)]}"
    return fail("parallel.norms-differ", text, where=where, **kept)


def _losses(trace: TrainingTrace, reference: TrainingTrace, limit: Limit) -> Finding:
    mine, other = recorded(trace, "loss_nats"), recorded(reference, "loss_nats")
    if mine is None or other is None:
        return skip("not measured: the loss curves were not recorded")
    shared = min(mine.shape[1], other.shape[1])
    distance = np.abs(curve(mine)[:shared] - curve(other)[:shared])
    worst = int(np.nanargmax(distance)) if np.isfinite(distance).any() else 0
    value = float(distance[worst])
    kept = {"measured": value, "unit": "nat/token", "limit": limit.fail_above, "limit_source": limit.source}
    where = Where(step=trace.steps[worst])
    if limit.judge(value).value == "PASS":
        return ok(
            f"the loss of each of {shared} steps equals one device within {value:.2g} nat/token", where=where, **kept
        )
    text = f"the loss differs from one device by {value:.3g} nat/token at step {trace.steps[worst]}"
    return fail("parallel.loss-differs", text, where=where, **kept)


def _where(trace: TrainingTrace, capture: TensorCapture) -> Where:
    host = next((r.host for r in trace.ranks if r.rank == capture.rank), None)
    return Where(host=host, rank=capture.rank, tensor=capture.name, step=capture.step)
