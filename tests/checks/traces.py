"""Builds training traces by hand, so that a judgement can be tested without a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddaudit.api import SERIES, Array, Finding, TrainingTrace
from ddaudit.engine.judge import judge
from ddaudit.packs import load
from ddaudit.runbook.model import PlannedStep

REGISTRY = load(entries=False, environment=False).registry


def trace(
    ranks: int = 2,
    steps: int = 10,
    *,
    job: Mapping[str, Any] | None = None,
    coords: Sequence[Mapping[str, int]] | None = None,
    sample_ids: Any = None,
    **series: Any,
) -> TrainingTrace:
    """A trace whose ``series`` are scalars, [step] or [rank, step] values."""
    arrays = {}
    for name, value in series.items():
        table = np.array(np.broadcast_to(np.asarray(value, dtype=float), (ranks, steps)))
        arrays[name] = Array(table, SERIES[name][0], ("rank", "step"))
    if sample_ids is not None:
        arrays["sample_ids"] = Array(np.asarray(sample_ids, dtype=np.int64), "sample", ("rank", "step", "slot"))
    places = [
        {"rank": r, "host": "node", "coords": dict(coords[r]) if coords else {"dp": r}, "device": "cpu"}
        for r in range(ranks)
    ]
    facts = {"job": {"world_size": ranks, **(job or {})}, "ranks": places, "steps": list(range(steps)), "tensors": []}
    return TrainingTrace(facts=facts, arrays=arrays)


def asked(check: str, given: TrainingTrace, reference: TrainingTrace | None = None, **limits: Any) -> list[Finding]:
    """The findings of a check, by its id."""
    step = PlannedStep(
        id="s", title="", source="book.md:1", runbook="b", limits={k.replace("__", "."): v for k, v in limits.items()}
    )
    other = {} if reference is None else {reference.kind: reference}
    return judge(REGISTRY.checks[check], {given.kind: given}, step=step, reference=other)


def ids(check: str, given: TrainingTrace, reference: TrainingTrace | None = None, **limits: Any) -> list[str]:
    """``STATUS id`` of each finding."""
    return [f"{f.status.value} {f.id}" for f in asked(check, given, reference, **limits)]


def sharded_ids(ranks: int, steps: int, each: int, *, shards: Sequence[int] | None = None) -> np.ndarray:
    """Sample ids [rank, step, slot]; ranks of equal ``shards`` read the same samples."""
    owner = list(range(ranks)) if shards is None else list(shards)
    replicas = max(owner) + 1
    table = np.empty((ranks, steps, each), dtype=np.int64)
    for rank in range(ranks):
        for step in range(steps):
            first = (step * replicas + owner[rank]) * each
            table[rank, step] = np.arange(first, first + each)
    return table
