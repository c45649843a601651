"""The few numbers of a step that tables and ``$step.metric`` references use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ddaudit.evidence.bandwidth import busbw_gbps
from ddaudit.evidence.base import Evidence
from ddaudit.evidence.collectives import CollectiveSweep
from ddaudit.evidence.launch import LaunchFacts
from ddaudit.evidence.measures import Measures
from ddaudit.evidence.scheduler import LaunchLedger
from ddaudit.evidence.trace import TrainingTrace

__all__ = ["summarise"]


def summarise(evidence: Mapping[str, Evidence]) -> dict[str, Any]:
    """Flat metric -> number or word. A name measured in several places keeps its last value."""
    summary: dict[str, Any] = {}
    for item in evidence.values():
        if isinstance(item, TrainingTrace):
            summary |= _training(item)
        elif isinstance(item, Measures):
            summary |= {m.name: m.value for m in item.values}
        elif isinstance(item, LaunchFacts):
            summary |= {"world_size": item.world_size, "launch_wall_s": item.seconds}
        elif isinstance(item, LaunchLedger):
            summary |= _launch(item)
        elif isinstance(item, CollectiveSweep):
            summary |= _bandwidths(item)
    return summary


STARTS = ("spawn_s", "load_s", "import_s", "rendezvous_s", "first_collective_s", "first_step_s")


def _launch(ledger: LaunchLedger) -> dict[str, Any]:
    """Each phase of the start-up, of the rank that took longest: nobody trains before all are there."""
    longest = {name: [s for r in ledger.ranks if (s := getattr(r, name)) is not None] for name in STARTS}
    return {f"launch_{name}": max(seconds) for name, seconds in longest.items() if seconds}


def _bandwidths(sweep: CollectiveSweep) -> dict[str, Any]:
    """Bus bandwidth of each operation at its largest message; of several groups the slowest counts."""
    found: dict[str, Any] = {}
    for (op, group), points in sweep.curves().items():
        name = f"{op.replace('-', '_')}_busbw_gbps"
        value = busbw_gbps(op, points[-1].bytes, points[-1].median_s, len(group))
        found[name] = min(value, found.get(name, value))
    return found


def _training(trace: TrainingTrace) -> dict[str, Any]:
    import numpy as np

    job = trace.job
    summary: dict[str, Any] = {
        "parallel": job.parallel,
        "variant": job.variant,
        "dp": job.dp,
        "steps": len(trace.steps),
    }
    saved = [c for c in trace.checkpoints if c.action == "save"]
    if saved:
        summary["checkpoint_path"] = saved[-1].path
    loss, wall, tokens = trace.series("loss_nats"), trace.series("step_s"), trace.series("tokens")
    if loss is not None and loss.size:
        count = (~np.isnan(loss)).sum(axis=0)
        with np.errstate(invalid="ignore"):  # of infinities of both signs
            curve = np.where(count > 0, np.nansum(loss, axis=0) / np.maximum(count, 1), math.nan)
        summary |= {"first_loss_nats": float(curve[0]), "last_loss_nats": float(curve[-1])}
    if wall is not None and wall.shape[1] > 1:
        # The first step pays for allocation and lazy initialisation; the median of the rest is the steady state.
        slowest = np.nanmax(wall[:, 1:], axis=0)
        summary["step_s"] = float(np.nanmedian(slowest))
        if tokens is not None and job.dp and job.world_size:
            per_step = float(np.nanmedian(np.nansum(tokens, axis=0))) * job.dp / job.world_size
            summary["tokens_per_s"] = per_step / summary["step_s"] if summary["step_s"] > 0 else None
    return summary
