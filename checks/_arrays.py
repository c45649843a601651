"""Small numeric helpers that several check files share. Arrays are [rank, step] unless said otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from ddaudit.api import TrainingTrace, Where

Table = np.ndarray[Any, np.dtype[Any]]


def recorded(trace: TrainingTrace, name: str) -> Table | None:
    """A series, or None when no rank recorded a single number of it."""
    table = trace.series(name)
    return None if table is None or table.size == 0 or np.isnan(table).all() else table


def curve(table: Table) -> Table:
    """One value a step [step]: the mean over the ranks that recorded it, NaN where any recorded NaN or infinity."""
    with np.errstate(all="ignore"):
        count = (~np.isnan(table)).sum(axis=0)
        total = np.nansum(table, axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def place(trace: TrainingTrace, row: int, column: int | None = None, **more: Any) -> Where:
    """Host, rank and device of a row, and the optimizer step of a column."""
    rank = trace.ranks[row]
    step = None if column is None else trace.steps[column]
    return Where(host=rank.host, rank=rank.rank, device=rank.device, step=step, **more)


def carriers(trace: TrainingTrace) -> str:
    """Which interface of each host sent most while the run trained, as part of a sentence; empty on a single host,
    whose ranks use no wire, and where nothing was counted."""
    if len(trace.wires) < 2:
        return ""
    most = {h: max(wires.items(), key=lambda item: item[1][1]) for h, wires in trace.wires.items() if wires}
    told = [f"{host} {name} sent {moved[1] / 1e6:.1f} MB" for host, (name, moved) in sorted(most.items())]
    more = f" and {len(told) - MOST_HOSTS} other hosts" if len(told) > MOST_HOSTS else ""
    return f"; bytes went over {', '.join(told[:MOST_HOSTS])}{more}" if told else ""


MOST_HOSTS = 4


def readers(trace: TrainingTrace) -> list[int]:
    """Rows of the ranks that read samples (under pipeline parallelism not every stage does)."""
    ids = trace.sample_ids
    return [] if ids is None else [row for row in range(ids.shape[0]) if (ids[row] >= 0).any()]


def shards(trace: TrainingTrace) -> list[list[int]]:
    """Rows grouped by what they read: ranks whose sample ids agree in every step form one data-parallel replica."""
    ids = trace.sample_ids
    groups: dict[bytes, list[int]] = {}
    for row in readers(trace):
        assert ids is not None
        # Order inside a step is a matter of micro-batches; membership decides who saw what.
        groups.setdefault(np.sort(ids[row], axis=-1).tobytes(), []).append(row)
    return list(groups.values())


def tail(values: Table, share: float = 0.25, least: int = 3) -> Table:
    """The last part of a curve, at least ``least`` points of it."""
    return values[-max(least, round(len(values) * share)) :]
