"""Question 5 for a user's script: do all replicas step with the same gradients, and are those reduced once?

The proof is in the bits: replicas that were synchronised hold bit-equal gradients when the optimizer steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Remedy, TrainingTrace, WatchedScript, check, fail, ok, skip, warn

from ._arrays import Table, place, recorded
from ._watched import (
    accumulation,
    aligned,
    compared,
    differing,
    framework,
    names,
    one_model,
    planted,
    readers,
    unknown,
    world,
)  # fmt: skip

SOURCE = "replicas step with bit-equal gradients"


@check(
    "script.sync",
    question="sync",
    asks="Do all replicas of the script step with equal gradients, reduced once per update?",
    plant=(
        planted("no_sync is on in the last micro-batch", "sync.missing-on-step", "sync-last", accum=4),
        planted("every micro-batch is reduced", "sync.every-micro-step", "sync-all", accum=4),
        planted("the wrapped module is called past its wrapper", "sync.bypassed", "bypass"),
        planted("a layer is unfrozen after the wrap", "sync.params-not-reduced", "unfreeze"),
        planted("parameters are replaced after the wrap", "sync.hooks-lost", "hooks-lost"),
    ),
)
def script_sync(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Compares gradients between ranks at each recorded update, then says which mistake leaves such a pattern."""
    table = trace.array("grad_digests")
    if trace.job.parallel == "sharded" and world(trace) > 1:
        yield _sharded(trace, script) or skip("not measured: no two ranks replicate the same gradients")
        return
    if world(trace) < 2 or trace.job.parallel == "tensor" or not one_model(script):
        yield skip("not measured: no two ranks replicate the same gradients")
        return
    judged = np.zeros(0, dtype=bool) if table is None else compared(table) & aligned(trace)
    if table is None or not judged.any():
        yield skip("not measured: needs gradients of two or more ranks")
        return
    differs: Table = differing(table)[judged]
    bad = differs.any(axis=1)
    steps = np.asarray(trace.steps)[judged]
    if not bad.any():
        yield _too_often(trace) or ok(
            f"gradients agree bit for bit on {table.shape[0]} ranks in {len(steps)} updates",
            measured=0, unit="updates that differ", limit=0, limit_source=SOURCE,
        )  # fmt: skip
        return
    if (why := _excused(trace, script, table, differs)) is not None:
        yield unknown(why)
        return
    first = int(np.flatnonzero(bad)[0])
    id, what, advice = _pattern(trace, script, table[:, judged], differs)
    yield fail(
        id,
        f"{what}: gradients differ between ranks in {int(bad.sum())} of {len(steps)} updates",
        measured=int(bad.sum()),
        unit="updates that differ",
        limit=0,
        limit_source=SOURCE,
        where=place(trace, 1, list(trace.steps).index(int(steps[first]))),
        first_seen_step=int(steps[first]),
        remedy=Remedy(text=advice),
    )


def _sharded(trace: TrainingTrace, script: WatchedScript) -> Finding | None:
    """Under FSDP2 shards differ, so two things can be told: updates before which nothing was reduced, and parameters
    outside every wrapped module, which each rank holds whole and nobody reduces."""
    last, table = recorded(trace, "last_synced"), trace.array("grad_digests")
    if last is not None and last.shape[1] > 2 and np.nanmax(last) == 0:
        text = "set_requires_gradient_sync(False) holds at the last backward pass of every update: nothing is reduced"
        return fail(
            "sync.missing-on-step",
            text,
            measured=last.shape[1],
            unit="updates",
            limit=0,
            limit_source=SOURCE,
            where=place(trace, 0, 0),
            remedy=Remedy(text="Set it to True for the last micro-batch."),
        )
    if table is None or not compared(table).any():
        return None
    whole = _copies(trace, script, table.shape[2])
    differs = (differing(table) & whole)[compared(table)]
    if differs.any(axis=1).mean() <= 0.5 or whole.all():
        return None
    which = np.flatnonzero(differs.any(axis=0))
    text = f"{len(which)} parameters lie outside every sharded module and are not reduced ({names(script, which)})"
    return fail(
        "sync.params-not-reduced",
        text,
        measured=len(which),
        unit="parameters",
        limit=0,
        limit_source=SOURCE,
        where=place(trace, 1, 0),
        remedy=Remedy(text="Call fully_shard on the root module too, last."),
    )


