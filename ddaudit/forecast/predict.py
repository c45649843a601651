"""One size at a time: step time with its bounds, what limits it, whether it helps, and what to change with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ddaudit.evidence.forecast import Interval, Prediction, Rejected, Verdict
from ddaudit.forecast.batch import batch_advice, steps_to_loss
from ddaudit.forecast.calibrate import Calibrated
from ddaudit.forecast.layout import Layout
from ddaudit.forecast.machine import Machine
from ddaudit.forecast.memory import Memory, memory
from ddaudit.forecast.step import TERMS, Terms, core_bounds, step_terms
from ddaudit.forecast.subject import Subject

__all__ = ["Outlook", "predict", "step_interval"]

#: Error of a prediction from two measured sizes, per doubling beyond the larger: the published series of
#: benchmarks/forecast_exam.py are missed by 1.7 % on average and 6 % at most over two doublings.
PER_DOUBLING = 0.025
#: Between them lies what no run measures: the share of tensor-parallel communication that runs under compute (a library
#: that splits products hides most of it, eager code none), and what compute loses to communication beside it.
HIDES_TENSOR, CONTENTION = 0.8, 1.15
#: A speedup whose share of the ideal is below this helps little.
LITTLE = 0.5
NO_MORE: tuple[Verdict, str] = ("does not help", "no devices are added")


@dataclass(frozen=True)
class Outlook:
    """What every size of one forecast shares. ``base`` is the size that speedups refer to."""

    subject: Subject
    calibrated: Calibrated
    base: Layout
    critical: float | None = None

    def memory(self, layout: Layout) -> Memory:
        """Memory of the fullest rank of a layout."""
        subject, machine = self.subject, self.calibrated.machine
        return memory(subject.shape, layout, subject.states, subject.width, machine.reserved_bytes, machine.kept)

    @property
    def limit_bytes(self) -> float | None:
        return self.subject.memory_bytes or self.calibrated.machine.memory_bytes


def step_interval(outlook: Outlook, layout: Layout) -> tuple[Terms, Interval]:
    """Terms of a step and its bounds.

    From two sizes: the fit's own miss and :data:`PER_DOUBLING` for each doubling beyond what was measured, around the
    bounds of sharing cores where ranks do. From one or none: the lower bound hides all data-parallel communication and
    :data:`HIDES_TENSOR` of the tensor-parallel and waits for nobody; the upper bound hides none and loses 2 % a
    doubling to stragglers, or compute beside communication takes :data:`CONTENTION` times as long. The compute rate
    of a description may be off by its factor either way.
    """
    calibrated = outlook.calibrated
    terms = _terms(outlook, layout, calibrated.machine)
    mid = terms.total
    if calibrated.basis == "two-sizes":
        beyond = max(0.0, math.log2(layout.devices / max(calibrated.sizes)))
        error = max(0.02, calibrated.factor - 1) + PER_DOUBLING * beyond
        least, _, most = _sharing(outlook, layout, terms)
        return terms, Interval(low=least / (1 + error), mid=mid, high=most * (1 + error))
    machine = calibrated.machine
    easy = replace(machine, overlap=1.0, tail=0.0, spread=(), hides_tensor=HIDES_TENSOR)
    hard = replace(machine, overlap=0.0, tail=max(0.02, machine.tail))
    best, worst = (_sharing(outlook, layout, _terms(outlook, layout, m)) for m in (easy, hard))
    beside = _terms(outlook, layout, replace(machine, contention=max(CONTENTION, machine.contention))).total
    factor = calibrated.factor if calibrated.basis == "description" else 1.0
    return terms, Interval(low=min(best[0], mid) / factor, mid=mid, high=max(worst[2], beside, mid) * factor)


def _sharing(outlook: Outlook, layout: Layout, terms: Terms) -> tuple[float, float, float]:
    """(least, likely, most) seconds, apart only where ranks share cores."""
    subject = outlook.subject
    widths = (subject.width, round(subject.states.gradient))
    return core_bounds(subject.shape, layout, outlook.calibrated.machine, terms, widths)


def _terms(outlook: Outlook, layout: Layout, machine: Machine) -> Terms:
    subject = outlook.subject
    return step_terms(subject.shape, layout, machine, subject.width, round(subject.states.gradient))


def predict(outlook: Outlook, layout: Layout, rejected: tuple[Rejected, ...] = ()) -> Prediction:
    """What ``layout`` would do, against the base of the outlook."""
    subject, base = outlook.subject, outlook.base
    terms, seconds = step_interval(outlook, layout)
    base_s = step_interval(outlook, base)[1]
    speedup = _speedup(seconds, base_s, layout, base, same=outlook.calibrated.factor)
    used = outlook.memory(layout)
    limit = outlook.limit_bytes
    fits = None if limit is None else used.total <= limit
    ratio = layout.devices / base.devices
    loss = _time_to_loss(outlook, layout, speedup.mid)
    verdict, reason = _verdict(outlook, layout, speedup, terms, fits)
    advice = batch_advice(base.global_batch, layout.global_batch, subject.rule, subject.warmup, outlook.critical)
    return Prediction(
        devices=layout.devices,
        layout=str(layout),
        step_s=seconds,
        speedup=speedup,
        efficiency=speedup.mid / ratio,
        samples_per_s=layout.global_batch / seconds.mid,
        terms={name: getattr(terms, name) for name in TERMS if getattr(terms, name) > 0},
        limiter=terms.largest,
        memory_bytes=used.total,
        memory=used.kinds,
        fits=fits,
        global_batch=layout.global_batch,
        device_hours_ratio=ratio / speedup.mid,
        time_to_loss_ratio=loss,
        verdict=verdict,
        reason=reason,
        advice=advice.lines,
        rejected=rejected,
    )


def _speedup(mine: Interval, base: Interval, layout: Layout, other: Layout, same: float) -> Interval:
    """Samples per second over those of the base. What a description has wrong about the compute rate it has wrong at
    both sizes, so that factor cancels."""
    work = layout.global_batch / other.global_batch
    if layout.devices == other.devices and layout == other:
        return Interval(low=1.0, mid=1.0, high=1.0)
    mid = work * base.mid / mine.mid
    low, high = work * base.mid / mine.high, work * base.mid / mine.low
    cancel = same if same > 1 else 1.0
    return Interval(low=min(mid, low * cancel), mid=mid, high=max(mid, high / cancel))


def _time_to_loss(outlook: Outlook, layout: Layout, speedup: float) -> float | None:
    """Time to the same loss over the base's: S = S_min (1 + B_crit / B) updates (McCandlish et al. 2018)."""
    if outlook.critical is None:
        return None
    base = outlook.base
    updates = steps_to_loss(layout.global_batch, outlook.critical) / steps_to_loss(base.global_batch, outlook.critical)
    return updates * layout.global_batch / base.global_batch / speedup


def _verdict(
    outlook: Outlook, layout: Layout, speedup: Interval, terms: Terms, fits: bool | None
) -> tuple[Verdict, str]:
    """Whether the added devices help, in words of the five that a prediction knows."""
    ratio = layout.devices / outlook.base.devices
    held = f"{terms.largest} is the largest term ({getattr(terms, terms.largest) / terms.total:.0%}):"
    why = f"{held} {TERMS[terms.largest]}"
    crowd = outlook.calibrated.machine.cores
    if crowd is not None and layout.devices > crowd:
        why = f"{layout.devices} ranks share {crowd} cores"
    if fits is False:
        return "does not fit", "the fullest rank needs more memory than a device has; shard, split or recompute more"
    if ratio <= 1:
        return ("helps", "another layout of no more devices") if speedup.mid > 1.02 else NO_MORE
    if speedup.high <= 1.02:
        return "does not help", why
    if speedup.low < 1 < speedup.high and outlook.calibrated.basis != "two-sizes":
        return "cannot tell", f"between {speedup.low:.2f}x and {speedup.high:.2f}x; measure a second size"
    if speedup.mid <= 1.02:
        return "does not help", why
    if speedup.mid / ratio < LITTLE:
        return "helps little", why
    return "helps", why
