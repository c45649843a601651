"""Are copies that must be equal, equal? And does an update change anything?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Plant, Remedy, TrainingTrace, check, fail, ok, skip, warn

from ._arrays import place, recorded
from ._matrix import matrix

TWO = {"parallel": "data", "steps": 6}

#: Mesh axes along which ranks hold different parts, so that only ranks equal in all of them are copies.
SPLITTING = ("pp", "shard")


def _plant(name: str, expect: str, fault: str) -> Plant:
    return Plant(name, expect, ranks=2, params=TWO, planted={"plant": fault}, types="data")


@check(
    "replicas.equal",
    asks="Are the parameters that ranks replicate equal bit for bit after each update?",
    plant=(
        *matrix("replicas"),
        _plant("ranks start from different weights", "replica.init-differs", "init-differs"),
    ),
)
def equal(trace: TrainingTrace) -> Iterator[Finding]:
    """Replicas apply the same update to the same weights, so their bits agree; a drift of one bit is a lost sync."""
    table = recorded(trace, "param_digest")
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, rank in enumerate(trace.ranks):
        if table is not None and not np.isnan(table[row]).all():
            groups.setdefault(tuple(rank.coords.get(axis, 0) for axis in SPLITTING), []).append(row)
    copies = [rows for rows in groups.values() if len(rows) > 1]
    if table is None or not copies:
        yield skip("not measured: no two ranks hold a copy of the same parameters")
        return
    source = "replicas apply equal updates to equal weights"
    for rows in copies:
        differs = np.flatnonzero((table[rows] != table[rows[0]]).any(axis=0))
        if len(differs):
            yield _diverged(trace, rows, int(differs[0]), len(differs), source)
            return
    ranks = sum(map(len, copies))
    text = f"replicated parameters agree bit for bit on {ranks} ranks after each of {table.shape[1]} updates"
    yield ok(text, measured=0, unit="updates that differ", limit=0, limit_source=source)


def _diverged(trace: TrainingTrace, rows: list[int], column: int, count: int, source: str) -> Finding:
    table = recorded(trace, "param_digest")
    assert table is not None
    odd = next(r for r in rows if table[r, column] != table[rows[0], column])
    from_start = column == 0 and not trace.job.resumed_from_step
    return fail(
        "replica.init-differs" if from_start else "replica.diverged",
        f"replicated parameters differ between ranks {trace.ranks[rows[0]].rank} and {trace.ranks[odd].rank}"
        f" from update {trace.steps[column]} on ({count} of {table.shape[1]} updates)",
        measured=count,
        unit="updates that differ",
        limit=0,
        limit_source=source,
        where=place(trace, odd, column),
        first_seen_step=trace.steps[column],
        remedy=Remedy(
            text="Compare gradients of that update: a parameter outside the wrapper or a skipped sync drifts."
        ),
    )


@check(
    "replicas.updates",
    asks="Does each update change the parameters?",
    plant=Plant(
        "the optimizer holds other parameters",
        ("optim.no-op-step", "optim.stale-params"),
        params={"steps": 6},
        planted={"plant": "optimizer-stale"},
        types="single",
    ),
)
def updates(trace: TrainingTrace) -> Iterator[Finding]:
    """An update that changes nothing, at a learning rate above zero, means that the optimizer trains something else."""
    change, lr = recorded(trace, "update_norm"), recorded(trace, "lr")
    if change is None or lr is None:
        yield skip("not measured: needs update norms and learning rates")
        return
    idle = np.argwhere((change == 0) & (lr > 0))
    kept = {
        "measured": len(idle),
        "unit": "updates without effect",
        "limit": 0,
        "limit_source": "learning rate above 0",
    }
    if not len(idle):
        yield ok(f"each update changes the parameters; smallest change {np.nanmin(change):.3g}", **kept)
        return
    row, column = (int(x) for x in idle[0])
    every = len(idle) == int((lr > 0).sum())
    id = "optim.stale-params" if every else "optim.no-op-step"
    text = f"{len(idle)} updates at a learning rate above 0 changed no parameter"
    yield fail(id, text, where=place(trace, row, column), first_seen_step=trace.steps[column], **kept)


@check(
    "replicas.grad-norm",
    asks="Do all ranks compute the same global gradient norm, by which they clip?",
    plant=Plant(
        "gradients are clipped before they are synchronised",
        "grad.clip-norm-differs",
        ranks=2,
        params={**TWO, "clip_norm": 0.05},
        planted={"plant": "clip-before-sync"},
        types="data",
    ),
)
def grad_norm(trace: TrainingTrace) -> Iterator[Finding]:
    """Ranks that clip by norms of their own scale their gradients differently; the mean is then no gradient at all."""
    table = recorded(trace, "grad_norm")
    if table is None or table.shape[0] < 2:
        yield skip("not measured: needs gradient norms of two or more ranks")
        return
    with np.errstate(all="ignore"):
        spread = (np.nanmax(table, axis=0) - np.nanmin(table, axis=0)) / np.nanmax(np.abs(table), axis=0)
    worst = int(np.nanargmax(spread)) if np.isfinite(spread).any() else 0
    source = "float32 rounding of a norm over another order of summation is below 1e-6"
    kept = {"measured": float(spread[worst]), "unit": "relative", "limit": 1e-5, "limit_source": source}
    if not spread[worst] > 1e-5:
        yield ok(f"all {table.shape[0]} ranks compute the same gradient norm in each update", **kept)
        return
    first = int(np.flatnonzero(spread > 1e-5)[0])
    text = f"gradient norms of the ranks differ by up to {spread[worst]:.2g}, from update {trace.steps[first]} on"
    remedy = Remedy(text="Clip after the last micro-batch was synchronised, by the norm over all shards.")
    yield fail(
        "grad.clip-norm-differs",
        text,
        where=place(trace, int(np.nanargmax(table[:, worst])), worst),
        first_seen_step=trace.steps[first],
        remedy=remedy,
        **kept,
    )


@check(
    "replicas.random",
    asks="Do replicas draw different random numbers?",
    plant=Plant(
        "all replicas are seeded alike",
        "rng.identical-across-ranks",
        ranks=2,
        params=TWO,
        planted={"plant": "rng-identical"},
        types="data",
    ),
)
def random(trace: TrainingTrace) -> Iterator[Finding]:
    """Equal random states make dropout and augmentation repeat on every replica, which shrinks the effective batch's
    variety. Judged on the reference trainer, which seeds replicas apart; a user's script may not draw at all."""
    table = recorded(trace, "rng_digest")
    heads = {rank.coords["dp"]: row for row, rank in enumerate(trace.ranks) if "dp" in rank.coords}
    if table is None or len(heads) < 2 or trace.job.source != "reference":
        yield skip("not measured: needs the random states of two or more replicas of the reference trainer")
        return
    rows = list(heads.values())
    same = int((table[rows] == table[rows[0]]).all(axis=0).sum())
    kept = {
        "measured": same,
        "unit": "updates with equal random states",
        "limit": 0,
        "limit_source": "seeds differ by rank",
    }
    if same == 0:
        yield ok(f"{len(rows)} replicas draw from different random states", **kept)
        return
    text = f"all {len(rows)} replicas have the same random state in {same} of {table.shape[1]} updates"
    yield warn("rng.identical-across-ranks", text, where=place(trace, rows[1]), **kept)