def _excused(trace: TrainingTrace, script: WatchedScript, table: Table, differs: Table) -> str | None:
    """Why differing gradients may be right: models averaged now and then, or ranks that train apart."""
    params = trace.array("param_digests")
    if params is not None:
        apart = np.asarray(differing(params).any(axis=1))[compared(params)]
        if apart.any() and not apart[int(np.flatnonzero(apart)[0]) :].all():
            return "parameters part and agree again, as with models averaged every few updates (local SGD)"
    if _averaged(trace, script, table, differs):
        return (
            "collectives as large as the model run every few updates, as with models averaged now and then (local SGD)"
        )
    if own := _owned(script, table, differs):
        return (
            f"{own} parameters start apart on the ranks and are never reduced, as experts that each rank has for"
            " itself; if they are meant as copies, broadcast and reduce them"
        )
    if trace.job.parallel == "data":
        return None
    sampled = any(x["sampler"].get("distributed") for r in script.ranks for x in r.loaders if "sampler" in x)
    partly = not differs.all(axis=1).all()
    if sampled or partly:
        return None
    return "ranks never share gradients and no wrapper or DistributedSampler says they should; name the intended N"


def _averaged(trace: TrainingTrace, script: WatchedScript, table: Table, differs: Table) -> bool:
    """True where gradients differ in the updates after which the whole model is reduced, and in all between them."""
    moved, bypassed, size = recorded(trace, "collective_bytes"), recorded(trace, "bypassed"), trace.job.parameters
    if moved is None or not size or (bypassed is not None and np.nanmedian(bypassed) > 0):
        return False
    large: Table = np.asarray(moved.max(axis=0) >= 2 * size)  # at least 16 bits for each parameter
    large[0] = False  # the first weights may be broadcast once
    reduced = min((float(r.collectives.get("all_reduce", (0, 0))[1]) for r in script.ranks), default=0.0)
    if large.sum() < 2 or large.mean() > 0.5 or reduced < 2 * size * large.sum():
        return False
    alike = np.ptp(moved.max(axis=0)[large]) < 0.1 * float(moved.max())
    apart: Table = np.asarray(differs.any(axis=1))
    return bool(alike and apart[large[compared(table) & aligned(trace)]].all())


def _owned(script: WatchedScript, table: Table, differs: Table) -> int:
    """Parameters that belong to one rank each: they start apart, and all that are reduced start equal."""
    starts = [r.start_digests for r in script.ranks if len(r.start_digests) == table.shape[2]]
    if len(starts) < len(script.ranks) or len(starts) < 2:
        return 0
    apart: Table = np.asarray(np.ptp(np.asarray(starts), axis=0) != 0)
    alone: Table = np.asarray(differs.any(axis=0))
    shared = (table > -1).any(axis=(0, 1)) & ~alone
    if not shared.any() or apart[shared].any():
        return 0
    equal = np.flatnonzero(alone & ~apart).tolist()  # biases may all start at 0
    return int(alone.sum()) if all(_of_own_module(script, c, alone, apart) for c in equal) else 0


def _of_own_module(script: WatchedScript, column: int, alone: Table, apart: Table) -> bool:
    """True where a parameter lies beside one that starts apart, or in a module of which nothing is reduced."""
    paths = [name.split(".")[:-1] for name in script.ranks[0].parameters]
    if len(paths) != len(alone):
        return False
    own = paths[column]
    for depth in range(1, len(own) + 1):
        inside = np.array([path[:depth] == own[:depth] for path in paths])
        if alone[inside].all() and apart[inside].any():
            return True
    return any(apart[i] for i, path in enumerate(paths) if path == own)


def _pattern(trace: TrainingTrace, script: WatchedScript, table: Table, differs: Table) -> tuple[str, str, str]:
    bad = differs.any(axis=1)
    with_grad = (table > -1).any(axis=(0, 1))
    always = np.asarray(differs[bad].all(axis=0))
    untouched = with_grad & ~differs.any(axis=0)
    bypassed, last = recorded(trace, "bypassed"), recorded(trace, "last_synced")
    if bypassed is not None and np.nanmedian(bypassed) > 0 and trace.job.parallel == "data":
        text = "the wrapped module is called directly, so DDP never reduces"
        return "sync.bypassed", text, "Call the DDP wrapper, not `model.module`."
    if untouched.any() and always.any():
        which = names(script, np.flatnonzero(always))
        text = f"{int(always.sum())} of {len(always)} parameters are not reduced ({which})"
        return "sync.params-not-reduced", text, "Wrap after all parameters exist and require gradients."
    if last is not None and np.nanmedian(last) == 0:
        text = "no_sync is active in the last micro-batch before the update"
        return "sync.missing-on-step", text, "Leave no_sync before the last micro-batch of each window."
    if trace.job.parallel == "data" and bad.mean() > 0.5:
        text = "the wrapper was called and set to reduce, yet no gradient was reduced"
        return "sync.hooks-lost", text, "Move or change parameters before the wrap: DDP's hooks sit on the old ones."
    text = "gradients are not synchronised before the update"
    return "sync.missing-on-step", text, "Reduce gradients once before each optimizer step."


