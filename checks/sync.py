"""Question 5: are gradients synchronised at the intended frequency?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ddaudit.api import Finding, Plant, Remedy, TrainingTrace, check, fail, ok, skip, warn

from ._arrays import Table, place, recorded

ACCUMULATED = {"parallel": "data", "variant": "accumulate", "steps": 6}
PLAIN = {"parallel": "data", "steps": 6}


def _plant(name: str, expect: str, params: Mapping[str, Any], fault: str) -> Plant:
    return Plant(name, expect, ranks=2, params=params, planted={"plant": fault}, types="data")


@check(
    "sync.frequency",
    question="sync",
    asks="Are gradients synchronised once per update, on every rank and for every parameter?",
    plant=(
        _plant("every micro-batch is synchronised", "sync.every-micro-step", ACCUMULATED, "sync-every-micro-step"),
        _plant("one update goes without", "sync.missing-on-step", ACCUMULATED, "sync-skipped-step"),
        _plant("one parameter is never reduced", "sync.params-not-reduced", PLAIN, "param-unsynced"),
    ),
)
def frequency(trace: TrainingTrace) -> Iterator[Finding]:
    """Compares rounds of gradient synchronisation per update with the parallelism's own need.

    Too few means replicas drift apart silently; A times too many means that ``no_sync`` is missing, and the step pays
    for A - 1 needless all-reduces.
    """
    rounds, needed = recorded(trace, "grad_syncs"), trace.job.grad_syncs_per_step
    if rounds is None or needed is None:
        yield skip("not measured: the ranks recorded no gradient synchronisation")
        return
    judged = rounds[:, : len(trace.steps)]
    missing = np.argwhere(judged < needed - 1e-9)
    if len(missing):
        yield _missing(trace, judged, missing, needed)
    elif (judged > needed + 1e-9).mean() > 0.5 and needed > 0:
        yield _too_often(trace, judged, needed)
    else:
        text = f"gradients are synchronised {np.median(judged):g} time(s) per update on all {judged.shape[0]} rank(s)"
        source = f"need of {trace.job.parallel or 'this'} parallelism"
        yield ok(text, measured=float(np.median(judged)), unit="rounds/update", limit=needed, limit_source=source)


def _missing(trace: TrainingTrace, rounds: Table, at: Table, needed: float) -> Finding:
    row, column = (int(x) for x in at[0])
    value = float(rounds[row, column])
    steps = sorted({trace.steps[int(c)] for _, c in at})
    partly = 0 < value % 1 < 1
    id = "sync.params-not-reduced" if partly else "sync.missing-on-step"
    what = (
        f"only {value:.1%} of the gradient elements were reduced"
        if partly
        else f"{value:g} rounds instead of {needed:g}"
    )
    shown = ", ".join(map(str, steps[:5])) + (" ..." if len(steps) > 5 else "")
    return fail(
        id,
        f"{what} in {len(steps)} of {len(trace.steps)} updates (steps {shown})",
        measured=value,
        unit="rounds/update",
        limit=needed,
        limit_source="every replica must see the mean gradient before each update",
        where=place(trace, row, column),
        first_seen_step=steps[0],
        remedy=Remedy(
            text="Synchronise in the last micro-batch of each window; call the wrapped module, not module.module."
        ),
    )


def _too_often(trace: TrainingTrace, rounds: Table, needed: float) -> Finding:
    often = float(np.median(rounds))
    moved = recorded(trace, "grad_sync_bytes")
    wasted = None if moved is None else float(np.median(moved)) * (often - needed) / often
    price = "" if wasted is None else f"; {wasted / 1e6:.2f} MB of needless all-reduce per update and rank"
    return warn(
        "sync.every-micro-step",
        f"gradients are synchronised {often:g} times per update where {needed:g} is needed{price}",
        measured=often,
        unit="rounds/update",
        limit=needed,
        limit_source="need of data parallelism: one reduction per update",
        where=place(trace, 0),
        remedy=Remedy(text="Wrap all but the last micro-batch of a window in `no_sync()`."),
    )
