"""Questions 2 and 4 for a user's script: batch and accumulation against what the script itself claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ddaudit.api import Finding, Remedy, TrainingTrace, WatchedRank, WatchedScript, check, fail, ok, skip

from ._arrays import Table, place, recorded
from ._watched import (
    COUNT,
    LARGEST,
    accumulation,
    claimed,
    framework,
    near,
    planted,
    readers,
    single_optimizer,
    unknown,
    world,
)

#: Where a checkpoint keeps its step number.
STORED = (
    "global_step",
    "step",
    "trainer.global_step",
    "num_updates",
    "completed_steps",
    "optimizer_steps",
    "n_updates",
)


def global_samples(trace: TrainingTrace, script: WatchedScript) -> float | None:
    """Samples of one update over all ranks that read different data; None where it cannot be told which do."""
    table = recorded(trace, "samples")
    if table is None or (world(trace) > 1 and readers(trace, script) is None):
        return None
    if table.shape[0] < world(trace):
        return None
    return float(np.nanmedian(table.sum(axis=0)))


@check(
    "script.batch",
    question="batch",
    asks="Is the effective batch N * B_local * A the one that the script claims?",
    plant=planted(
        "the claimed total batch is read by every rank", "batch.effective-mismatch", "batch-per-rank", claim=True
    ),
)
def script_batch(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Claims come from options and their help, configuration variables and printouts. A claim may count tokens.

    A mismatch is named only where the factor is one that a forgotten N or A leaves.
    """
    measured = global_samples(trace, script)
    if measured is None:
        yield skip("not measured: needs samples per update of ranks that are known to read different data")
        return
    usual, ranks = accumulation(trace), world(trace)
    parts = "" if usual is None else f" = {ranks} * {measured / ranks / usual:g} * {usual:g}"
    told = f"B_eff = N * B_local * A{parts} = {measured:g} samples per update"
    wanted = claimed(script, "global_batch")
    if not wanted or measured in wanted or _tokens(trace) in wanted:
        limit = measured if wanted else None
        yield ok(told + (", as claimed" if wanted else ""), measured=measured, unit="samples", limit=limit,
                 limit_source=None if limit is None else next(iter(wanted.values())))  # fmt: skip
        return
    factors = {float(ranks): "N", float(usual or 1): "A", ranks * float(usual or 1): "N * A"}
    for value, source in wanted.items():
        name = next(
            (n for f, n in factors.items() if f > 1 and (near(measured / value, f) or near(value / measured, f))), None
        )
        if name is not None or "expect" in source:
            because = f", off by {name}" if name else ""
            yield fail(
                "batch.effective-mismatch",
                f"{told}; {source} says {value}{because}",
                measured=measured, unit="samples", limit=value, limit_source=source, where=place(trace, 0),
                remedy=Remedy(text="Divide the total batch by N * A for the loader, or mend the claim."),
            )  # fmt: skip
            return
    yield unknown(f"{told}; the script speaks of {sorted(wanted)}, which no factor N or A explains")


def _tokens(trace: TrainingTrace) -> float | None:
    """Targets of one update over all ranks, where the loss is a mean over targets."""
    table = trace.array("loss_terms")
    if table is None:
        return None
    count = table[..., COUNT]
    known = ~np.isnan(count).all(axis=(0, 2))  # terms are not followed in every update
    return float(np.median(np.nansum(count[:, known], axis=(0, 2)))) if known.any() else float("nan")