def _too_often(trace: TrainingTrace) -> Finding | None:
    synced, micro, passes = (recorded(trace, n) for n in ("synced_passes", "micro_batches", "passes"))
    usual = accumulation(trace)
    if synced is None or micro is None or passes is None or usual is None or usual < 2:
        return None
    if float(np.nanmedian(passes)) != usual or float(np.nanmedian(synced)) < usual:
        return None
    return warn(
        "sync.every-micro-step",
        f"gradients are reduced {usual:g} times per update where once is enough: {usual - 1:g} of {usual:g}"
        " all-reduces are needless",
        measured=float(np.nanmedian(synced)),
        unit="reductions/update",
        limit=1,
        limit_source="data parallelism needs one reduction per update",
        where=place(trace, 0),
        remedy=Remedy(text="Run all but the last micro-batch of a window inside `model.no_sync()`."),
    )


@check(
    "script.replicas",
    asks="Do replicas start equal and stay equal?",
    plant=(
        planted("ranks begin with different weights", "replica.init-differs", "init-differs", wrap="manual"),
        planted("one rank changes its weights by itself", "replica.diverged", "drift"),
        planted("running statistics differ", "replica.buffers-differ", "buffers", norm=True),
    ),
)
def replicas(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """With equal gradients, replicas that differ either began apart or were changed outside the optimizer."""
    grads, params = trace.array("grad_digests"), trace.array("param_digests")
    apart = trace.job.parallel == "sharded" or not one_model(script)
    if world(trace) < 2 or apart or grads is None or params is None:
        yield skip("not measured: no two ranks replicate the same parameters")
        return
    copies = _copies(trace, script, params.shape[2])
    if not copies.any() or not compared(params).any():
        yield skip("not measured: every parameter is split between the ranks, or only one rank recorded")
        return
    judged = compared(params) & aligned(trace)
    differs = differing(params) & copies & judged[:, None]
    parted = np.asarray(differs.any(axis=1))
    if not parted[judged].any():
        yield _buffers(trace, script) or ok(
            f"replicated parameters agree bit for bit on {params.shape[0]} ranks in {int(judged.sum())} updates",
            measured=0, unit="updates that differ", limit=0, limit_source="replicas hold equal parameters",
        )  # fmt: skip
        return
    if trace.job.parallel != "tensor" and differing(grads).any():
        yield skip("not decided here: gradients differ too, which script.sync judges")
        return
    starts = {tuple(np.asarray(r.start_digests)[copies]) for r in script.ranks if len(r.start_digests) == len(copies)}
    first = int(np.flatnonzero(parted)[0])
    id = "replica.init-differs" if len(starts) > 1 else "replica.diverged"
    also = "" if trace.job.parallel == "tensor" else " although their gradients agree"
    how = "begin with different parameters" if len(starts) > 1 else f"part in update {trace.steps[first]}"
    yield fail(
        id,
        f"replicas {how}{also} ({names(script, np.flatnonzero(differs[first]))})",
        measured=int(parted.sum()),
        unit="updates that differ",
        limit=0,
        limit_source="replicas hold equal parameters",
        where=place(trace, 1, first),
        first_seen_step=trace.steps[first],
        remedy=Remedy(text="Broadcast rank 0's parameters before training; change parameters on every rank alike."),
    )


def _copies(trace: TrainingTrace, script: WatchedScript, count: int) -> Table:
    """[parameter]: True where every rank holds a whole copy; others are split between ranks."""
    if trace.job.parallel not in ("tensor", "sharded"):
        return np.ones(count, dtype=bool)
    known = [r.replicated for r in script.ranks if len(r.replicated) == count]
    whole: Table = np.asarray(np.array(known, dtype=bool).reshape(-1, count).all(axis=0))
    return whole if len(known) == world(trace) else np.zeros(count, dtype=bool)


def _buffers(trace: TrainingTrace, script: WatchedScript) -> Finding | None:
    table = recorded(trace, "norm_digest")
    shared = [w["broadcast_buffers"] for rank in script.ranks for w in rank.wrapped]
    by_hand = not shared and framework(script) is None
    alone = by_hand and (readers(trace, script) or 0) > 1  # nothing shares buffers
    if table is None or any(shared) or not (shared or alone):
        return None
    known = (~np.isnan(table)).sum(axis=0) > 1
    differs = known & (np.nanmax(np.where(np.isnan(table), -1, table), axis=0) != np.nanmin(table, axis=0))
    if not differs[1:].any():
        return None
    return fail(
        "replica.buffers-differ",
        f"running statistics or other buffers that training changes differ between ranks in {int(differs.sum())}"
        f" updates, and {'nothing shares buffers' if alone else 'the wrapper is told not to share buffers'}",
        measured=int(differs.sum()),
        unit="updates that differ",
        limit=0,
        limit_source="one model is saved and evaluated, so its buffers must not depend on the rank",
        where=place(trace, 1, int(np.flatnonzero(differs)[0])),
        remedy=Remedy(text="Use SyncBatchNorm or broadcast_buffers=True, or average buffers with the gradients."),
    )
