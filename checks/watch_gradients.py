"""Is the gradient that the optimizer sees the mean over the global batch?

Two factors are measured: the weight with which each micro-batch's mean loss reaches backward (``loss_terms``), and what
became of the arriving gradients before the step (``grad_slices``). Their product is 1 for a mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddaudit.api import Finding, Remedy, TrainingTrace, WatchedScript, check, fail, ok, skip

from ._arrays import Table, place, recorded
from ._watched import (
    ARRIVED,
    COUNT,
    DIVISOR,
    DIVISORS,
    ENDED,
    IS_SUM,
    LARGEST,
    RAGGED,
    STEPPED,
    TOTAL,
    UNCLIPPED,
    accumulation,
    aligned,
    near,
    planted,
    unknown,
    world,
)  # fmt: skip

CLIP_LATE = Remedy(text="Clip once per update, after the last micro-batch was reduced.")
SOURCE = "the gradient is the mean over the global batch: weights of its micro-batches add up to 1"


@dataclass(frozen=True)
class Weights:
    """Sums over a window, medians over updates, means over ranks."""

    largest: float
    total: float
    divided: bool
    """Whether every pass was divided by the number of micro-batches."""
    divided_twice: bool
    updates: int


def weights(trace: TrainingTrace, passes: float) -> Weights | None:
    """Measured weights of the usual windows; None where a loss is not made of means and sums that can be followed."""
    table = trace.array("loss_terms")
    if table is None:
        return None
    full = (~np.isnan(table[..., LARGEST])).sum(axis=2) == passes
    usable = full.all(axis=0)
    if usable.sum() < 2:
        return None
    chosen = table[:, usable][:, :, : int(passes)]
    divisor = chosen[..., DIVISOR]
    return Weights(
        largest=float(np.median(chosen[..., LARGEST].sum(axis=2).mean(axis=0))),
        total=float(np.median(chosen[..., TOTAL].sum(axis=2).mean(axis=0))),
        divided=bool(np.mean(divisor == passes) > 0.5),
        divided_twice=bool(np.mean((divisor == passes) & (chosen[..., DIVISORS] >= 2)) > 0.5),
        updates=int(usable.sum()),
    )


def reduction(trace: TrainingTrace) -> float | None:
    """Factor between the mean over ranks of the gradients that arrived and the gradient before clipping.

    NaN where it is neither constant nor ever 1, so that something unknown scales gradients; None where slices were not
    recorded or point elsewhere (cosine below 0.999).
    """
    table, clips, scale = trace.array("grad_slices"), recorded(trace, "clips"), recorded(trace, "scale")
    if table is None:
        return None
    source = ENDED if trace.job.parallel in ("sharded", "tensor") else ARRIVED
    found = []
    for column in range(table.shape[1]):
        arrived = table[:1, column, ENDED] if source == ENDED else table[:, column, ARRIVED]
        clipped = clips is not None and np.nanmax(clips[:, column]) > 0
        final = table[0, column, UNCLIPPED if clipped else STEPPED]
        keep = ~np.isnan(arrived).any(axis=0) & ~np.isnan(final)
        mean = arrived[:, keep].mean(axis=0) / (1.0 if scale is None else float(scale[0, column]))
        size = float(mean @ mean)
        if keep.sum() < 4 or size == 0:
            continue
        along = float(mean @ final[keep])
        if along > 0.999 * np.sqrt(size) * float(np.linalg.norm(final[keep])):
            found.append(along / size)
    if len(found) < 2:
        return None
    if np.ptp(found) <= 0.02 * np.median(found):
        return float(np.median(found))
    return 1.0 if near(max(found), 1.0) else float("nan")


@check(
    "script.gradient-scale",
    question="accumulation",
    asks="Is the accumulated gradient the mean over the global batch?",
    plant=(
        planted("the loss is not divided by the accumulation", "loss.not-divided-by-accum", "undivided", accum=4),
        planted("the loss is divided twice", "loss.divided-twice", "divided-twice", accum=4),
        planted("gradients are summed over ranks", "grad.scaled-by-world-size", "summed", wrap="manual"),
        planted("gradients are averaged twice", "grad.scaled-by-world-size", "averaged-twice"),
    ),
)
def gradient_scale(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """The product of both factors tells a forgotten or doubled division; which factor is off tells where."""
    usual = accumulation(trace)
    found = None if usual is None else weights(trace, usual)
    if usual is None or found is None:
        yield unknown("the loss reaches backward by operations whose weight cannot be followed, or in several parts")
        return
    factor = reduction(trace)
    if factor is not None and np.isnan(factor):
        yield unknown("something scales gradients by a factor that changes, such as clipping by hand")
        return
    scale = 1.0 if factor is None else factor
    told = f"weights of {usual:g} micro-batch(es) add up to {found.total:.4g}"
    told += "" if factor is None else f", the reduction multiplies by {factor:.4g}"
    kept = {"measured": found.total * scale, "unit": "1", "limit": 1.0, "limit_source": SOURCE}
    whole = any(near(w * scale, 1.0) for w in (found.largest, found.total))
    fault = None if whole else _fault(trace, found, usual, scale)
    if fault is None:
        undecided = not whole and usual > 1
        text = f"{told} in {found.updates} updates"
        yield unknown(f"{text}; a loss with coefficients of its own may be right") if undecided else ok(text, **kept)
        return
    id, text, advice = fault
    yield fail(id, f"{text}: {told}", where=place(trace, 0, 0), remedy=Remedy(text=advice), **kept)


def _fault(trace: TrainingTrace, found: Weights, usual: float, scale: float) -> tuple[str, str, str] | None:
    ranks = world(trace)
    both = (found.largest, found.total)
    by_ranks = ranks > 1 and (near(scale, ranks) or near(scale, 1 / ranks)) and not near(scale * usual, 1.0)
    if by_ranks and any(near(w * scale * f, 1.0) for w in both for f in (ranks, 1 / ranks)):
        how = "summed over" if scale > 1 else "averaged more than once over"
        return "grad.scaled-by-world-size", f"gradients are {how} the {ranks} ranks", "Average exactly once."
    known = (1.0, usual, 1 / usual, float(ranks), 1 / ranks)
    if any(near(w, 1.0) for w in both) and not any(near(scale, f, 0.05) for f in known):
        text = f"something multiplies every gradient by {scale:.4g} before the update"
        return "grad.scale-off", text, "Look for a scaler that is never undone, or gradients scaled by hand."
    if usual < 2:
        return None
    if any(near(w * scale, usual) for w in both) and not found.divided:
        text = f"the loss is not divided by the {usual:g} micro-batches of an update"
        return "loss.not-divided-by-accum", text, "Divide each micro-batch's loss by the accumulation steps."
    if any(near(w * scale, 1 / usual) for w in both) and (found.divided_twice or near(scale, 1 / usual)):
        text = f"the loss is divided twice by the {usual:g} micro-batches of an update"
        return "loss.divided-twice", text, "The framework divides already: take the script's own division out."
    return None


@check(
    "script.token-weights",
    question="accumulation",
    asks="Does every target count the same, in whichever micro-batch it comes?",
    plant=planted("micro-batches with few targets weigh as much", "loss.tokens-not-weighted", "mean-of-means",
                  accum=4, ragged=True),
)  # fmt: skip
def token_weights(trace: TrainingTrace) -> Iterator[Finding]:
    """A mean of means weighs a target in a short micro-batch more. Seen where targets are masked or ignored."""
    table, usual = trace.array("loss_terms"), accumulation(trace)
    if table is None or usual is None or usual < 2:
        yield skip("not measured: needs accumulation and a loss that can be followed")
        return
    terms = table[:, :, : int(usual)]
    count, largest = terms[..., COUNT], terms[..., LARGEST]
    known = ~np.isnan(count).any(axis=2) & ~np.isnan(largest).any(axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        uneven = count.max(axis=2) / count.min(axis=2)
        alike = largest.max(axis=2) / largest.min(axis=2)
    ragged = (terms[..., RAGGED] > 0).any(axis=2) | (terms[..., IS_SUM] > 0).any(axis=2)
    judged = known & ragged & (uneven > 1.05)
    if not judged.any():
        yield ok("no micro-batch of a window has masked targets in unequal number", measured=0, limit=0)
        return
    wrong = judged & (alike < 1 + 0.2 * (uneven - 1))
    kept = {"measured": float(np.median(uneven[judged])), "unit": "ratio of targets", "limit": 1.05,
            "limit_source": "default: beyond this, weighing micro-batches alike is visible"}  # fmt: skip
    if wrong.sum() < 0.5 * judged.sum():
        yield ok("micro-batches are weighed by their number of targets", **kept)
        return
    yield fail(
        "loss.tokens-not-weighted",
        f"micro-batches of one update have up to {np.nanmax(uneven[judged]):.2f} times as many targets as others and"
        " weigh the same",
        where=place(trace, 0, int(np.argwhere(wrong)[0][1])),
        remedy=Remedy(text="Sum the loss and divide by the targets of the whole update, on all ranks."),
        **kept,
    )


@check(
    "script.clipping",
    asks="Is clipping done on true gradients, by the same norm on every rank?",
    plant=(
        planted(
            "gradients are clipped before they are unscaled", "grad.clip-before-unscale", "clip-early", scaler=True
        ),
        planted("each rank clips by a norm of its own", "grad.clip-norm-differs", "clip-local", wrap="manual"),
    ),
)
def clipping(trace: TrainingTrace) -> Iterator[Finding]:
    """Clipping scaled gradients clips them all to nothing; a norm that differs between ranks bends the gradient."""
    early, clips = recorded(trace, "early_clips"), recorded(trace, "clips")
    if early is not None and np.nansum(early) > 0:
        row, column = (int(x) for x in np.argwhere(early > 0)[0])
        yield fail(
            "grad.clip-before-unscale",
            f"gradients were clipped while still multiplied by the scaler in {int((early > 0).sum())} updates",
            measured=int((early > 0).sum()), unit="updates", limit=0,
            limit_source="a clip norm is meant for true gradients", where=place(trace, row, column),
            remedy=Remedy(text="Call scaler.unscale_(optimizer) before clipping."),
        )  # fmt: skip
        return
    if (apart := _clipped_alone(trace) or _norms_apart(trace)) is not None:
        yield apart
        return
    factors = _factors(trace)
    if factors is None:
        text = (
            "no rank clips gradients" if clips is None or not np.nansum(clips) else "clipping bends no recorded slice"
        )
        yield ok(text, measured=0, unit="updates", limit=0)
        return
    spread = factors.max(axis=0) - factors.min(axis=0)
    kept = {"measured": float(spread.max()), "unit": "difference of clip factors", "limit": 0.01,
            "limit_source": "default: rounding of a norm is far below this"}  # fmt: skip
    if (spread > 0.01).mean() < 0.5 or len(spread) < 2:
        yield ok("all ranks clip by the same factor", **kept)
        return
    yield fail(
        "grad.clip-norm-differs",
        f"ranks clip the same update by different factors ({factors[:, int(spread.argmax())].round(3).tolist()})",
        where=place(trace, 0), remedy=Remedy(text="Clip by the norm over all ranks' parts, after the reduction."),
        **kept,
    )  # fmt: skip


def _clipped_alone(trace: TrainingTrace) -> Finding | None:
    """Clipping within an accumulation window, where every rank holds gradients of its own."""
    local = recorded(trace, "local_clips")
    if local is None or local.shape[0] < 2 or (local > 0).any(axis=0).mean() <= 0.25:
        return None
    count = int((local > 0).any(axis=0).sum())
    text = f"each rank clips its own gradients within the window, before they are reduced, in {count} updates"
    return fail("grad.clip-norm-differs", text, measured=count, unit="updates", limit=0, where=place(trace, 0, 0),
                limit_source="one gradient has one norm", remedy=CLIP_LATE)  # fmt: skip


def _norms_apart(trace: TrainingTrace) -> Finding | None:
    norms, limits = recorded(trace, "clip_norm"), recorded(trace, "clip_limit")
    if norms is None or limits is None or len(trace.ranks) < 2 or trace.job.parallel == "tensor":
        return None
    with np.errstate(invalid="ignore"):
        spread = (np.nanmax(norms, axis=0) - np.nanmin(norms, axis=0)) / np.nanmax(norms, axis=0)
        bent = (np.nanmax(norms / limits, axis=0) > 1) & (spread > 1e-3) & ~np.isnan(norms).any(axis=0)
        bent &= aligned(trace)
    if bent.mean() < 0.25:
        return None
    column = int(np.flatnonzero(bent)[0])
    shown = ", ".join(f"{x:.4g}" for x in norms[:, column])
    return fail(
        "grad.clip-norm-differs",
        f"ranks clip the same update by different norms ({shown}) in {int(bent.sum())} updates",
        measured=float(np.nanmax(spread[bent])), unit="relative difference of norms", limit=1e-3,
        limit_source="one gradient has one norm", where=place(trace, 0, column),
        remedy=Remedy(text="Clip by the norm over all ranks' parts, after the reduction."),
    )  # fmt: skip


def _factors(trace: TrainingTrace) -> Table | None:
    """[rank, update]: how much each rank shrank its gradients between backward and step, where that is a pure factor.

    Only for updates in which ranks should shrink alike: parts of one model, or replicas that were reduced before.
    """
    table = trace.array("grad_slices")
    if table is None or len(trace.ranks) < 2 or trace.job.parallel in ("tensor", "single"):
        return None
    found = []
    for column in range(table.shape[1]):
        before, after = table[:, column, ENDED], table[:, column, STEPPED]
        keep = ~np.isnan(before).any(axis=0) & ~np.isnan(after).any(axis=0)
        if keep.sum() < 4 or (trace.job.parallel != "sharded" and np.ptp(before[:, keep], axis=0).max() > 0):
            unclipped = table[:, column, UNCLIPPED]
            keep = ~np.isnan(unclipped).any(axis=0) & ~np.isnan(after).any(axis=0)
            before = unclipped
            if keep.sum() < 4 or trace.job.parallel == "sharded":
                continue
        norms = np.linalg.norm(before[:, keep], axis=1), np.linalg.norm(after[:, keep], axis=1)
        cosine = (before[:, keep] * after[:, keep]).sum(axis=1)
        if (norms[0] > 0).all() and (norms[1] > 0).all() and (cosine > 0.999 * norms[0] * norms[1]).all():
            found.append(norms[1] / norms[0])
    factors = np.array(found).T if found else None
    return factors if factors is not None and (factors < 0.99).any() else None
