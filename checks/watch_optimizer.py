"""Does the optimizer train the model? And does the loss say so?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ddaudit.api import Finding, Remedy, TrainingTrace, WatchedScript, check, fail, ok, skip, warn

from ._arrays import Table, curve, place, recorded
from ._watched import ADAM, STEPPED, planted, single_optimizer

REMEDY = Remedy(text="Make the optimizer after the model is final: wrapped, sharded, moved, its layers replaced.")


@check(
    "script.optimizer",
    asks="Does the optimizer hold the model's parameters, and does each update change them?",
    plant=(
        planted("the optimizer holds a layer that was replaced", "optim.stale-params", "stale"),
        planted("the learning rate is too small to change anything", "optim.no-op-step", "no-op"),
    ),
)
def script_optimizer(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Looks for optimizer parameters that no model owns while the model's own have gradients nobody uses, and for
    updates at a learning rate above zero that change no bit."""
    primary = [_primary(rank.optimizers, rank.primary) for rank in script.ranks]
    known = [o for o in primary if o is not None]
    if not known:
        yield skip("not measured: no optimizer made an update")
        return
    row, worst = min(enumerate(known), key=lambda item: item[1]["in_models"] - item[1]["parameters"])
    stale = worst["parameters"] - worst["in_models"]
    changed, lr = recorded(trace, "changed"), recorded(trace, "lr")
    idle = np.zeros((1, 1), dtype=bool) if changed is None or lr is None else (changed == 0) & (lr > 0)
    lost = stale > 0 and (worst["orphans"] > 0 or worst["with_grad"] == 0) and worst["missing"] > 0
    if lost:
        yield fail(
            "optim.stale-params",
            f"{stale} of {worst['parameters']} parameters of {worst['type']} belong to no model, and {worst['missing']}"
            " trainable parameters of the model are in no optimizer",
            measured=stale, unit="parameters", limit=0, limit_source="an optimizer holds what the model trains",
            where=place(trace, row), remedy=REMEDY,
        )  # fmt: skip
        return
    if (gone := recorded(trace, "lost_grads")) is not None and np.nanmean(gone) > 0.25:
        text = f"gradients are cleared between backward and the optimizer's step in {int(np.nansum(gone[0]))} updates"
        yield fail("optim.no-op-step", text, measured=int(np.nansum(gone[0])), unit="updates", limit=0,
                   limit_source="the optimizer steps with the gradients that backward left", where=place(trace, 0, 0),
                   remedy=Remedy(text="Clear gradients after the step or before backward, not between them."),
        )  # fmt: skip
        return
    seen = 0 if changed is None else int((~np.isnan(changed)).sum())  # long runs are sampled
    share = float(idle.sum()) / max(1, seen)
    kept = {"measured": int(idle.sum()), "unit": "updates without effect", "limit": 0,
            "limit_source": "an update at a learning rate above 0 changes parameters"}  # fmt: skip
    if share < 0.25:
        yield ok(f"{worst['type']} holds {worst['parameters']} parameters, all of the model", **kept)
        return
    column = int(np.argwhere(idle)[0][1])
    text = f"{int(idle.sum())} updates at a learning rate above 0 changed no bit of any parameter"
    yield fail("optim.no-op-step", text, where=place(trace, row, column), remedy=REMEDY, **kept)


#: A gradient this far below the largest of its model is lost in rounding wherever both meet.
FAINT = 1e-9
#: Sum of learning rates below which weights near 1 stay as they are in float32.
UNMOVED = 1e-6


def _primary(optimizers: tuple[Mapping[str, Any], ...], number: int | None) -> Mapping[str, Any] | None:
    return next((o for o in optimizers if o["number"] == number and o["updates"]), None)