@check(
    "script.accumulation",
    question="accumulation",
    asks="Does the script accumulate as many micro-batches as it claims, on every rank?",
    plant=planted("one rank accumulates fewer micro-batches", ("accum.count-differs", "accum.rank-mismatch"),
                  "accum-differs", accum=4, wrap="manual"),
)  # fmt: skip
def script_accumulation(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Counts the backward passes that share one update's gradients; several losses over one batch count once."""
    table, usual = recorded(trace, "micro_batches"), accumulation(trace)
    if table is None or usual is None:
        yield unknown("whether several backward calls are one accumulated batch or several losses; --expect tells")
        return
    with np.errstate(invalid="ignore"):
        uneven = (np.nanmax(table, axis=0) != np.nanmin(table, axis=0)) & ~np.isnan(table).any(axis=0)
    kept = {"measured": usual, "unit": "micro-batches/update"}
    if table.shape[0] > 1 and uneven.mean() > 0.1:
        column = int(np.flatnonzero(uneven)[0])
        yield fail(
            "accum.count-differs",
            f"ranks accumulate {table[:, column].astype(int).tolist()} micro-batches in update {trace.steps[column]}"
            f" ({int(uneven.sum())} updates differ)",
            where=place(trace, int(table[:, column].argmin()), column), first_seen_step=trace.steps[column],
            limit=float(np.nanmax(table[:, column])), limit_source="all ranks of an update agree",
            remedy=Remedy(text="Give every rank the same number of batches and one accumulation setting."), **kept,
        )  # fmt: skip
        return
    wanted = _wanted(trace, script, usual)
    # An option may be shared out over the ranks: then a variable of the script says what is left for one.
    if wanted and usual not in claimed(script, "accumulation") and framework(script) != "lightning":
        value, source = next(iter(wanted.items()))
        yield fail(
            "accum.unexpected",
            f"{usual:g} micro-batch(es) per update; {source} says {value}", where=place(trace, 0), limit=value,
            limit_source=source, remedy=Remedy(text="Step the optimizer once every so many micro-batches."), **kept,
        )  # fmt: skip
        return
    yield ok(f"each rank accumulates {usual:g} micro-batch(es) per update", limit=usual, **kept)


def _wanted(trace: TrainingTrace, script: WatchedScript, usual: float) -> dict[int, str]:
    """Claims that bind: options, and settings of the script where all name one number and the optimizer steps after
    every micro-batch. A setting may also be the total that is shared out among the ranks."""
    every = claimed(script, "accumulation")
    bound = {v: s for v, s in every.items() if s.startswith("option") or "expect" in s}
    if bound or len(every) != 1 or usual != 1 or not single_optimizer(script):
        return bound
    if framework(script) not in (None, "accelerate"):
        return bound
    counted = ("accumulated", "accumulator")  # what a loop has so far is no setting
    return {v: s for v, s in every.items() if v not in (1, world(trace)) and not any(w in s for w in counted)}


@check(
    "script.windows",
    question="accumulation",
    asks="Does no accumulation window carry gradients over the end of an epoch?",
    plant=planted(
        "leftover gradients go into the next epoch", "accum.window-crosses-epoch", "leftover", accum=4, odd=True
    ),
)
def windows(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """A window with batches of two epochs, or a short last window whose micro-batches weigh as if it were full."""
    epochs, micro, usual = trace.array("sample_epoch"), recorded(trace, "micro_batches"), accumulation(trace)
    if epochs is None or micro is None or usual is None or usual < 2:
        yield skip("not measured: needs accumulation over a loader whose epochs are seen")
        return
    top, low = epochs.max(axis=2), np.where(epochs < 0, np.iinfo(np.int64).max, epochs).min(axis=2)
    crossing = (top > low) & (top >= 0) & (top // 100_000 == low // 100_000)
    longer = crossing & (micro > usual)
    short = (micro < usual) & ~crossing & (np.arange(micro.shape[1]) > 0) & _weighs_as_full(trace, usual)
    kept = {"unit": "windows", "limit": 0, "limit_source": "an update uses the micro-batches of one window"}
    if longer.any():
        row, column = (int(x) for x in np.argwhere(longer)[0])
        text = (f"the window of update {trace.steps[column]} holds {micro[row, column]:g} micro-batches of two epochs"
                f" instead of {usual:g}")  # fmt: skip
    elif short.any() and framework(script) is None:
        row, column = (int(x) for x in np.argwhere(short)[0])
        text = (f"the short window of update {trace.steps[column]} holds {micro[row, column]:g} micro-batches and is"
                f" weighed as if it held {usual:g}")  # fmt: skip
    else:
        yield ok("no window carries gradients over an epoch's end", measured=0, **kept)
        return
    count = int((longer | short).any(axis=0).sum())
    remedy = Remedy(text="At an epoch's end, step with the micro-batches there are and divide by their number.")
    yield fail("accum.window-crosses-epoch", text, measured=count, where=place(trace, row, column),
               first_seen_step=trace.steps[column], remedy=remedy, **kept)  # fmt: skip


def _weighs_as_full(trace: TrainingTrace, usual: float) -> Table:
    """[rank, step]: True where the weights of a window's micro-batches are those of a full window."""
    table = trace.array("loss_terms")
    if table is None:
        return np.zeros((len(trace.ranks), len(trace.steps)), dtype=bool)
    largest = table[..., LARGEST]
    known = ~np.isnan(largest)
    each = np.nan_to_num(largest).sum(axis=2) / np.maximum(known.sum(axis=2), 1)
    result: Table = known.any(axis=2) & (np.abs(each * usual - 1) < 0.02)
    return result


@check(
    "script.step-count",
    question="accumulation",
    asks="Does the script's step counter count updates?",
    plant=planted("the step counter counts micro-batches", "step.counted-in-micro-batches", "count-micro", accum=4),
)
def step_count(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Compares counters, step limits and stored step numbers with the updates that were made."""
    usual = accumulation(trace)
    loads = any(c["action"] == "load" for r in script.ranks for c in r.checkpoints)
    if usual is None or not script.ranks or loads or trace.job.resumed_from_step:
        yield skip("not measured: needs a run from the start with a known accumulation")
        return
    rank = script.ranks[0]
    source = "a step is an optimizer update"
    for name, rows in rank.counters.items():
        late = [(u, p, v) for u, p, v in rows if u >= 3]
        if usual > 1 and len(late) >= 3 and all(abs(v - p) <= usual and abs(v - u) > usual for u, p, v in late):
            u, _, v = late[-1]
            text = f"{name} is {v} after {u} updates of {usual:g} micro-batches"
            yield fail("step.counted-in-micro-batches", text, measured=v, unit="steps", limit=u, limit_source=source,
                       where=place(trace, 0))  # fmt: skip
            return
    updates = max(trace.steps, default=-1) + 1
    limits = {} if _counts_updates(rank) else claimed(script, "updates")
    for value, where in limits.items():
        if usual > 1 and script.exit_code == 0 and updates > 3 and abs(updates * usual - value) < usual:
            text = f"the script ends after {updates} updates of {usual:g} micro-batches; {where} says {value} steps"
            yield fail("step.counted-in-micro-batches", text, measured=updates, unit="updates", limit=value,
                       limit_source=where, where=place(trace, 0))  # fmt: skip
            return
    wrong = [c for c in rank.checkpoints if c["action"] == "save" and _stored_off(c, usual)]
    if wrong:
        stored = next(v for k, v in wrong[-1]["numbers"].items() if k in STORED)
        micro = usual > 1 and abs(stored - wrong[-1]["update"] * usual) <= usual
        id = "step.counted-in-micro-batches" if micro else "ckpt.global-step-wrong"
        text = f"a checkpoint says step {stored} after {wrong[-1]['update']} updates"
        yield fail(id, text, measured=stored, unit="steps", limit=wrong[-1]["update"], limit_source=source,
                   where=place(trace, 0, file=wrong[-1]["path"]))  # fmt: skip
        return
    yield ok(f"{updates} updates; no counter or checkpoint disagrees", measured=updates, unit="updates",
             limit_source=source)  # fmt: skip


def _counts_updates(rank: WatchedRank) -> bool:
    """True where the step number of a saved checkpoint is the number of updates: a run that ends before its step limit
    was then stopped for another reason."""
    saves = [c for c in rank.checkpoints if c["action"] == "save" and c["update"] > 2]
    stored = [(v, c["update"]) for c in saves for k, v in c["numbers"].items() if k in STORED]
    return bool(stored) and all(abs(value - update) <= 1 for value, update in stored)


def _stored_off(saved: Mapping[str, Any], usual: float) -> bool:
    """True where a checkpoint's top-level step is neither the number of updates nor one beside it."""
    steps = [v for k, v in saved["numbers"].items() if k in STORED]
    if "model" not in saved.get("areas", ()):
        return False  # parts of a checkpoint may count something else
    return bool(steps) and saved["update"] > 2 and abs(steps[0] - saved["update"]) > 1
