"""A script beside another run of itself: on one device (question 1), and before a change (question 3)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Remedy, TrainingTrace, WatchedScript, check, fail, ok, skip, warn

from ._arrays import Table, curve, place, recorded
from ._watched import ADAM, near, planted, warmup_updates
from .watch_batch import global_samples

SGD = ("SGD",)


@check(
    "script.single",
    question="loss",
    asks="Does the script on N ranks learn as it does on one, with the same global batch?",
    plant=planted("the gradient of several ranks is made small", "parallel.loss-differs", "damped", beside=True),
)
def single(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Both curves must fall alike. Samples come in another order on one rank, so only the course of the loss can be
    compared: distances are held against the noise of both curves."""
    other, losses = script.single, recorded(trace, "loss_raw")
    if other is None or losses is None or not other.losses:
        yield skip("not measured: needs a run of the same script on one rank (--compare-single)")
        return
    batch = global_samples(trace, script)
    if batch is None or other.samples is None or not near(batch, other.samples):
        yield skip(
            f"not compared: the global batch is {batch or '?'} on {len(trace.ranks)} ranks and {other.samples or '?'}"
            " on one; give --single-cmd a command with the same global batch"
        )
        return
    mine, alone = curve(losses), np.asarray(other.losses)
    shared = min(len(mine), len(alone))
    if shared < 12 or not np.isfinite(mine[:shared]).all() or not np.isfinite(alone[:shared]).all():
        yield skip("not compared: needs 12 finite losses of both runs")
        return
    distance, allowed, where = _distance(mine[:shared], alone[:shared])
    kept = {"measured": distance, "unit": "of the fall on one rank", "limit": allowed,
            "limit_source": "default: 0.35 of the fall, or four times the noise of both curves"}  # fmt: skip
    told = (
        f"loss on one rank {alone[0]:.4g} to {alone[shared - 1]:.4g}, on {len(trace.ranks)} ranks {mine[0]:.4g} to"
        f" {mine[shared - 1]:.4g}, same batch of {batch:g}"
    )
    if distance <= allowed:
        yield ok(told, **kept)
        return
    yield fail("parallel.loss-differs", f"{told}: the curves part", where=place(trace, 0, where), remedy=Remedy(
        text="See the findings on gradients, sync and batch: N ranks do not train as one does."), **kept)  # fmt: skip


def _distance(mine: Table, alone: Table) -> tuple[float, float, int]:
    """Largest distance of the smoothed curves over the fall of the single one, what is allowed, and where it lies."""
    width = max(3, len(alone) // 4)
    smooth = [np.convolve(values, np.ones(width) / width, "valid") for values in (mine, alone)]
    noise = float(np.sqrt(sum(np.var(np.diff(v)) / 2 for v in (mine, alone)) / width))
    fall = max(float(smooth[1][0] - smooth[1].min()), 1e-12)
    apart = np.abs(smooth[0] - smooth[1])
    return float(apart.max()) / fall, max(0.35, 4 * noise / fall), int(apart.argmax())


@check(
    "script.baseline",
    question="lr",
    asks="Did the learning rate follow when the batch changed against the baseline run?",
    plant=planted("the batch grew and the learning rate did not", "lr.not-matched-to-batch", "bigger",
                  beside=True),
)  # fmt: skip
def baseline(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """k times the batch asks SGD for k times the learning rate (Goyal et al. 2017) and the Adam family for sqrt(k)
    times (Malladi et al. 2022). A shorter warm-up at a raised rate is told as well."""
    good, batch, rates = script.baseline, global_samples(trace, script), recorded(trace, "lr")
    if good is None or rates is None or batch is None or not good.samples or not good.peak_lr:
        yield skip("not measured: needs --baseline RUN, and batch and learning rate of both runs")
        return
    values = curve(rates)
    k, ratio = batch / good.samples, float(np.nanmax(values)) / good.peak_lr
    name = trace.job.optimizer or ""
    power = 1.0 if name in SGD else 0.5 if name in ADAM else None
    told = f"batch {batch:g} is {k:.3g} times the baseline's, learning rate {np.nanmax(values):.3g} {ratio:.3g} times"
    if name != good.optimizer or power is None:
        yield skip(f"unknown: {told}; no rule leads from {good.optimizer} to {name or 'an unnamed optimizer'}")
        return
    wanted = k**power
    kept = {"measured": ratio, "unit": "times the baseline's rate", "limit": wanted,
            "limit_source": "k for SGD, sqrt(k) for Adam"}  # fmt: skip
    if not 1 / 1.5 <= ratio / wanted <= 1.5:
        yield warn("lr.not-matched-to-batch", f"{told}; the rule for {name} asks for {wanted:.3g} times",
                   where=place(trace, 0), **kept)  # fmt: skip
        return
    mine, theirs = warmup_updates(values), good.warmup_updates
    if ratio > 1.01 and mine is not None and theirs is not None and theirs >= 4 and mine < theirs / 2 / max(k, 1.0):
        yield warn("lr.warmup-missing", f"{told}; warm-up of {mine} updates where the baseline has {theirs}",
                   where=place(trace, 0), **kept)  # fmt: skip
        return
    yield ok(told, **kept)
