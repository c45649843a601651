"""Question 7 for a user's script: what its updates wait for. Small costs and short runs accuse nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ddaudit.api import Finding, Limit, Limits, Remedy, TrainingTrace, WatchedScript, check, ok, skip, warn

from ._arrays import Table, place, recorded
from ._watched import planted, world

#: Bytes of gradients below which no link is the bottleneck.
MANY_BYTES = 4 << 20


class ScriptLimits(Limits):
    """Limits on what an update of a watched script waits for."""

    family = "script"

    input_share: Limit = Limit(warn_above=0.5, source="default: more time for loading than for everything else")
    input_wait_s: Limit = Limit(warn_above=0.02, source="default: shorter waits are the price of small examples")
    own_time_share: Limit = Limit(warn_above=0.4, source="default: one rank's own work is two fifths of the update")


@check(
    "script.cost",
    question="bottleneck",
    asks="What limits the script's updates: compute, communication, input or one rank?",
    plant=(
        planted("every sample waits for storage", "perf.input-bound", "slow-input"),
        planted("rank 1 does extra work", "perf.straggler-rank", "straggler"),
        planted("rank 0 does extra work now and then", "perf.host-work-on-rank0", "host-work"),
    ),
)
def cost(trace: TrainingTrace, script: WatchedScript, limits: ScriptLimits) -> Iterator[Finding]:
    """Splits the median update of the slowest rank by timers; a rank's own time is its update without backward and
    collectives, in which it may wait for others."""
    step, read = recorded(trace, "step_s"), recorded(trace, "input_s")
    if step is None or read is None or step.shape[1] < 6:
        yield skip("not measured: needs at least 6 updates")
        return
    step, read = step[:, 2:], read[:, 2:]
    wait, whole = np.nanmedian(read, axis=1), np.nanmedian(step, axis=1)
    row = int((wait / whole).argmax())
    share = float(np.nansum(read[row]) / np.nansum(step[row]))
    told = f"loading {share:.0%} of the update of {whole[row] * 1e3:.1f} ms"
    kept = {"measured": share, "unit": "share of the update", "limit": limits.input_share.warn_above,
            "limit_source": limits.input_share.source}  # fmt: skip
    average = float(np.nanmean(read[row]))
    if limits.input_share.judge(share).value != "PASS" and limits.input_wait_s.judge(average).value != "PASS":
        respawn = _respawn(script, float(np.nansum(step[row])))
        id = "perf.worker-respawn" if respawn else "perf.input-bound"
        yield warn(id, f"{told}: waiting {average * 1e3:.0f} ms for each batch{respawn or ''}", where=place(trace, row),
                   remedy=Remedy(text="Time the loader alone; add workers, keep them (persistent_workers), or bring"
                                      " the data nearer."), **kept)  # fmt: skip
        return
    found = (
        _respawned(trace, script, step)
        or _oversubscribed(trace, script)
        or _collected(trace)
        or _chatting(trace)
        or _one_rank(trace, limits)
        or _communicating(trace, script)
    )
    yield found or ok(f"{told}; no rank does much more than the others", where=place(trace, row), **kept)


def _collected(trace: TrainingTrace) -> Finding | None:
    """Ranks that stop for Python's garbage collector in different updates wait for each other in turn."""
    paused, step = recorded(trace, "gc_s"), recorded(trace, "step_s")
    if paused is None or step is None or paused.shape[0] < 2 or paused.shape[1] < 12:
        return None
    paused, whole = np.nan_to_num(paused[:, 3:]), float(np.nansum(np.nanmedian(step[:, 3:], axis=0)))
    long = paused > 0.02
    together, apart = float(paused.max(axis=0).sum()), float(paused.sum(axis=1).max())
    if (long.sum(axis=1) < 3).any() or together < 0.1 * whole or together < 1.4 * apart:
        return None
    counts = long.sum(axis=1).astype(int).tolist()
    text = (
        f"ranks stop for garbage collection in different updates ({counts} pauses): together {together / whole:.0%} of"
        f" the run, {apart / whole:.0%} if they stopped together"
    )
    return warn("perf.gc-uncoordinated", text, measured=together / whole, unit="share of the run", limit=0.1,
                limit_source="default: pauses beyond a tenth of the run", where=place(trace, 0),
                remedy=Remedy(text="gc.disable(), and gc.collect() in the same updates on all ranks."))  # fmt: skip


