"""Are copies that must be equal, equal? And does an update change anything?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Plant, Remedy, TrainingTrace, check, fail, ok, skip

from ._arrays import place, recorded

TWO = {"parallel": "data", "steps": 6}

#: Mesh axes along which ranks hold different parts, so that only ranks equal in all of them are copies.
SPLITTING = ("pp", "shard", "ep")


def _plant(name: str, expect: str, fault: str) -> Plant:
    return Plant(name, expect, ranks=2, params=TWO, planted={"plant": fault}, types="data")


@check(
    "replicas.equal",
    asks="Are the parameters that ranks replicate equal bit for bit after each update?",
    plant=(
        _plant("a parameter drifts on one rank", "replica.diverged", "replica-drift"),
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
