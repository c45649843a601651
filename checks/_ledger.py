"""The books of a training step: every line of each rank's step, and what it waited for.

All tables are [rank, step] in seconds. The first step, which warms up, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import ref

import numpy as np

from ddaudit.api import TrainingTrace, window_code

from ._arrays import Table, recorded

__all__ = ["PHASES", "Ledger", "Meeting", "columns", "ledger", "meetings"]

PHASES = ("forward_s", "backward_s", "sync_s", "optimizer_s", "loss_s", "exchange_s")
"""Spans that hold compute and communication; input and host have spans of their own."""

LEAST_STEPS = 3


@dataclass(frozen=True)
class Meeting:
    """One collective: ``rows`` of the ranks that met, when each ``arrived`` and ``left`` [member], and the column of
    the step. ``one_clock`` is False where the ranks sit on several hosts, whose clocks cannot be compared."""

    column: int
    rows: Sequence[int]
    arrived: Table
    left: Table
    one_clock: bool

    @property
    def waits(self) -> Table:
        """Seconds that each member waited for the last one, at most as long as it was blocked [member].

        On one clock: from its own arrival to the last one. Over several hosts: what its call took longer than the
        shortest call of all, since the last rank to come waits for nobody.
        """
        blocked = self.left - self.arrived
        gap = self.arrived.max() - self.arrived if self.one_clock else blocked - blocked.min()
        waits: Table = np.clip(gap, 0.0, blocked)
        return waits

    @property
    def last(self) -> tuple[int, float]:
        """Row of the rank that came last, and how long after the last but one: what its lateness cost all others."""
        waits = self.waits
        order = np.argsort(waits)
        return self.rows[int(order[0])], float(waits[order[1]] - waits[order[0]])


def meetings(trace: TrainingTrace) -> Iterator[Meeting]:
    """Collectives of two ranks or more, matched by their order within group and step. Where the members count
    differently (one of them skipped a collective, or its record is lost), the step's meetings of that group are left
    out: they cannot be matched."""
    stamps = trace.stamps()
    if stamps is None:
        return
    group, arrived, left = stamps
    row_of = {place.rank: row for row, place in enumerate(trace.ranks)}
    for index, ranks in enumerate(trace.groups):
        rows = [row_of[rank] for rank in ranks if rank in row_of]
        if len(rows) < 2 or len(rows) < len(ranks):
            continue
        one_clock = len({trace.ranks[row].host for row in rows}) == 1
        for column in range(group.shape[1]):
            held = group[rows, column] == index  # [member, slot]: one look for all, since members come by the thousand
            counts = held.sum(axis=1)
            if counts.min() != counts.max():
                continue
            for slots in np.nonzero(held)[1].reshape(len(rows), -1).T if counts[0] else ():
                at = (rows, column, slots)
                yield Meeting(column, rows, arrived[at], left[at], one_clock)


@dataclass(frozen=True)
class Ledger:
    """``lines`` add up to ``step``, "unexplained" among them. Where ``split`` is False, "communication" holds waiting
    for peers too, since no arrivals were stamped. ``charged`` is the lateness that each rank cost the others;
    ``hidden``, communication that ran under compute and is no line of its own, or None where not measured."""

    step: Table
    lines: Mapping[str, Table]
    charged: Table
    split: bool
    hidden: Table | None

    def typical(self, table: Table, row: int) -> float:
        """Mean over the middle half of a rank's steps, by their length: unlike medians, the lines of it add up."""
        known = np.flatnonzero(np.isfinite(self.step[row]))
        middle = known[np.argsort(self.step[row][known], kind="stable")][len(known) // 4 : len(known) - len(known) // 4]
        return float(table[row][middle].mean()) if len(middle) else float("nan")

    def line_s(self, name: str, row: int) -> float:
        """A rank's line in a typical step."""
        return self.typical(self.lines[name], row)

    def step_s(self, row: int) -> float:
        """A rank's typical step."""
        return self.typical(self.step, row)

    def active_s(self, row: int) -> float:
        """The typical step less its waiting for a core: what a machine that is not starved would take."""
        return self.step_s(row) - self.line_s("waiting for a core", row)

    def hidden_s(self, row: int) -> float | None:
        """Communication that a rank hid under compute in a typical step; None where not measured."""
        return None if self.hidden is None else self.typical(self.hidden, row)

    @property
    def critical(self) -> int:
        """Row of the rank that the others wait for: the least waiting for peers, and among equals the longest step."""
        waits = [self.line_s("peer wait", row) for row in range(len(self.step))]
        return min(range(len(waits)), key=lambda row: (waits[row], -self.step_s(row)))

    @property
    def lost(self) -> Table:
        """Seconds a step that each rank's lateness costs the others beyond what theirs costs it [rank], median over
        steps: at every meeting somebody comes last by chance, and that is the price of meeting, not one rank's."""
        lost: Table = np.clip(self.net_s, 0.0, None)
        return lost

    @property
    def net_s(self) -> Table:
        """As :attr:`lost`, below zero for a rank that comes last less often than the others do [rank]."""
        net: Table = np.nanmedian(self.charged - _median_of_others(self.charged), axis=1)
        return net

    @property
    def unexplained_share(self) -> list[float]:
        """Median over steps of what no line explains, as a share of the step, by rank; time counted twice counts."""
        shares = np.abs(self.lines["unexplained"]) / self.step
        return [float(share) for share in np.nanmedian(shares, axis=1)]


def _median_of_others(table: Table) -> Table:
    """For each rank and step, the median of the other ranks [rank, step]; zeros where there is no other. One sort
    serves all ranks: without a rank, what lies behind it moves up by one."""
    count = len(table)
    if count < 2:
        return np.zeros_like(table)
    order = np.argsort(table, axis=0, kind="stable")
    place = np.argsort(order, axis=0, kind="stable")
    ordered = np.take_along_axis(table, order, axis=0)

    def at(index: int) -> Table:
        found: Table = np.where(place > index, ordered[index], ordered[index + 1])
        return found

    middle = (count - 1) // 2
    return at(middle) if count % 2 == 0 else (at(middle - 1) + at(middle)) / 2


def columns(trace: TrainingTrace, window: str = "normal") -> list[int]:
    """Columns of the steps that lay in a window of that name; the first step of all, which warms up, is left out.
    Every step of a run without windows is normal."""
    codes = recorded(trace, "window")
    if codes is None:
        return list(range(1, len(trace.steps))) if window == "normal" else []
    return [int(c) for c in np.flatnonzero(codes[0] == window_code(window)) if c]


def ledger(trace: TrainingTrace, window: str = "normal") -> Ledger | None:
    """The books of a trace's steps in one kind of window; None when its timers are missing or there are fewer than
    three steps."""
    books, at = _whole(trace), columns(trace, window)
    if books is None or len(at) < LEAST_STEPS - 1:
        return None
    hidden = None if books.hidden is None else books.hidden[:, at]
    lines = {name: line[:, at] for name, line in books.lines.items()}
    return Ledger(books.step[:, at], lines, books.charged[:, at], books.split, hidden)


_KNOWN: dict[int, tuple[ref[TrainingTrace], Ledger | None]] = {}
"""Books of the traces that are being judged, by identity: many checks and pictures ask for the same."""


def _whole(trace: TrainingTrace) -> Ledger | None:
    """The books of all steps, kept as long as the trace is."""
    key = id(trace)
    if key not in _KNOWN or _KNOWN[key][0]() is not trace:
        _KNOWN[key] = (ref(trace, lambda _: _KNOWN.pop(key, None)), _books(trace))
    return _KNOWN[key][1]


def _books(trace: TrainingTrace) -> Ledger | None:
    step, read = recorded(trace, "step_s"), recorded(trace, "input_s")
    phases = [t for name in PHASES if (t := recorded(trace, name)) is not None]
    if step is None or read is None or not phases or step.shape[1] < LEAST_STEPS:
        return None
    busy = np.nansum(np.stack(phases), axis=0)
    wait = np.minimum(_or_zero(trace, "comm_wait_s"), busy)
    stage = np.minimum(_or_zero(trace, "stage_wait_s"), wait)
    peers, charged, split = _peers(trace, step)
    peers = np.minimum(peers, wait - stage)
    lines = {
        "compute": busy - wait,
        "communication": wait - stage - peers,
        "peer wait": peers,
        "stage wait": stage,
        "input": np.nan_to_num(read),
        "host": _or_zero(trace, "host_s"),
    }
    lines["unexplained"] = step - np.sum(list(lines.values()), axis=0)
    lines["waiting for a core"] = _take_core_waits(trace, lines)
    return Ledger(step, lines, charged, split, recorded(trace, "comm_hidden_s"))


def _or_zero(trace: TrainingTrace, name: str) -> Table:
    table, step = recorded(trace, name), trace.series("step_s")
    assert step is not None
    return np.zeros_like(step) if table is None else np.nan_to_num(table)


def _peers(trace: TrainingTrace, step: Table) -> tuple[Table, Table, bool]:
    """Waiting for peers by rank, lateness charged to ranks, and whether anything was stamped."""
    waited, charged, split = np.zeros_like(step), np.zeros_like(step), False
    for meeting in meetings(trace):
        waited[list(meeting.rows), meeting.column] += meeting.waits
        row, cost = meeting.last
        charged[row, meeting.column] += cost
        split = True
    return waited, charged, split


def _take_core_waits(trace: TrainingTrace, lines: dict[str, Table]) -> Table:
    """Moves the time that a rank was ready but had no core out of the lines it fell into, and returns it."""
    whole, input_, host, phases, comm = (
        _or_zero(trace, f"runqueue_{part}s") for part in ("", "input_", "host_", "phases_", "comm_")
    )
    gaps = whole - input_ - host - phases
    covered = np.clip(gaps, 0.0, np.maximum(lines["unexplained"], 0.0))
    parts = {
        "input": input_,
        "host": host,
        "communication": comm,
        "unexplained": covered,
        "compute": phases - comm + (gaps - covered),  # the clocks of span and queue are not read at the same instant
    }
    taken = np.zeros_like(whole)
    for name, part in parts.items():
        part = np.clip(part, 0.0, np.maximum(lines[name], 0.0))
        lines[name] = lines[name] - part
        taken += part
    return taken