def _chatting(trace: TrainingTrace) -> Finding | None:
    """Barriers and tiny collectives in every update: the least that any rank waits is what they cost by themselves."""
    calls, spent, step = (recorded(trace, n) for n in ("tiny_calls", "tiny_s", "step_s"))
    if calls is None or spent is None or step is None or calls.shape[0] < 2 or calls.shape[1] < 12:
        return None
    least = float(np.nanmedian(spent[:, 3:].min(axis=0)))
    usual, count = float(np.nanmedian(step[:, 3:])), float(np.nanmedian(calls[:, 3:]))
    # A few logged numbers are usual, and on a busy machine each of them waits for a core.
    if count < 8 or least < 0.01 or least < 0.25 * usual:
        return None
    text = f"{count:g} barriers or tiny collectives take {least * 1e3:.0f} of the {usual * 1e3:.0f} ms of an update"
    return warn("perf.forced-sync", text, measured=least / usual, unit="share of the update", limit=0.25,
                limit_source="default: a quarter of the update for counters and barriers", where=place(trace, 0),
                remedy=Remedy(text="No barriers in the loop; reduce logged numbers every few updates."))  # fmt: skip


def _communicating(trace: TrainingTrace, script: WatchedScript) -> Finding | None:
    """The rank that waits least shows what the transfer itself takes: the others also wait for it."""
    step, blocked = recorded(trace, "step_s"), recorded(trace, "comm_wait_s")
    if step is None or step.shape[0] < 2 or step.shape[1] < 12 or len(script.ranks) < 2:
        return None
    usual = float(np.nanmedian(step[:, 3:]))
    own = 0.0 if blocked is None else float(np.nanmedian(blocked[:, 3:].min(axis=0)))
    reduced = min(sum(float(x["exposed_s"]) for x in rank.reductions) for rank in script.ranks)
    passes = recorded(trace, "synced_passes")
    reduced *= 1.0 if passes is None else float(np.nanmedian(passes))
    share = (own + reduced) / usual if usual else 0.0
    # Little data takes long only where ranks wait for a core or for each other.
    if share < 0.5 or own + reduced < 0.02 or 4 * (trace.job.parameters or 0) < MANY_BYTES:
        return None
    text = f"collectives that nothing hides take {share:.0%} of the update of {usual * 1e3:.0f} ms on every rank"
    return warn("perf.communication-bound", text, measured=share, unit="share of the update", limit=0.5,
                limit_source="default: more time for communication than for everything else", where=place(trace, 0),
                remedy=Remedy(text="Accumulate more micro-batches per reduction, or reduce in 16 bits."))  # fmt: skip


def _respawn(script: WatchedScript, seconds: float) -> str | None:
    loader = _costly(script)
    if loader is None or loader["iterators_s"] < 0.3 * seconds:
        return None
    return f"; starting workers took {loader['iterators_s']:.1f} s in {loader['epochs']} epochs"


def _costly(script: WatchedScript) -> dict[str, Any] | None:
    found = [x for r in script.ranks for x in r.loaders if x["workers"] and not x["persistent"] and x["epochs"] > 2]
    return max((dict(x) for x in found), key=lambda x: x["iterators_s"], default=None)


