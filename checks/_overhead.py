"""What measuring cost the steps that were measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddaudit.api import TrainingTrace

from ._arrays import recorded
from ._windows import View

INTERVAL_95 = 1.96


@dataclass(frozen=True)
class Overhead:
    """``cpu_share``: calls of the timers times the cost of one, of the ranks' CPU time. ``shorter``: by which share of
    a normal step those of windows without timers are shorter (low, middle, high of 95 %). None: not measured."""

    cpu_share: float | None
    shorter: tuple[float, float, float] | None


def overhead(trace: TrainingTrace) -> Overhead:
    """Of a whole run, from what its recorder counted and from its windows without timers."""
    timers, cpu = recorded(trace, "timer_s"), recorded(trace, "cpu_s")
    share = None
    if timers is not None and cpu is not None and np.nansum(cpu) > 0:
        share = float(np.nansum(timers) / np.nansum(cpu))
    view = View.of(trace)
    off = None if view is None else view.saving("no-timers", length="whole")
    if view is None or off is None:
        return Overhead(share, None)
    whole = float(np.median(view.blocks("normal", length="whole")))
    low, middle, high = ((off.seconds + side * INTERVAL_95 * off.error) / whole for side in (-1, 0, 1))
    return Overhead(share, (low, middle, high))
