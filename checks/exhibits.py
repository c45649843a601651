"""Tables for pictures: the ledger of a training step, times by rank and step, loss, memory, a checkpoint's coverage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ddaudit.api import CheckpointFacts, TrainingTrace, exhibit

from ._arrays import Table, curve, recorded
from ._ledger import ledger
from ._overhead import overhead

MAX_ROWS = 64
"""Rows of a table by rank: enough to tell ranks apart; beyond, hosts take their place."""
MAX_COLUMNS = 60
MAX_POINTS = 200
MAX_SAMPLE = 40


@exhibit("ledger")
def step_ledger(trace: TrainingTrace) -> dict[str, Any] | None:
    """Lines of the typical step of the rank that the others wait for, in seconds."""
    books = ledger(trace)
    if books is None:
        return None
    row = books.critical
    return {
        "rank": trace.ranks[row].rank,
        "step_s": _short(books.step_s(row)),
        "lines": {name: _short(books.line_s(name, row)) for name in books.lines},
        "hidden_s": None if (hidden := books.hidden_s(row)) is None else _short(hidden),
    }


@exhibit("step-times")
def step_times(trace: TrainingTrace) -> dict[str, Any] | None:
    """Seconds of each step by rank, or by host (its slowest rank) where there are more than 64 ranks. Long runs are
    binned by the largest step of each bin: a heat map must not average a stall away."""
    table = recorded(trace, "step_s")
    if table is None or table.shape[1] < 2:
        return None
    table, steps = table[:, 1:], list(trace.steps[1:])  # the first step pays for allocation
    labels, table, by = _rows(trace, table)
    edges = np.linspace(0, table.shape[1], min(MAX_COLUMNS, table.shape[1]) + 1).astype(int)[:-1]
    binned = np.fmax.reduceat(table, edges, axis=1)
    return {
        "by": by,
        "rows": labels,
        "left_out": len(trace.ranks) - len(labels) if by == "rank" else len(_hosts(trace)) - len(labels),
        "steps": [int(steps[e]) for e in edges],
        "seconds": [[_short(v) for v in row] for row in binned],
    }


def _hosts(trace: TrainingTrace) -> list[str]:
    return list(dict.fromkeys(r.host for r in trace.ranks))


def _rows(trace: TrainingTrace, table: Table) -> tuple[list[str], Table, str]:
    if len(trace.ranks) <= MAX_ROWS:
        return [f"{r.rank} {r.host}" for r in trace.ranks], table, "rank"
    hosts = _hosts(trace)
    member = np.array([hosts.index(r.host) for r in trace.ranks])
    worst = np.stack([np.fmax.reduce(table[member == i], axis=0) for i in range(len(hosts))])
    slow = np.sort(np.argsort(-np.nan_to_num(np.nanmedian(worst, axis=1)), kind="stable")[:MAX_ROWS])
    return [hosts[i] for i in slow], worst[slow], "host"


@exhibit("loss")
def loss_curve(trace: TrainingTrace) -> dict[str, Any] | None:
    """Mean loss by step, thinned to 200 points; its first and last step are kept."""
    table = recorded(trace, "loss_nats")
    if table is None or table.shape[1] < 2:
        return None
    values = curve(table)
    kept = np.unique(np.linspace(0, len(values) - 1, min(MAX_POINTS, len(values))).round().astype(int))
    return {"steps": [int(trace.steps[i]) for i in kept], "nats": [_short(values[i]) for i in kept]}


@exhibit("step-spread")
def step_spread(trace: TrainingTrace) -> dict[str, Any] | None:
    """Evenly spaced quantiles of what a step took its slowest rank, and of its waiting for input."""
    found = {name: _sample(trace, name) for name in ("step_s", "input_s")}
    known = {name: sample for name, sample in found.items() if sample}
    return known or None


def _sample(trace: TrainingTrace, name: str) -> Sequence[float]:
    table = recorded(trace, name)
    if table is None or table.shape[1] < 4:
        return []
    slowest = np.fmax.reduce(table[:, 1:], axis=0)
    slowest = np.sort(slowest[np.isfinite(slowest)])
    if not slowest.size:
        return []
    return [_short(v) for v in np.quantile(slowest, np.linspace(0, 1, min(MAX_SAMPLE, len(slowest))))]


@exhibit("memory")
def peak_memory(trace: TrainingTrace) -> dict[str, Any] | None:
    """Largest bytes of each rank in the run: of its device where that was recorded, else resident in its process."""
    for name, kind in (("device_bytes", "device"), ("rss_bytes", "process")):
        if (table := recorded(trace, name)) is not None:
            peaks = np.fmax.reduce(table, axis=1)
            order = np.argsort(-np.nan_to_num(peaks), kind="stable")[:MAX_ROWS]
            ranks = [{"rank": trace.ranks[i].rank, "host": trace.ranks[i].host, "bytes": float(peaks[i])}
                     for i in sorted(order)]  # fmt: skip
            return {"kind": kind, "peak_bytes": float(np.nanmax(peaks)), "ranks": ranks}
    return None


@exhibit("measuring-cost")
def measuring_cost(trace: TrainingTrace) -> dict[str, Any] | None:
    """Share of the ranks' CPU time that the timers took, and of a step that goes with them (low, middle, high)."""
    cost = overhead(trace)
    if cost.cpu_share is None:
        return None
    shorter = None if cost.shorter is None else [_short(share) for share in cost.shorter]
    return {"cpu_share": _short(cost.cpu_share), "shorter": shorter}


@exhibit("coverage")
def coverage(facts: CheckpointFacts) -> dict[str, Any] | None:
    """What is there of each part of a checkpoint, and of the 30 worst tensors and files."""
    rows = facts.coverage()
    return {"layout": facts.layout, "rows": rows} if rows else None


def _short(value: float) -> float:
    """Four significant digits: more than a picture shows, and half the bytes."""
    return float(f"{float(value):.4g}")
