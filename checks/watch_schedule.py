"""Question 3 for a user's script: does the schedule tick per update, warm up as claimed and last to the end?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Remedy, TrainingTrace, WatchedScript, check, fail, ok, skip

from ._arrays import Table, place, recorded
from ._watched import EPOCH_BASE, accumulation, base_rate, claimed, framework, near, planted, shares, world
from .watch_batch import global_samples


@check(
    "script.schedule",
    question="lr",
    asks="Does the learning-rate schedule tick once per update and last to the end of training?",
    plant=(
        planted("the scheduler ticks once per micro-batch", "lr.stepped-per-micro-batch", "tick-micro", accum=4),
        planted("the schedule ends half way", "lr.zero-before-end", "short-schedule"),
    ),
)
def schedule(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Ticks are counted at the scheduler; what they do to the learning rate decides whether the pace is a fault.

    A schedule written in micro-batches and ticked per micro-batch ends with the run, and is right.
    """
    rates = recorded(trace, "lr")
    if rates is None or rates.shape[1] < 4:
        yield skip("not measured: needs a learning rate over at least 4 updates")
        return
    values = np.nanmean(rates, axis=0)
    idle = len(values) if np.nanmax(np.abs(values)) == 0 else _idle_tail(values)
    pace, usual = _pace(trace), accumulation(trace)
    kept = {"measured": pace, "unit": "ticks/update", "limit": 1, "limit_source": "schedules are written in updates"}
    if pace is not None and pace > 1 and not _fits(values, idle):
        per_micro = usual is not None and usual > 1 and pace == usual
        id = "lr.stepped-per-micro-batch" if per_micro else "lr.schedule-too-fast"
        how = ", once per micro-batch" if per_micro else f" on {world(trace)} ranks"
        text = f"the scheduler ticks {pace:g} times per update{how}"
        text += f"; the learning rate is 0 in the last {idle} of {len(values)} updates" if idle else ""
        remedy = Remedy(text="Call scheduler.step() right after optimizer.step(), once.")
        if idle or (per_micro and framework(script) is None):
            yield fail(id, text, where=place(trace, 0), remedy=remedy, **kept)
            return
    if idle > max(2, 0.1 * len(values)):
        yield fail(
            "lr.zero-before-end",
            f"the learning rate is 0 in the last {idle} of {len(values)} updates",
            measured=idle, unit="updates", limit=0, limit_source="an update at learning rate 0 changes nothing",
            where=place(trace, 0, len(values) - idle), first_seen_step=trace.steps[len(values) - idle],
            remedy=Remedy(text="Write the schedule for the number of updates that are made."),
        )  # fmt: skip
        return
    told = "no scheduler was seen" if pace is None else f"the scheduler ticks {pace:g} time(s) per update"
    yield ok(f"{told}; learning rate {values[0]:.3g} to {values[-1]:.3g}, peak {np.nanmax(values):.3g}", **kept)


def _pace(trace: TrainingTrace) -> float | None:
    table = recorded(trace, "scheduler_ticks")
    return None if table is None or table.shape[1] < 3 else float(np.nanmedian(table[:, 1:]))


def _idle_tail(values: Table) -> int:
    """Updates at the end whose learning rate is 0 beside the peak."""
    peak = np.nanmax(np.abs(values))
    moving = np.flatnonzero(np.abs(values) > 1e-6 * peak)
    return len(values) - 1 - int(moving[-1]) if peak > 0 and len(moving) else 0


