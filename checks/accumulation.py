"""Question 4: are gradient-accumulation steps counted consistently on all workers, and cleared once per update?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Plant, Remedy, TrainingTrace, check, fail, ok, skip

from ._arrays import place, recorded

ACCUMULATED = {"parallel": "data", "variant": "accumulate", "steps": 6}


@check(
    "accumulation.consistent",
    question="accumulation",
    asks="Do all ranks accumulate the same number of micro-batches into each update?",
    plant=Plant(
        "one rank accumulates fewer micro-batches",
        "accum.count-differs",
        ranks=2,
        params=ACCUMULATED,
        planted={"plant": "accum-count-differs"},
        types="data",
    ),
)
def consistent(trace: TrainingTrace) -> Iterator[Finding]:
    """A rank that counts differently weighs its samples differently, or hangs its peers in the next collective."""
    table = recorded(trace, "micro_batches")
    if table is None:
        yield skip("not measured: no rank recorded micro-batches")
        return
    usual = np.nanmedian(table, axis=0)
    wrong = np.argwhere(~np.isnan(table) & (table != usual))
    if not len(wrong):
        counts = sorted({int(x) for x in usual[~np.isnan(usual)]})
        told = " or ".join(map(str, counts))
        text = f"every rank accumulates {told} micro-batch(es) per update over {table.shape[1]} updates"
        yield ok(text, measured=0, unit="updates that differ", limit=0, limit_source="all ranks of an update agree")
        return
    row, column = (int(x) for x in wrong[0])
    low, high = np.nanmin(table[:, column]), np.nanmax(table[:, column])
    yield fail(
        "accum.count-differs",
        f"ranks accumulate {low:g} to {high:g} micro-batches in update {trace.steps[column]}"
        f" ({len({int(c) for _, c in wrong})} of {table.shape[1]} updates differ)",
        measured=float(table[row, column]),
        unit="micro-batches/update",
        limit=float(usual[column]),
        limit_source="the median of the ranks in this update",
        where=place(trace, row, column),
        first_seen_step=trace.steps[column],
        remedy=Remedy(
            text="Give every rank the same number of batches (drop_last, or a join) and one accumulation setting."
        ),
    )


@check(
    "accumulation.cleared",
    question="accumulation",
    asks="Are gradients cleared once between updates?",
    plant=Plant(
        "gradients are not cleared after one update",
        "grad.never-zeroed",
        ranks=1,
        params={"steps": 6},
        planted={"plant": "zero-grad-missed"},
        types="single",
    ),
)
def cleared(trace: TrainingTrace) -> Iterator[Finding]:
    """Gradients that survive an update are counted again in the next one."""
    table = recorded(trace, "zero_grads")
    if table is None:
        yield skip("not measured: no rank recorded when gradients were cleared")
        return
    missed = np.argwhere(table < 1)
    if not len(missed):
        text = f"gradients are cleared for each of {table.shape[1]} updates"
        yield ok(
            text, measured=0, unit="updates not cleared", limit=0, limit_source="each update uses its own gradients"
        )
        return
    row, column = (int(x) for x in missed[0])
    count = len({int(c) for _, c in missed})
    yield fail(
        "grad.never-zeroed",
        f"gradients were not cleared for {count} of {table.shape[1]} updates, first after update {trace.steps[column]}",
        measured=count,
        unit="updates not cleared",
        limit=0,
        limit_source="each update uses its own gradients",
        where=place(trace, row, column),
        first_seen_step=trace.steps[column],
        remedy=Remedy(text="Call optimizer.zero_grad() once per update, on the optimizer that holds these parameters."),
    )


@check(
    "accumulation.division",
    question="accumulation",
    asks="Is each micro-batch's loss divided once, by the number of micro-batches?",
    plant=(
        Plant(
            "the loss is not divided",
            "loss.not-divided-by-accum",
            ranks=2,
            params=ACCUMULATED,
            planted={"plant": "accum-undivided"},
            types="data",
        ),
        Plant(
            "the loss is divided twice",
            "loss.divided-twice",
            ranks=2,
            params=ACCUMULATED,
            planted={"plant": "accum-double-divided"},
            types="data",
        ),
        Plant(
            "means of unequal token counts are averaged",
            "loss.tokens-not-weighted",
            ranks=2,
            params={**ACCUMULATED, "ragged": True},
            planted={"plant": "mean-of-means"},
            types="data",
        ),
    ),
)
def division(trace: TrainingTrace) -> Iterator[Finding]:
    """The mean loss over A micro-batches is the sum of their means over A where all have as many tokens; with unequal
    counts each mean counts by its tokens, so that no divisor is A exactly.
    """
    divisor, micro = recorded(trace, "loss_divisor"), recorded(trace, "micro_batches")
    if divisor is None or micro is None or not np.nanmedian(micro) > 1:
        yield skip("not measured: needs loss divisors of a run that accumulates")
        return
    ratio = divisor / micro
    usual, count = float(np.nanmedian(ratio)), float(np.nanmedian(micro))
    kept = {
        "measured": float(np.nanmedian(divisor)),
        "unit": "divisor",
        "limit": count,
        "limit_source": "the accumulation",
    }
    where, text = (
        place(trace, 0),
        f"the divisor of a micro-batch's mean loss is {kept['measured']:.4g} with A = {count:g}",
    )
    if abs(usual * count - 1) < 0.02:
        yield fail("loss.not-divided-by-accum", f"{text}: the loss is not divided", where=where, **kept)
    elif abs(usual / count - 1) < 0.02:
        yield fail("loss.divided-twice", f"{text}: the loss is divided twice", where=where, **kept)
    elif _unequal_tokens(trace) and (np.abs(ratio[~np.isnan(ratio)] - 1) < 1e-9).all():
        yield fail("loss.tokens-not-weighted", f"{text}, though micro-batches differ in tokens", where=where, **kept)
    else:
        yield ok(text, **kept)


def _unequal_tokens(trace: TrainingTrace) -> bool:
    """True when updates or ranks of the same number of samples differ in their number of target tokens."""
    tokens, samples = recorded(trace, "tokens"), recorded(trace, "samples")
    if tokens is None or samples is None:
        return False
    with np.errstate(all="ignore"):
        per_sample = tokens / samples
    return bool(np.nanstd(per_sample) > 1e-9)
