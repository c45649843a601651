"""Question 1: does training give a sensible loss curve?

The reference trainer draws its data from a source of known entropy rate H. A right run starts near ln(V), the loss of
the uniform guess, falls towards H, and never stays below it: no model predicts a source better than the source's own
entropy (Cover & Thomas, Elements of Information Theory, theorem 5.4.1). Traces of users' scripts lack H and V; what
needs them then says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Limit, Limits, Plant, Remedy, TrainingTrace, check, fail, ok, skip, warn

from ._arrays import Table, curve, place, recorded, tail

SHORT = {"steps": 40}


class LossLimits(Limits):
    """Limits on loss curves; nats per token unless said otherwise."""

    family = "loss"

    start_offset_nats: Limit = Limit(
        warn_above=0.35,
        fail_above=1.0,
        source="default: a fresh model's logits are small, so its guess is near uniform",
    )
    fall_share: Limit = Limit(
        warn_below=0.25, fail_below=0.05, source="default: share of the way from the first loss to the entropy rate"
    )
    floor_margin_nats: Limit = Limit(
        fail_below=-0.05,
        source="theorem: the mean loss cannot stay below the source's entropy rate; margin for few tokens",
    )
    spike_nats: Limit = Limit(warn_above=1.0, source="default: jump of one step over the median of the five before it")
    end_minus_start_nats: Limit = Limit(fail_above=0.5, source="default: an end above the start is divergence")
    grad_norm_ratio: Limit = Limit(warn_above=100.0, source="default: largest gradient norm over the median of its run")
    grad_norm: Limit = Limit(
        fail_below=1e-9, source="default: below this, float32 updates of weights near 1 round to 0"
    )


def _curve(trace: TrainingTrace) -> Table | None:
    table = recorded(trace, "loss_nats")
    table = recorded(trace, "loss_local_nats") if table is None else table
    return None if table is None else curve(table)


NO_LOSS = "not measured: no rank recorded a loss"


@check(
    "loss.finite",
    question="loss",
    asks="Is the loss a finite number in every step?",
    plant=Plant("a loss that becomes NaN", "loss.nan", params=SHORT, planted={"plant": "loss-nan"}),
)
def finite(trace: TrainingTrace) -> Iterator[Finding]:
    """The first NaN or infinity is where to look: what follows it is its echo."""
    table = trace.series("loss_nats")
    table = trace.series("loss_local_nats") if table is None else table
    if table is None or not len(trace.steps):
        yield skip(NO_LOSS)
        return
    norms = trace.series("grad_norm")
    bad = ~np.isfinite(table) if trace.job.source == "reference" else np.isinf(table)
    if norms is not None:
        bad = bad | np.isinf(norms) | (np.isnan(norms) & ~np.isnan(norms).all())
    steps = np.flatnonzero(bad.any(axis=0))
    if not len(steps):
        yield ok(f"loss and gradient norm are finite in all {table.shape[1]} steps", measured=0, unit="steps", limit=0)
        return
    column = int(steps[0])
    row = int(np.flatnonzero(bad[:, column])[0])
    of_loss = not np.isfinite(table[row, column])
    value = float(table[row, column]) if of_loss or norms is None else float(norms[row, column])
    yield fail(
        "loss.nan",
        f"loss or gradient norm is not finite from step {trace.steps[column]} on (in {len(steps)} steps)",
        measured=value,
        unit="nat/token" if of_loss else "gradient norm",
        limit_source="a loss and a gradient norm are finite numbers",
        where=place(trace, row, column),
        first_seen_step=trace.steps[column],
        remedy=Remedy(
            text="Look at the batch and the gradient norm of the step before; lower the learning rate or clip."
        ),
    )


@check(
    "loss.start",
    question="loss",
    asks="Does the loss start near ln(V), the loss of a uniform guess?",
    plant=Plant(
        "the output head starts 50 times too wide",
        ("loss.start-off", "loss.below-entropy"),
        params=SHORT,
        planted={"plant": "init-scaled"},
    ),
)
def start(trace: TrainingTrace, limits: LossLimits) -> Iterator[Finding]:
    """A first loss far above ln(V) is a bad initialisation; far below it, an answer that the model was given."""
    values, expected = _curve(trace), trace.job.loss_start_nats
    if values is None or expected is None or trace.job.resumed_from_step:
        yield skip("not measured: needs a fresh model and a known vocabulary size")
        return
    offset = abs(float(values[0]) - expected)
    told = f"first loss {values[0]:.3f} nat/token, ln(V) = {expected:.3f}"
    yield _by_limit(limits.start_offset_nats, offset, "loss.start-off", told, "nat/token")


@check(
    "loss.descends",
    question="loss",
    asks="Does the loss fall?",
    plant=(
        Plant("a learning rate of zero", "loss.flat", params=SHORT, planted={"plant": "loss-flat"}),
        Plant("a learning rate far too high", "loss.diverged", params=SHORT, planted={"plant": "loss-diverged"}),
    ),
)
def descends(trace: TrainingTrace, limits: LossLimits) -> Iterator[Finding]:
    """Compares the mean of the last quarter with the first loss, as a share of the way down to the entropy rate.

    Without a known entropy rate, the fall must stand out of the curve's own noise.
    """
    values = _curve(trace)
    if values is None or len(values) < 8:
        yield skip("not measured: needs a loss over at least 8 steps")
        return
    first, last = float(values[0]), float(tail(values).mean())
    if limits.end_minus_start_nats.judge(last - first).value == "FAIL":
        text = f"the loss rose from {first:.3f} to {last:.3f} nat/token over {len(values)} steps"
        limit = limits.end_minus_start_nats
        yield fail(
            "loss.diverged",
            text,
            measured=last - first,
            unit="nat/token",
            limit=limit.fail_above,
            limit_source=limit.source,
        )
        return
    floor = trace.job.entropy_nats
    if floor is None or first <= floor:
        yield _falls_out_of_noise(values)
        return
    share = (first - last) / (first - floor)
    told = f"loss {first:.3f} to {last:.3f} nat/token in {len(values)} steps, {share:.0%} of the way to {floor:.3f}"
    yield _by_limit(limits.fall_share, share, "loss.flat", told, "share of the way")


def _falls_out_of_noise(values: Table) -> Finding:
    quarter = max(2, len(values) // 4)
    head, last = values[:quarter], tail(values, least=2)
    noise = float(np.std(np.diff(values))) / np.sqrt(2 * quarter) + 1e-12
    drop = float(head.mean() - last.mean())
    told = f"mean loss {head.mean():.4f} in the first quarter, {last.mean():.4f} in the last; noise {noise:.2g}"
    source = "default: three times the curve's own noise"
    kept = {"measured": drop, "unit": "nat/token", "limit": 3 * noise, "limit_source": source}
    if drop > 3 * noise:
        return ok(told, **kept)
    return skip(f"not decided: no fall that stands out of the noise ({told}); train longer to tell", **kept)


@check(
    "loss.floor",
    question="loss",
    asks="Does the loss stay above the entropy rate of the data?",
    plant=Plant(
        "the target is visible to the model",
        "loss.below-entropy",
        params=SHORT,
        planted={"plant": "loss-below-entropy"},
    ),
)
def floor(trace: TrainingTrace, limits: LossLimits) -> Iterator[Finding]:
    """A mean below the entropy rate means that the model sees what it should predict, or that samples repeat."""
    values, entropy = _curve(trace), trace.job.entropy_nats
    if values is None or entropy is None:
        yield skip("not measured: the entropy rate of the data is not known")
        return
    last = tail(values, least=5)
    margin = float(last.mean()) - entropy
    told = f"mean loss of the last {len(last)} steps {last.mean():.3f} nat/token, entropy rate {entropy:.3f}"
    yield _by_limit(limits.floor_margin_nats, margin, "loss.below-entropy", told, "nat/token")


@check(
    "loss.spikes",
    question="loss",
    asks="Is the curve free of jumps?",
    plant=Plant("the targets of one update are garbled", "loss.spike", params=SHORT, planted={"plant": "loss-spike"}),
)
def spikes(trace: TrainingTrace, limits: LossLimits) -> Iterator[Finding]:
    """Compares each step with the median of the five before it."""
    values = _curve(trace)
    if values is None or len(values) < 7:
        yield skip("not measured: needs a loss over at least 7 steps")
        return
    jumps = np.array([values[i] - np.median(values[i - 5 : i]) for i in range(5, len(values))])
    jumps = jumps[np.isfinite(jumps)]
    noise = float(np.median(np.abs(np.diff(values)))) if np.isfinite(values).all() else 0.0
    worst = float(jumps.max()) if len(jumps) else 0.0
    column = 5 + int(jumps.argmax()) if len(jumps) else 5
    # A noisy but healthy curve jumps by a few of its own typical steps; both must be exceeded.
    if limits.spike_nats.judge(worst).value == "PASS" or worst < 8 * noise:
        told = f"largest jump {worst:.3f} nat/token over the five steps before it"
        yield ok(
            told,
            measured=worst,
            unit="nat/token",
            limit=limits.spike_nats.warn_above,
            limit_source=limits.spike_nats.source,
        )
        return
    text = f"the loss jumped by {worst:.3f} nat/token to {values[column]:.3f} at step {trace.steps[column]}"
    yield warn(
        "loss.spike", text, measured=worst, unit="nat/token", limit=limits.spike_nats.warn_above,
        limit_source=limits.spike_nats.source, where=place(trace, 0, column), first_seen_step=trace.steps[column],
    )  # fmt: skip


@check(
    "loss.gradients",
    question="loss",
    asks="Do gradient norms stay in a sane range?",
    plant=Plant("gradients that vanish", "grad.vanishing", params=SHORT, planted={"plant": "grad-vanishing"}),
)
def gradients(trace: TrainingTrace, limits: LossLimits) -> Iterator[Finding]:
    """A norm far above the run's median is a blow-up; one near zero means that nothing can be learnt."""
    table = recorded(trace, "grad_norm")
    if table is None:
        yield skip("not measured: no rank recorded gradient norms")
        return
    values = curve(table)
    values = values[np.isfinite(values)]
    if not len(values):
        yield skip("not measured: no gradient norm was finite (loss.finite says where)")
        return
    median, largest = float(np.median(values)), float(values.max())
    if limits.grad_norm.judge(median).value == "FAIL":
        text = f"median gradient norm {median:.3g}: the loss does not reach the parameters"
        limit = limits.grad_norm
        yield fail("grad.vanishing", text, measured=median, unit="1", limit=limit.fail_below, limit_source=limit.source)
        return
    told = f"gradient norm: median {median:.3g}, largest {largest:.3g}"
    yield _by_limit(limits.grad_norm_ratio, largest / median, "grad.blow-up", told, "ratio to the median")


def _by_limit(limit: Limit, value: float, id: str, told: str, unit: str) -> Finding:
    kept = {"measured": value, "unit": unit, "limit": limit.bound(value), "limit_source": limit.source}
    status = limit.judge(value).value
    return (
        ok(told, **kept) if status == "PASS" else warn(id, told, **kept) if status == "WARN" else fail(id, told, **kept)
    )