@check(
    "script.loss",
    question="loss",
    asks="Is the script's loss finite, and does it not run away?",
    plant=(
        planted("the loss becomes NaN", "loss.nan", "nan"),
        planted("the learning rate is far too high", "loss.diverged", "diverge"),
        planted("gradients vanish", "grad.vanishing", "vanish"),
    ),
)
def script_loss(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Judges the tensor on which the script calls backward. Its unit is not known, so only ratios count, and falling
    is not asked of adversaries, policies or two-player losses."""
    bad, losses, norms = (recorded(trace, n) for n in ("loss_bad", "loss_raw", "grad_norm"))
    if bad is not None and np.nansum(bad) > 0:
        row, column = (int(x) for x in np.argwhere(bad > 0)[0])
        text = f"the loss is not finite in update {trace.steps[column]} ({int((bad > 0).any(axis=0).sum())} updates)"
        yield fail("loss.nan", text, measured=int((bad > 0).any(axis=0).sum()), unit="updates", limit=0,
                   limit_source="a loss is a finite number", where=place(trace, row, column),
                   first_seen_step=trace.steps[column])  # fmt: skip
        return
    if losses is None:
        yield skip("not measured: backward was never called on one number")
        return
    values = curve(losses)
    if norms is not None and (small := _vanishing(trace, norms)) is not None:
        yield small
        return
    told = f"loss {values[0]:.4g} to {values[-1]:.4g} in {len(values)} updates"
    moving = _moving_target(trace) or _range_test(trace)
    if single_optimizer(script) and len(values) >= 8 and (values > 0).all() and not moving:
        quarter = max(2, len(values) // 4)
        head, end = float(np.median(values[:quarter])), float(np.median(values[-quarter:]))
        kept = {"measured": end / head, "unit": "last quarter / first quarter", "limit": 3.0,
                "limit_source": "default: a loss that triples is running away"}  # fmt: skip
        late = float(values[len(values) // 2 :].min())
        if (flat := _flat(trace, values)) is not None:
            yield flat
            return
        if (jump := _spike(trace, values)) is not None:
            yield jump
        if end > 3 * float(values[0]) and (end > 3 * head or late > 2 * float(values[:2].max())):
            yield fail("loss.diverged", f"the loss grows: {told}", where=place(trace, 0, len(values) - 1), **kept)
            return
        yield ok(told, **kept)
        return
    yield ok(told + moving, measured=float(values[-1]), unit="as the script computes it", limit=None)


def _moving_target(trace: TrainingTrace) -> str:
    """Told where a model is called more than for its losses, on data that no loader gives, as agents act: a loss
    against returns or estimates of the model itself may grow for long while it learns."""
    calls = recorded(trace, "free_calls")
    if calls is None or trace.array("sample_epoch") is not None or float(np.nanmean(calls)) < 0.5:
        return ""
    return f"; not held against its start: {float(np.nanmean(calls)):.1f} calls an update collect what it learns from"


def _range_test(trace: TrainingTrace) -> str:
    """Told where the learning rate grows by one factor in every update, hundredfold and more, to see where the loss
    runs away (Smith 2017)."""
    rates = recorded(trace, "lr")
    if rates is None or rates.shape[1] < 12 or not (rates[0] > 0).all():
        return ""
    growth = rates[0, 1:] / rates[0, :-1]
    if growth.min() <= 1.0 or np.ptp(growth) > 0.01 * growth.max() or rates[0, -1] < 100 * rates[0, 0]:
        return ""
    return "; not held against its start: the learning rate grows throughout, as in a range test"


def _spike(trace: TrainingTrace, values: Table) -> Finding | None:
    """The first update whose loss stands far above a calm curve before it and above where training began."""
    for at in range(8, len(values)):
        usual, start = float(np.median(values[at - 5 : at])), float(np.median(values[:5]))
        restless = float((values[1:at] / values[: at - 1]).max())
        if values[at] > max(8, 4 * restless) * usual and values[at] > 1.5 * start:
            break
    else:
        return None
    text = f"the loss jumps to {values[at]:.4g} in update {trace.steps[at]}, {values[at] / usual:.0f} times the usual"
    return warn("loss.spike", text, measured=float(values[at] / usual), unit="times the median of five updates",
                limit=8, limit_source="default: batches of one data set differ by less", where=place(trace, 0, at),
                first_seen_step=trace.steps[at],
                remedy=Remedy(text="Look at the samples of this update; clip gradients."))  # fmt: skip


def _vanishing(trace: TrainingTrace, norms: Table) -> Finding | None:
    median = float(np.nanmedian(norms))
    lr = recorded(trace, "lr")
    if lr is not None and np.nanmax(lr) == 0:
        return None
    if median >= 1e-9:
        return _vanishing_on_the_way(trace)
    return fail("grad.vanishing", f"median gradient norm {median:.3g}: the loss does not reach the parameters",
                measured=median, unit="1", limit=1e-9, limit_source="below this, float32 weights near 1 do not move",
                where=place(trace, 0))  # fmt: skip


def _vanishing_on_the_way(trace: TrainingTrace) -> Finding | None:
    """Layers that next to nothing reaches, while others learn: a third of the recorded elements have gradients that
    are rounding beside the largest. Rows that are not looked up have exact zeros, and the gradients of biases that a
    normalisation cancels are rounding of larger numbers (1e-8 beside the largest)."""
    table = trace.array("grad_slices")
    stepped = np.zeros((0, 0, 0)) if table is None else table[:, :, STEPPED]
    stepped = stepped[:, np.isfinite(stepped).any(axis=(0, 2))]  # long runs are sampled
    if stepped.shape[1] < 4:
        return None
    sizes = np.abs(np.nan_to_num(stepped, posinf=0.0, neginf=0.0))
    usual = np.median(sizes, axis=1).max(axis=0)  # [element]
    largest = float(usual.max(initial=0.0))
    faint = (usual > 0) & (usual < min(FAINT * largest, 1e-9))
    share = float(faint.mean()) if len(faint) else 0.0
    if share < 1 / 3:
        return None
    most = float(usual[faint].max())
    text = (f"gradients vanish on their way back: {share:.0%} of the recorded elements are at most {most:.1g}, the"
            f" largest is {largest:.2g}")  # fmt: skip
    return fail("grad.vanishing", text, measured=most / largest, unit="of the largest gradient", limit=FAINT,
                limit_source="default: what rounding leaves of a gradient that cancels is ten times as large",
                where=place(trace, 0),
                remedy=Remedy(text="Use ReLU or GELU, residual connections, normalisation or another start.")
    )  # fmt: skip


def _flat(trace: TrainingTrace, values: Table) -> Finding | None:
    """A loss that stays where it began, with a learning rate that cannot move any parameter of an Adam optimizer, whose
    updates are about as large as the rate, over the whole run. A rate that is still rising is a warm-up."""
    rates = recorded(trace, "lr")
    if rates is None or trace.job.optimizer not in ADAM or len(values) < 8:
        return None
    rate = np.nanmean(rates, axis=0)
    moved = float(np.nansum(rate))
    quarter = max(2, len(values) // 4)
    fall = float(values[:quarter].mean() - values[-quarter:].mean())
    noise = float(np.std(np.diff(values))) / np.sqrt(quarter)
    if not 0 < moved < UNMOVED or rate[-1] > 1.5 * rate[0] or fall > 3 * noise:
        return None
    text = (f"the loss stays at {values[-quarter:].mean():.4g}: {len(values)} updates at learning rates up to"
            f" {np.nanmax(rate):.2g} move a parameter by {moved:.2g} at most")  # fmt: skip
    return fail("loss.flat", text, measured=moved, unit="sum of learning rates", limit=UNMOVED, where=place(trace, 0),
                limit_source="default: ten roundings of a float32 weight near 1",
                remedy=Remedy(text="Look for a unit or a factor too many in the learning rate."))  # fmt: skip


@check(
    "script.memory",
    asks="Is nothing kept alive from step to step?",
    plant=planted("losses are collected with their graphs", "mem.graph-retained", "retain"),
)
def memory(trace: TrainingTrace) -> Iterator[Finding]:
    """A mark hung on each loss's graph dies with it: marks that live on are graphs that the script holds."""
    alive, resident = recorded(trace, "graphs_alive"), recorded(trace, "rss_bytes")
    if alive is None:
        yield skip("not measured: no backward pass was seen")
        return
    most = float(np.nanmax(alive))
    kept = {"measured": most, "unit": "graphs alive", "limit": 16, "limit_source": "default: a few losses may be kept"}
    passes = recorded(trace, "passes")
    made = float(np.nansum(passes[0])) if passes is not None else 0.0
    if most > 16 and most > 0.2 * min(made, 400):
        row, column = (int(x) for x in np.argwhere(alive == most)[0])
        remedy = Remedy(text="Keep loss.item() or loss.detach(), not the loss.")
        text = f"{most:.0f} losses still hold their autograd graph"
        yield fail("mem.graph-retained", text, where=place(trace, row, column), remedy=remedy, **kept)
        return
    if resident is not None and (grown := _growth(resident)) is not None:
        yield warn("perf.memory-growth", f"resident memory grows by {grown / 1e6:.2f} MB per update",
                   measured=grown, unit="byte/update", limit=250_000.0, where=place(trace, 0),
                   limit_source="default: seen over the whole second half of the run")  # fmt: skip
        return
    yield ok(f"at most {most:.0f} graph(s) alive at once", **kept)


def _growth(resident: Table) -> float | None:
    """Bytes per update when each of the last four eighths of the run adds as much; else None."""
    resident = resident[:, ~np.isnan(resident).any(axis=0)]  # ranks may end after different numbers of updates
    count = resident.shape[1]
    if count < 40:
        return None
    marks = [
        float(np.nanmedian(resident[:, i - 3 : i], axis=1).max()) for i in np.linspace(count // 2, count, 5, dtype=int)
    ]
    steps = np.diff(marks) / (count / 8)
    return float(steps.mean()) if (steps > 250_000).all() and steps.max() < 3 * steps.min() else None