def _fits(values: Table, idle: int) -> bool:
    """True when the schedule comes down and does so only towards the end of the run, so it was written in its ticks."""
    peak, at = float(np.nanmax(values)), int(np.nanargmax(values))
    rest = values[at:]
    falls = len(rest) > 3 and bool((np.diff(rest) <= 1e-12 * peak).all())
    return idle <= 2 and falls and values[-1] < 0.2 * peak and rest[len(rest) // 2] > 0.2 * peak


@check(
    "script.warmup",
    question="lr",
    asks="Does the learning rate warm up for as many updates as the script claims?",
    plant=planted("the claimed warm-up is not done", "lr.warmup-missing", "no-warmup"),
)
def script_warmup(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Compares the update that first reaches the peak with the claimed length: updates, epochs or a share."""
    rates, wanted = recorded(trace, "lr"), _claimed_warmup(trace, script)
    loads = any(c["action"] == "load" for r in script.ranks for c in r.checkpoints)
    if rates is None or len(wanted) != 1 or loads:
        yield skip("not measured: needs a run from the start and one claimed length of warm-up")
        return
    (claim, source), values = next(iter(wanted.items())), np.nanmean(rates, axis=0)
    peak = float(np.nanmax(values))
    reached = int(np.flatnonzero(values >= 0.99 * peak)[0]) + 1
    kept = {"measured": reached, "unit": "updates", "limit": claim, "limit_source": source}
    if claim < 4 or len(values) <= claim + 1 or reached >= 0.7 * claim or peak == 0:
        yield ok(f"the learning rate reaches its peak {peak:.3g} in update {reached}", **kept)
        return
    usual = accumulation(trace) or 1.0
    factors = {usual, float(world(trace)), usual * world(trace)} - {1.0}
    fast = reached > 1 and any(abs(reached - claim / f) <= 1 for f in factors)
    id = "lr.schedule-too-fast" if fast else "lr.warmup-missing"
    if not fast and reached > 1:
        yield skip(
            f"unknown: the peak comes in update {reached}, {source} says {claim}; it may not count updates", **kept
        )
        return
    text = f"{source} says {claim} updates of warm-up; the learning rate is at its peak in update {reached}"
    yield fail(id, text, where=place(trace, 0, 0), **kept)


def _claimed_warmup(trace: TrainingTrace, script: WatchedScript) -> dict[int, str]:
    """Claimed lengths in updates. Epochs count where the first one was read to its end; a share counts of the updates
    of a script that came to its own end, and where a framework does not make the schedule of it."""
    found = claimed(script, "warmup_updates")
    if found:
        return found
    epochs = trace.array("sample_epoch")
    epoch = np.zeros(0) if epochs is None else np.where(epochs[0] >= 0, epochs[0] % EPOCH_BASE, 0).max(axis=1)
    if epoch.any():
        first = int(np.flatnonzero(epoch)[0])
        found = {int(v * first): s for v, s in claimed(script, "warmup_epochs").items()}
    if script.exit_code == 0 and framework(script) is None:
        found |= {int(v * len(trace.steps)): s for v, s in shares(script).items()}
    return found


@check(
    "script.rate-for-batch",
    question="lr",
    asks="Is the learning rate scaled by the batch that is really trained on, where the script scales it?",
    plant=planted("the rule for the rate leaves out the ranks", "lr.not-matched-to-batch", "lr-unscaled", claim=True),
)
def rate_for_batch(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Scripts that name a base rate and its batch mean rate = base * k (Goyal et al. 2017) or base * sqrt(k) (Malladi
    et al. 2022), k times the base batch. A fault is named only where N or A was left out, or nothing was scaled.
    """
    rates, batches, measured = base_rate(script), claimed(script, "base_batch"), global_samples(trace, script)
    table = recorded(trace, "lr")
    if len(rates) != 1 or len(batches) != 1 or measured is None or table is None:
        yield skip("not measured: needs a script that names one base learning rate and the batch it is meant for")
        return
    (base, source), batch = next(iter(rates.items())), next(iter(batches))
    # A short run may end before the peak: the rate that the schedule multiplies counts then.
    k, ratio = measured / batch, max(float(np.nanmax(table)), trace.job.lr or 0.0) / base
    right = (k, k**0.5)
    told = f"peak learning rate {ratio:.4g} times the base {base:.4g}, batch {measured:g} is {k:.4g} times {batch}"
    kept = {"measured": ratio, "unit": "times the base rate", "limit": k, "limit_source": f"{source}, batch {batch}"}
    if any(near(ratio, wanted, 0.1) for wanted in right):
        yield ok(told, **kept)
        return
    usual, ranks = accumulation(trace) or 1.0, float(world(trace))
    factors = {ranks: "N", usual: "A", ranks * usual: "N * A", k: "anything"}
    found = (n for f, n in factors.items() if f > 1.1 and any(near(ratio, w, 0.05) for w in (k / f, (k / f) ** 0.5)))
    left_out = next(found, None)
    if left_out is None:
        yield skip(f"unknown: {told}; a rule of its own may be meant", **kept)
        return
    text = f"{told}: the rule was applied without {left_out}" if left_out != "anything" else f"{told}: it is not scaled"
    yield fail("lr.not-matched-to-batch", text, where=place(trace, 0), remedy=Remedy(
        text=f"Scale by the batch of an update, N * B_local * A = {measured:g}."), **kept)  # fmt: skip
