"""Question 7: where does the step time go? A split by timers; it names a term, and accuses nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddaudit.api import Finding, Limit, Limits, Plant, Remedy, TrainingTrace, check, ok, skip, warn

from ._arrays import place, recorded


class BottleneckLimits(Limits):
    """Limits on shares of the median step."""

    family = "bottleneck"

    input_share: Limit = Limit(
        warn_above=0.4,
        source="default: a loader that takes two fifths of the step limits it more than any kernel could",
    )


@dataclass(frozen=True)
class Split:
    """Medians over steps (the first, which warms up, left out) of one rank; seconds.

    ``compute`` is forward, backward and optimizer time without the time blocked in collectives; ``communication`` is
    that blocked time, wire and waiting for the last peer together; ``other`` is what no timer covered.
    """

    step: float
    compute: float
    communication: float
    input: float

    @property
    def other(self) -> float:
        return self.step - self.compute - self.communication - self.input

    @property
    def optimistic(self) -> float:
        """Bound with perfect overlap: max(T_compute, T_comm) + T_input."""
        return max(self.compute, self.communication) + self.input

    @property
    def pessimistic(self) -> float:
        """Bound without any overlap: T_compute + T_comm + T_input."""
        return self.compute + self.communication + self.input


PHASES = ("forward_s", "backward_s", "sync_s", "optimizer_s")


def split(trace: TrainingTrace) -> list[Split]:
    """One split a rank, in the order of the rank axis; empty when the timers are missing."""
    step, read = recorded(trace, "step_s"), recorded(trace, "input_s")
    phases = [t for name in PHASES if (t := recorded(trace, name)) is not None]
    if step is None or read is None or not phases or step.shape[1] < 3:
        return []
    busy = np.nansum(np.stack(phases), axis=0)
    wait = recorded(trace, "comm_wait_s")
    wait = np.zeros_like(busy) if wait is None else np.minimum(np.nan_to_num(wait), busy)

    def median(table: np.ndarray) -> list[float]:
        return [float(x) for x in np.nanmedian(table[:, 1:], axis=1)]

    return [
        Split(*values) for values in zip(median(step), median(busy - wait), median(wait), median(read), strict=True)
    ]


@check(
    "bottleneck.split",
    question="bottleneck",
    asks="Which term of the step time is the largest: compute, communication or input?",
    plant=Plant(
        "the loader is slow", "perf.input-bound", params={"steps": 10}, planted={"plant": "slow-input"}, types="single"
    ),
)
def bottleneck(trace: TrainingTrace, limits: BottleneckLimits) -> Iterator[Finding]:
    """Splits the slowest rank's median step by timers and prints both bounds of the step model
    ``T_step ~ max(T_compute, T_comm) + T_input + T_sync``: the optimistic maximum and the pessimistic sum.
    """
    ranks = split(trace)
    if not ranks:
        yield skip("not measured: needs phase timers over at least 3 steps")
        return
    row = max(range(len(ranks)), key=lambda r: ranks[r].step)
    slowest = ranks[row]
    terms = {"compute": slowest.compute, "communication": slowest.communication, "input": slowest.input}
    largest = max(terms, key=lambda name: terms[name])
    shares = ", ".join(f"{name} {value / slowest.step:.0%}" for name, value in terms.items())
    text = (
        f"{largest} is the largest term of the {slowest.step * 1e3:.1f} ms step: {shares}, unexplained"
        f" {slowest.other / slowest.step:.0%}; bounds"
        f" {slowest.optimistic * 1e3:.1f} to {slowest.pessimistic * 1e3:.1f} ms."
        " Not proven by an A/B probe; memory and scheduler are not part of this split"
    )
    share = slowest.input / slowest.step
    limit = limits.input_share
    kept = {"measured": share, "unit": "share of the step", "limit": limit.bound(share), "limit_source": limit.source}
    if limit.judge(share).value == "PASS":
        yield ok(text, where=place(trace, row), **kept)
        return
    remedy = Remedy(text="Time the loader alone; add workers, prefetch, or move the data nearer.")
    yield warn("perf.input-bound", text, where=place(trace, row), remedy=remedy, **kept)
