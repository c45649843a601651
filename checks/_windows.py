"""What taking a suspect out of the step saved: windows of one run compared with the normal ones between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddaudit.api import WINDOWS, TrainingTrace

from ._arrays import Table, recorded
from ._ledger import Ledger, columns, ledger

__all__ = ["OWN", "Saving", "View"]

LEAST_BLOCKS = 2
FEW = 1.5
"""A standard deviation of so few windows is too small as often as too large."""
OWN = ("compute", "input", "host")
"""Lines of the books that are a rank's own doing."""


@dataclass(frozen=True)
class Saving:
    """Seconds by which steps of a window are shorter than normal ones, and the standard error of that."""

    seconds: float
    error: float

    def agrees(self, price_s: float) -> bool:
        """Whether it is out of the noise and at least half of what the lines say."""
        return self.seconds >= max(HALF * price_s, SIGMAS * self.error)

    @property
    def clear(self) -> bool:
        """Whether it is out of the noise."""
        return self.seconds > SIGMAS * self.error


HALF = 0.5
"""An A/B that saves less than half of what a line holds does not confirm the line: the rest was hidden under it."""
SIGMAS = 2.5
"""A saving that two and a half standard errors do not explain away: one in a hundred would pass by chance."""


class View:
    """A trace with windows, as suspects are judged on it."""

    def __init__(self, trace: TrainingTrace, books: Ledger) -> None:
        self.trace, self.books = trace, books
        self.rows = len(trace.ranks)
        normal = np.sort(self._lengths["active"][columns(trace, "normal")])
        usual = normal[: max(1, len(normal) * 19 // 20)]
        self.step_s = float(max(np.median(normal), usual.mean()))

    @classmethod
    def of(cls, trace: TrainingTrace) -> View | None:
        """None where the trace has no books, or no windows."""
        books = ledger(trace)
        return None if books is None or recorded(trace, "window") is None else cls(trace, books)

    @cached_property
    def _lengths(self) -> dict[str, Table]:
        """Length of each step [step], by what of it counts: ``whole``, all of the longest rank; ``active``, the longest
        of the ranks' times without waiting for peers or for a core, which a machine with cores to spare would take;
        ``own``, the longest of what ranks do themselves, without collectives; ``wire``, the longest of their times in
        collectives after the last had come. What neighbours of the job do falls out of the last three, and with it most
        of the noise."""
        step = recorded(self.trace, "step_s")
        assert step is not None
        active, own, wire = np.full((3, len(self.trace.steps)), np.nan)
        for name in WINDOWS:
            at, books = columns(self.trace, name), ledger(self.trace, name)
            if books is not None:
                waits = books.lines["peer wait"] + books.lines["waiting for a core"]
                active[at] = (books.step - waits).max(axis=0)
                wire[at] = books.lines["communication"].max(axis=0)
                own[at] = np.sum([books.lines[line] for line in OWN], axis=0).max(axis=0)
        return {"whole": np.nanmax(step, axis=0), "active": active, "own": own, "wire": wire}

    def window(self, name: str) -> Ledger | None:
        """The books of a window, None where the run had none of that name."""
        return ledger(self.trace, name)

    def has(self, name: str) -> bool:
        return len(columns(self.trace, name)) >= LEAST_BLOCKS

    def blocks(self, name: str, length: str = "active") -> Table:
        """Mean step of each window of that name [window], in order."""
        at, parts = columns(self.trace, name), list[list[int]]()
        for column in at:
            if parts and column == parts[-1][-1] + 1:
                parts[-1].append(column)
            else:
                parts.append([column])
        table = self._lengths[length]
        return np.array([float(table[part].mean()) for part in parts])

    def saving(self, name: str, *, rare: bool = False, length: str = "active") -> Saving | None:
        """What the steps of a window save, None where there was none.

        ``length`` is what of a step counts. Medians over the windows; means where the suspect is ``rare``, in some
        steps only. The error is that of a median or mean of so few windows, with the spread that normal ones have.
        """
        normal, other = self.blocks("normal", length=length)[1:], self.blocks(name, length=length)
        if len(other) < LEAST_BLOCKS or len(normal) < LEAST_BLOCKS:
            return None
        spread = 1.4826 * float(np.median(np.abs(normal - np.median(normal))))
        if not rare:
            error = 1.25 * spread * (1.0 / len(other) + 1.0 / len(normal)) ** 0.5
            return Saving(float(np.median(normal) - np.median(other)), error)
        # What strikes now and then spreads normal windows; windows without it have a spread of their own.
        error = float(np.hypot(np.std(normal) / len(normal) ** 0.5, FEW * np.std(other, ddof=1) / len(other) ** 0.5))
        return Saving(float(np.mean(normal) - np.mean(other)), error)

    def series(self, name: str, window: str = "normal") -> Table | None:
        """A recorded series over the steps of a window [rank, step]."""
        table = recorded(self.trace, name)
        return None if table is None else np.nan_to_num(table[:, columns(self.trace, window)])

    def typical(self, name: str, row: int) -> float:
        """Median of a series over normal steps of a rank; 0 where it was not recorded."""
        table = self.series(name)
        return 0.0 if table is None else float(np.median(table[row]))

    def rate(self, name: str, row: int) -> float:
        """What a counter that is read once a step gains per second of wall time, over the whole run after warm-up."""
        table, between = recorded(self.trace, name), recorded(self.trace, "between_s")
        if table is None or between is None or np.nansum(between[row, 2:]) <= 0:
            return 0.0
        return float(np.nansum(table[row, 2:]) / np.nansum(between[row, 2:]))

    def shared(self, name: str) -> float:
        """Time of a line that all ranks have in a step: the least of them (mean over steps but the longest tenth)."""
        least = np.sort(self.books.lines[name].min(axis=0))
        return float(least[: max(1, len(least) * 9 // 10)].mean())

    def others_cores(self, row: int) -> float:
        """Cores' worth of work that others than our ranks and their workers did on the cores of this rank."""
        masks = recorded(self.trace, "core_mask")
        if masks is None:
            return 0.0
        mine = masks[row, -1]
        hosts = [place.host for place in self.trace.ranks]
        same = [r for r in range(self.rows) if masks[r, -1] == mine and hosts[r] == hosts[row]]
        busy = max(self.rate("cores_busy_s", r) for r in same)
        return max(0.0, busy - sum(self.rate("own_cpu_s", r) for r in same))