def _respawned(trace: TrainingTrace, script: WatchedScript, step: Table) -> Finding | None:
    """First batches of epochs wait for new workers: measured as what epoch starts cost beyond other updates."""
    loader = _costly(script)
    read = recorded(trace, "input_s")
    epochs = trace.array("sample_epoch")
    if loader is None or read is None or epochs is None:
        return None
    row = 0
    starts = np.flatnonzero(np.diff(epochs[row].max(axis=1), prepend=-1) > 0)
    usual = float(np.nanmedian(read[row]))
    extra = float(np.nansum(np.clip(read[row, starts[starts > 2]] - usual, 0, None))) + float(loader["iterators_s"])
    whole = float(np.nansum(step[row]))
    if extra < 0.4 * whole or extra / loader["epochs"] < 0.05:
        return None
    return warn("perf.worker-respawn", f"starting {loader['workers']} workers anew in each of {loader['epochs']} epochs"
                f" takes {extra:.1f} of {whole:.1f} s", measured=extra / whole, unit="share of the run", limit=0.4,
                limit_source="default: more than what reading costs", where=place(trace, row),
                remedy=Remedy(text="persistent_workers=True"))  # fmt: skip


def _oversubscribed(trace: TrainingTrace, script: WatchedScript) -> Finding | None:
    cores = script.cores
    threads = sum(r.threads for r in script.ranks)
    if not cores or len({p.host for p in trace.ranks}) > 1 or len(script.ranks) < world(trace) or world(trace) < 2:
        return None
    if threads < 4 * cores or threads < 2 * len(script.ranks):
        return None
    text = f"{len(script.ranks)} ranks start {threads} compute threads on {cores} cores"
    remedy = Remedy(text="Set OMP_NUM_THREADS to cores / ranks, and torch.set_num_threads(1) in workers.")
    return warn("perf.cpu-oversubscribed", text, measured=threads, unit="threads", limit=4 * cores, remedy=remedy,
                limit_source="default: four runnable threads a core", where=place(trace, 0))  # fmt: skip


def _one_rank(trace: TrainingTrace, limits: ScriptLimits) -> Finding | None:
    """A rank whose own time stands far above the others', in most updates or in a few of rank 0's."""
    step = recorded(trace, "step_s")
    # Sharded and split models wait for their peers within the forward pass too.
    waiting = ("backward_s", "comm_wait_s", "checkpoint_s", *(() if trace.job.parallel == "data" else ("forward_s",)))
    parts = [recorded(trace, n) for n in waiting]
    if step is None or step.shape[0] < 2 or step.shape[1] < 12:
        return None
    queued = recorded(trace, "runqueue_s")
    parts.append(None if queued is None or np.nanmax(queued) == 0 else np.minimum(queued, step))
    own = step - sum(np.nan_to_num(p) for p in parts if p is not None)
    known: Table = np.asarray(~np.isnan(step).any(axis=0))  # with Join a rank may make fewer updates than its peers
    known[:3] = False
    own, whole = own[:, known], step[:, known]
    if own.shape[1] < 9:
        return None
    others = np.array([np.nanmedian(np.delete(own, r, axis=0), axis=0) for r in range(own.shape[0])])
    excess = own - others
    usual = np.nanmedian(excess, axis=1)
    row = int(usual.argmax())
    share = float(usual[row] / np.nanmedian(whole[row]))
    kept = {"unit": "share of the update", "limit": limits.own_time_share.warn_above,
            "limit_source": limits.own_time_share.source}  # fmt: skip
    # On a busy machine ranks wait for cores by turns: what the accused does must stand out of that.
    noise = 0.02 if queued is None else max(0.02, 2 * float(np.nanmedian(queued[:, 3:], axis=1).max()))
    often = float((excess[row] > 0.5 * usual[row]).mean())
    if usual[row] > noise and often > 0.7 and limits.own_time_share.judge(share).value != "PASS":
        text = f"rank {row} works {usual[row] * 1e3:.0f} ms longer than the others in each update; they wait for it"
        return warn("perf.straggler-rank", text, measured=share, where=place(trace, row), **kept)
    bursts = (excess[0] > max(0.1, noise)) & (excess[0] > 3 * np.nanmedian(whole[0]))
    lost = float(excess[0][bursts].sum() / np.nansum(whole[0]))
    if 2 < bursts.sum() < 0.6 * len(bursts) and limits.own_time_share.judge(lost).value != "PASS":
        text = f"rank 0 works alone in {int(bursts.sum())} updates, {lost:.0%} of the run, while the others wait"
        return warn("perf.host-work-on-rank0", text, measured=lost, where=place(trace, 0), **kept)
    return None
