"""Memory of a rank over its steps: does it keep growing?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ddaudit.api import Finding, Plant, Remedy, TrainingTrace, check, ok, skip, warn

from ._arrays import place, recorded

LEAST_STEPS = 8


@check(
    "memory.growth",
    question="bottleneck",
    asks="Does a rank's resident memory stay as it is from step to step?",
    plant=Plant(
        "something of every update is kept",
        "perf.memory-growth",
        params={"steps": 16},
        planted={"plant": "memory-growth", "plant_ms": 4.0},
        types="single",
    ),
)
def growth(trace: TrainingTrace) -> Iterator[Finding]:
    """Growth per update from the second half of the run, where pools are filled: the median of steps' gains must be
    positive too, so that one jump is no growth."""
    resident = recorded(trace, "rss_bytes")
    if resident is None or resident.shape[1] < LEAST_STEPS:
        yield skip(f"not measured: needs the resident memory of {LEAST_STEPS} updates")
        return
    late = resident[:, resident.shape[1] // 2 :]
    quarters = np.array_split(late, 4, axis=1)
    rates = (late[:, -1] - late[:, 0]) / (late.shape[1] - 1)
    row = int(np.nanargmax(rates))
    steady = all(b[row].max() > a[row].max() for a, b in pairwise(quarters))
    grown = float(rates[row]) / 1e6
    kept = {"measured": grown, "unit": "MB/step", "limit": GROWTH_MB, "limit_source": SOURCE}
    text = f"resident memory grows by {grown:.2f} MB per update on rank {trace.ranks[row].rank}"
    if grown > GROWTH_MB and steady:
        remedy = Remedy(text="Look for losses, outputs or metrics that are kept with their graph: detach, or .item().")
        yield warn("perf.memory-growth", text, where=place(trace, row), remedy=remedy, **kept)
    else:
        yield ok(text, where=place(trace, row), **kept)


GROWTH_MB = 0.25
SOURCE = "default: a gigabyte in 4000 updates ends a run of a day"
