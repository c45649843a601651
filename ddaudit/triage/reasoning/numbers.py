"""The loss went wrong while everything else ran."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from ddaudit.evidence.incident import Step
from ddaudit.triage.reasoning.case import Candidate, Case, Tier, cite

__all__ = ["judge"]

#: Single non-finite steps are what loss scaling is for; this many, or all to the end, are not.
MANY = 3
#: A loss that ends this many times above its earlier median, over this many steps, has diverged.
SPIKE_RATIO, SPIKE_ABSOLUTE, SPIKE_STEPS = 1.5, 1.0, 5


def judge(case: Case) -> Iterator[Candidate]:
    """Candidate ``train.nan-loss`` from the losses themselves."""
    losses = [s for s in case.incident.steps if s.loss is not None]
    lines = [e for e in case.of("nan-loss", "loss-scale") if not e.handled]
    # Frameworks that print a loss of 0 beside a NaN gradient hide it well.
    nan_lines = {(e.spot.file, e.spot.line) for e in lines if "nan" in e.spot.text.lower()}
    bad = [s for s in losses if not math.isfinite(s.loss or 0.0) or (s.spot.file, s.spot.line) in nan_lines]
    tail = bool(losses) and all(s in bad for s in losses[-2:])
    if len(bad) >= MANY or (bad and tail) or (len(lines) >= MANY and not losses):
        first = min(bad, key=lambda s: (s.spot.file, s.spot.line), default=None)
        before = _before(losses, first)
        why = f"the loss is not finite from step {first.step if first and first.step is not None else '?'} on"
        spots = cite([first.spot] if first else [], (e.spot for e in lines[:3]), [before.spot] if before else [])
        stamp = first.stamp.time_s if first and first.stamp else None
        yield Candidate("train.nan-loss", Tier.HANG, why, spots, time_s=stamp)
    elif (spike := _spike(losses)) is not None:
        why = f"the loss rose to {spike.loss:g} and stayed there"
        yield Candidate("train.nan-loss", Tier.SLOW, why, cite([spike.spot, losses[-1].spot]), confidence="medium")


def _before(losses: list[Step], first: Step | None) -> Step | None:
    if first is None:
        return None
    earlier = [
        s for s in losses if s.spot.file == first.spot.file and s.spot.line < first.spot.line and s.rank == first.rank
    ]
    return earlier[-1] if earlier else None


def _spike(losses: list[Step]) -> Step | None:
    by_rank: dict[tuple[str, int | None], list[Step]] = {}
    for step in losses:
        by_rank.setdefault((step.spot.file, step.rank), []).append(step)
    for series in by_rank.values():
        values = [s.loss or 0.0 for s in series]
        early, late = values[: len(values) // 2], values[-SPIKE_STEPS:]
        if len(values) < 4 * SPIKE_STEPS or not early:
            continue
        level = median(early)
        if all(v > level * SPIKE_RATIO and v > level + SPIKE_ABSOLUTE for v in late):
            return next(s for s in series if (s.loss or 0.0) > level * SPIKE_RATIO)
    return None
