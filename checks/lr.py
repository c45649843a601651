"""Question 3: do schedule and warm-up tick as they should, alike on all ranks, and fit the effective batch?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Plant, Remedy, TrainingTrace, check, fail, ok, skip, warn

from ._arrays import place, recorded

ACCUMULATED = {"parallel": "data", "variant": "accumulate", "steps": 8}


@check(
    "lr.ticks",
    question="lr",
    asks="Does the scheduler tick once per optimizer update?",
    plant=Plant(
        "the scheduler ticks once per micro-batch",
        "lr.stepped-per-micro-batch",
        ranks=2,
        params=ACCUMULATED,
        planted={"plant": "lr-per-micro-batch"},
        types="data",
    ),
)
def ticks(trace: TrainingTrace) -> Iterator[Finding]:
    """A schedule written in updates and ticked per micro-batch ends A times too early, warm-up included."""
    table = recorded(trace, "scheduler_ticks")
    if table is None:
        yield skip("not measured: no rank recorded scheduler steps")
        return
    usual = float(np.nanmedian(table))
    if usual <= 1:
        yield ok(
            f"the scheduler ticks {usual:g} time(s) per update",
            measured=usual,
            unit="ticks/update",
            limit=1,
            limit_source="schedules are written in updates",
        )
        return
    micro = recorded(trace, "micro_batches")
    accumulation = None if micro is None else float(np.nanmedian(micro))
    per_micro = accumulation is not None and accumulation > 1 and usual == accumulation
    yield fail(
        "lr.stepped-per-micro-batch" if per_micro else "lr.schedule-too-fast",
        f"the scheduler ticks {usual:g} times per update" + (", once per micro-batch" if per_micro else ""),
        measured=usual,
        unit="ticks/update",
        limit=1,
        limit_source="schedules are written in updates",
        where=place(trace, 0),
        remedy=Remedy(
            text="Call scheduler.step() right after optimizer.step(), or write the schedule in micro-batches."
        ),
    )


@check(
    "lr.equal-on-ranks",
    question="lr",
    asks="Do all ranks use the same learning rate in each update?",
    plant=Plant(
        "one rank uses another learning rate",
        "lr.differs-between-ranks",
        ranks=2,
        params={"parallel": "data", "steps": 6},
        planted={"plant": "lr-differs"},
        types="data",
    ),
)
def equal_on_ranks(trace: TrainingTrace) -> Iterator[Finding]:
    """Replicas that step by different amounts are no replicas after the first update."""
    table = recorded(trace, "lr")
    if table is None:
        yield skip("not measured: no rank recorded its learning rate")
        return
    with np.errstate(invalid="ignore"):
        spread = np.nanmax(table, axis=0) - np.nanmin(table, axis=0)
    worst = int(np.nanargmax(spread))
    kept = {
        "measured": float(spread[worst]),
        "unit": "1",
        "limit": 0.0,
        "limit_source": "one schedule for all replicas",
    }
    if spread[worst] <= 1e-12 * max(float(np.nanmax(np.abs(table))), 1e-30):
        yield ok(f"the learning rate is equal on {table.shape[0]} rank(s) in every update", **kept)
        return
    first = int(np.flatnonzero(spread > 0)[0])
    row = int(np.nanargmax(np.abs(table[:, worst] - np.nanmedian(table[:, worst]))))
    low, high = float(np.nanmin(table[:, worst])), float(np.nanmax(table[:, worst]))
    text = f"learning rates differ between ranks by up to {high - low:.3g} ({low:.4g} to {high:.4g})"
    yield fail(
        "lr.differs-between-ranks", text, where=place(trace, row, worst), first_seen_step=trace.steps[first], **kept
    )


@check(
    "lr.warmup",
    question="lr",
    asks="Does the learning rate warm up as the job says?",
    plant=Plant(
        "warm-up is left out",
        "lr.warmup-missing",
        ranks=1,
        params={"steps": 8},
        planted={"plant": "no-warmup"},
        types="single",
    ),
)
def warmup(trace: TrainingTrace) -> Iterator[Finding]:
    """Compares the first updates with the peak. Without a claim there is nothing to hold the schedule against."""
    table, claimed = recorded(trace, "lr"), trace.job.warmup_steps
    if table is None or claimed is None or trace.job.resumed_from_step or table.shape[1] < 2:
        yield skip("not measured: needs a fresh run with a recorded learning rate and a claimed warm-up")
        return
    values = np.nanmean(table, axis=0)
    peak = max(float(np.nanmax(values)), trace.job.lr or 0.0)
    below = np.flatnonzero(values < peak * (1 - 1e-9))
    reached = (
        int(np.flatnonzero(values >= peak * (1 - 1e-9))[0]) if (values >= peak * (1 - 1e-9)).any() else len(values)
    )
    kept = {
        "measured": reached,
        "unit": "updates below the peak",
        "limit": claimed,
        "limit_source": "the job's warm-up",
    }
    if claimed == 0 or (len(below) and below[0] == 0 and reached >= min(claimed, len(values)) - 1):
        yield ok(f"the learning rate starts at {values[0]:.3g} and reaches {peak:.3g} after {reached} updates", **kept)
        return
    text = f"the job claims {claimed} updates of warm-up; the learning rate is at its peak {peak:.3g} after {reached}"
    yield warn("lr.warmup-missing", text, where=place(trace, 0, 0), **kept)
