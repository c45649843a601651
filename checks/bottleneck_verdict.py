"""The verdict on the step time: one proven cause with its price, "not proven" with the next probe, or healthy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ddaudit.api import Finding, Plant, Remedy, TrainingTrace, check, ok, skip, warn

from ._arrays import place
from ._bottleneck import BottleneckLimits
from ._suspects import Suspect, suspects
from ._windows import View

SHORT = {"parallel": "data", "steps": 4, "rounds": 2, "windows": ("memory-input", "solo")}


#: Whatever else runs on the machine: the plant is to be named, and not its neighbours.
ALONE = {"bottleneck.core_share": {"warn_above": 1000.0}}


@check(
    "bottleneck.verdict",
    question="bottleneck",
    asks="Which one cause limits the step, what would removing it save, and which A/B window proves it?",
    plant=(
        Plant(
            "one rank's device is slow",
            "perf.straggler-rank",
            ranks=2,
            params=SHORT,
            limits=ALONE,
            planted={"plant": "slow-rank-blocked", "plant_ms": 200.0},
            types="data",
        ),
        Plant(
            "the loader is slow",
            "perf.input-bound",
            ranks=2,
            params=SHORT,
            limits=ALONE,
            planted={"plant": "slow-input", "plant_ms": 15.0},
            types="data",
        ),
    ),
)
def verdict(trace: TrainingTrace, limits: BottleneckLimits) -> Iterator[Finding]:
    """Names the proven suspect that costs most. A suspect is proven when steps without it, in windows that alternate
    with normal ones, save what the books say; otherwise it is "not proven", with the probe to run next. The table lists
    what removing each suspect alone would save, those that cost nothing here among them.
    """
    view = View.of(trace)
    if view is None:
        yield skip("not measured: needs a run with A/B windows (`windows` of the probe `train`)")
        return
    shares = {
        name: getattr(limits, f"{name}_share").warn_above or 1.0
        for name in ("input", "communication", "host", "straggler", "core")
    }
    found = suspects(view, shares)
    table = _table(view, found)
    named = chosen(found, view.step_s)
    if named is None:
        open_ = [s for s in found if not s.proof and s.price_s >= s.share * view.step_s]
        yield (
            _unproven(view, open_[0], table)
            if open_
            else ok(
                f"healthy: nothing that was taken out of the {_ms(view.step_s)} step makes it much shorter. {table}",
                measured=max((s.price_s for s in found), default=0.0) * 1e3,
                unit="ms",
            )
        )
        return
    row = 0 if named.row is None else named.row
    where = place(trace, row) if named.row is not None else place(trace, 0).model_copy(update={"rank": None})
    yield warn(
        named.id,
        f"{named.what}. {_saves(named.price_s, view.step_s)}; proven: {named.proof}. {table}",
        where=where,
        remedy=Remedy(text=REMEDIES.get(named.id, GENERAL)),
        **_kept(named, view),
    )


def chosen(found: Sequence[Suspect], step_s: float) -> Suspect | None:
    """The proven suspect that costs most; a specific one that explains most of it goes before a general one."""
    proven = [s for s in found if s.proof and s.price_s >= s.share * step_s]
    if not proven:
        return None
    most = max(proven, key=lambda s: s.price_s)
    specific = [s for s in proven if s.specific and s.price_s >= EXPLAINS * most.price_s]
    return max(specific, key=lambda s: s.price_s) if specific else most


EXPLAINS = 0.5


def _kept(suspect: Suspect, view: View) -> dict[str, Any]:
    return {
        "measured": suspect.price_s * 1e3,
        "unit": "ms",
        "limit": suspect.share * view.step_s * 1e3,
        "limit_source": f"{suspect.share:.0%} of the step",
    }


def _unproven(view: View, suspect: Suspect, table: str) -> Finding:
    next_ = suspect.next or "a longer run on a quiet machine"
    return ok(
        f"not proven: {suspect.what}, but no window confirms it; next probe: {next_}. {table}", **_kept(suspect, view)
    )


POPULAR = {
    "memory-input": "waiting for data",
    "no-sync": "all collectives",
    "no-logging": "collectives of the loop's own records",
    "no-gc": "garbage collection",
    "one-thread": "more than one thread",
    "keep-memory": "giving memory back",
}


OWN_WINDOWS = ("memory-input", "no-gc", "one-thread", "keep-memory")


def _table(view: View, found: Sequence[Suspect]) -> str:
    """What removing each alone would save, most first; popular suspects whose window saves nothing come last."""
    rows = [f"{s.id} {_ms(s.price_s)}{'' if s.proof else ' (not proven)'}" for s in found if s.price_s > 0]
    free = list[str]()
    for window, name in POPULAR.items():
        saving = view.saving(window, length="own" if window in OWN_WINDOWS else "active")
        if saving is not None:
            (free if not saving.clear else rows).append(f"{name} {_ms(max(0.0, saving.seconds))}")
    told = f"Saved if removed alone: {', '.join(rows)}" if rows else "Nothing saves time if removed alone"
    return told + (f"; no change by: {', '.join(free)}" if free else "")


def _saves(price_s: float, step_s: float) -> str:
    """A price is a mean over all steps, rare long ones among them, and may exceed what a usual step takes."""
    if price_s < step_s:
        return f"Removing it saves {_ms(price_s)} of the {_ms(step_s)} step"
    return f"Removing it saves {_ms(price_s)} a step on average, more than the {_ms(step_s)} that a usual step takes"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


GENERAL = "Take it out of the step as the window did, and compare step times on a quiet machine."
REMEDIES = {
    "perf.input-bound": "Add workers or prefetch where they compute, nearer data where they wait.",
    "perf.worker-respawn": "persistent_workers=True keeps the workers from one epoch to the next.",
    "perf.bursty-workers": "Look at what one worker reads: a slow shard or mount; a larger prefetch_factor hides it.",
    "perf.straggler-rank": "Give the rank's data to another device; then look at clocks, neighbours and placement.",
    "perf.host-work-on-rank0": "Move logging, evaluation and checks of rank 0 off the step, or do them less often.",
    "perf.host-bound": "Look for Python work before the launches; then compile, or capture the step as a graph.",
    "perf.communication-bound": "Measure the link alone; then send less often, send less, or overlap more.",
    "perf.cpu-oversubscribed": "Set OMP_NUM_THREADS to cores / ranks, and torch.set_num_threads(1) in workers.",
    "perf.cpu-quota": "Raise the container's CPU limit; a quota stops all of its threads at once.",
    "perf.core-shared": "Pin the neighbour elsewhere, or the rank to a core of its own.",
    "perf.core-contended": "Stop the neighbours, or give the job its own cores.",
    "perf.gc-uncoordinated": "gc.disable(), and gc.collect() on all ranks in the same step.",
    "perf.gc-pauses": "gc.freeze() after start-up, and collect less often.",
    "perf.memory-stall": "Reuse buffers; keep freed memory (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_MAX_=0, or jemalloc).",
    "perf.forced-sync": "Read metrics once in many steps, and reduce them in one collective.",
    "sync.every-micro-step": "Wrap all but the last micro-batch of a window in `no_sync()`.",
    "perf.stage-imbalance": "Give the slow stage fewer layers; the last one owns the head.",
    "perf.expert-imbalance": "Balance the router: an auxiliary loss, a capacity limit, or a bias per expert.",
    "perf.sequence-imbalance": "Sort samples into batches of like length, and share tokens out evenly.",
    "perf.data-imbalance": "Share the work out by what samples cost, not by their number.",
    "perf.lateness-roams": "Look for what happens now and then on each rank: pauses, uneven samples, logging.",
}
