"""What of one watched run another one is compared with: batch, learning rate and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddaudit.evidence import TrainingTrace, WatchedScript
from ddaudit.evidence.events import Stream
from ddaudit.evidence.script import OtherRun

if TYPE_CHECKING:
    import numpy as np

__all__ = ["other_run"]

MAX_LOSSES = 4096


def other_run(streams: Sequence[Stream], name: str) -> OtherRun | None:
    """The facts of a run; None when no rank of it trained."""
    trace, script = TrainingTrace.assemble(streams), WatchedScript.assemble(streams)
    if trace is None or script is None or not trace.steps:
        return None
    ranks = trace.job.world_size or len(trace.ranks)
    rates = _mean(trace.series("lr"))
    peak = max((x for x in rates if math.isfinite(x)), default=None)
    reached = next((i for i, x in enumerate(rates) if peak and x >= 0.99 * peak), None)
    return OtherRun(
        name=name,
        ranks=ranks,
        samples=_samples(trace, script, ranks),
        optimizer=trace.job.optimizer,
        peak_lr=peak,
        warmup_updates=None if reached is None or reached == len(rates) - 1 else reached,
        losses=tuple(_mean(trace.series("loss_raw"))[:MAX_LOSSES]),
    )


def _mean(table: np.ndarray[Any, Any] | None) -> list[float]:
    """[update]: mean over the ranks that recorded a number."""
    if table is None:
        return []
    known = ~(table != table)
    total = [float(table[known[:, c], c].sum()) for c in range(table.shape[1])]
    return [t / n if (n := int(known[:, c].sum())) else math.nan for c, t in enumerate(total)]


def _samples(trace: TrainingTrace, script: WatchedScript, ranks: int) -> float | None:
    table = trace.series("samples")
    parted = all(any(x["sampler"].get("num_replicas") == ranks for x in r.loaders) for r in script.ranks)
    apart = trace.job.dp is not None or parted
    if table is None or table.shape[0] < ranks or (ranks > 1 and (not apart or trace.job.parallel == "tensor")):
        return None
    sums = sorted(float(x) for x in table.sum(axis=0) if x == x)
    return sums[len(sums) // 2] if sums else None
