"""Reads what a run measured: steps of training, collectives, and who came late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ddaudit.errors import EvidenceProblem
from ddaudit.evidence import CollectiveSweep, Evidence, TrainingTrace
from ddaudit.evidence.costs import ComputeCosts
from ddaudit.evidence.store import load_events
from ddaudit.forecast.batch import LEAST_UPDATES, NoiseScale, noise_scale
from ddaudit.forecast.stragglers import spread_of
from ddaudit.forecast.subject import WIDTHS, Subject, from_trace

__all__ = ["Measured", "RunFacts", "read_run"]

KINDS: tuple[type[Evidence], ...] = (TrainingTrace, CollectiveSweep, ComputeCosts)
#: Updates left out at the beginning: allocation, connection, warm-up of caches.
WARM = 2


@dataclass(frozen=True)
class Measured:
    """One training step of a runbook: ``step_s`` is the median update of the slowest rank, with quartiles.

    ``wait_s`` was blocked in collectives, ``hidden_s`` under compute; ``cpu_s`` is CPU time of one rank and update,
    ``system_s`` its part in the kernel, and ``queue_s`` the time in which the rank was ready but had no core.
    ``noise_gap`` says why there is no noise scale although gradient norms were recorded.
    """

    step: str
    kind: str
    subject: Subject
    ranks: int
    hosts: int
    device: str
    updates: int
    step_s: float
    low_s: float
    high_s: float
    wait_s: float = 0.0
    hidden_s: float | None = None
    cpu_s: float | None = None
    system_s: float | None = None
    queue_s: float | None = None
    input_s: float = 0.0
    optimizer_s: float = 0.0
    save_s: float | None = None
    peak_bytes: float | None = None
    spread: tuple[tuple[float, float], ...] = ()
    noise: NoiseScale | None = None
    noise_gap: str = ""
    losses: tuple[float, ...] = ()

    def crowding(self, cores: int) -> float:
        """How many times longer a rank took for its work because programs of others used its cores; 1 on a machine
        of its own. Ranks beyond the cores wait for each other anyway, and that is not counted."""
        if not self.cpu_s or self.queue_s is None:
            return 1.0
        own = max(1.0, self.ranks / self.hosts / cores)
        return max(1.0, (self.cpu_s + self.queue_s) / self.cpu_s / own)


@dataclass(frozen=True)
class RunFacts:
    """Everything of a run that a forecast uses. ``rates`` are FLOP/s of matrix products by bytes of a number;
    ``skipped`` says what could not be used, and why."""

    folder: str
    steps: tuple[Measured, ...] = ()
    sweeps: tuple[CollectiveSweep, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    rates: Mapping[int, float] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


def read_run(folder: Path, facts: Mapping[str, Any] | None = None) -> RunFacts:
    """Reads the events of every step of a run folder.

    Raises:
        EvidenceProblem: no run folder, or none of its steps trained.
    """
    events = folder / "events"
    if not events.is_dir():
        raise EvidenceProblem(
            "no events", where=str(folder), expected="a run folder that `ddaudit run` wrote", fix="ddaudit run"
        )
    steps: list[Measured] = []
    sweeps: list[CollectiveSweep] = []
    skipped: list[str] = []
    rates: dict[int, float] = {}
    for path in sorted(p for p in events.iterdir() if p.is_dir() and not p.is_symlink()):
        found = load_events(folder, path.name, KINDS)
        sweep, trace = found.get(CollectiveSweep.kind), found.get(TrainingTrace.kind)
        if isinstance(sweep, CollectiveSweep):
            sweeps.append(sweep)
        if isinstance(costs := found.get(ComputeCosts.kind), ComputeCosts):
            rates[WIDTHS[costs.dtype]] = max(rates.get(WIDTHS[costs.dtype], 0.0), costs.peak_flops_per_s)
        if isinstance(trace, TrainingTrace):
            seen = measure(path.name, trace)
            if isinstance(seen, Measured):
                steps.append(seen)
            else:
                skipped.append(seen)
    return RunFacts(str(folder), tuple(steps), tuple(sweeps), facts or {}, rates, tuple(skipped))


def measure(step: str, trace: TrainingTrace) -> Measured | str:
    """The numbers of one training; a sentence where it cannot be used."""
    if trace.job.planted:
        return f"{step}: a fault was planted ({trace.job.planted})"
    subject = from_trace(trace.job)
    if subject is None:
        return f"{step}: the trace does not tell the model's layers, hidden, heads, vocabulary and batch"
    table = trace.series("step_s")
    if table is None or table.shape[1] < WARM + 3:
        return f"{step}: fewer than {WARM + 3} updates were timed"
    seconds = _slowest(table)
    if not seconds.size or float(np.min(seconds)) <= 0:
        return f"{step}: updates without a time"
    low, mid, high = map(float, np.quantile(seconds, (0.25, 0.5, 0.75)))
    noise, gap = _noise(trace)
    return Measured(
        step=step,
        kind=trace.job.parallel or "single",
        subject=subject,
        ranks=len(trace.ranks),
        hosts=len({r.host for r in trace.ranks}),
        device=trace.ranks[0].device.partition(":")[0],
        updates=int(seconds.size),
        step_s=mid,
        low_s=low,
        high_s=high,
        wait_s=_median(trace, "comm_wait_s") or 0.0,
        hidden_s=_median(trace, "comm_hidden_s"),
        cpu_s=_median(trace, "cpu_s"),
        system_s=_median(trace, "system_s"),
        queue_s=_median(trace, "runqueue_s"),
        input_s=_median(trace, "input_s") or 0.0,
        optimizer_s=_median(trace, "optimizer_s") or 0.0,
        save_s=_longest_save(trace),
        peak_bytes=_largest(trace, "device_bytes"),
        spread=_spread(trace),
        noise=noise,
        noise_gap=gap,
        losses=_losses(trace),
    )


def _slowest(table: Any) -> Any:
    """Seconds of the slowest rank, of each timed update after warm-up."""
    seconds = np.nanmax(table[:, WARM:], axis=0)
    return seconds[np.isfinite(seconds)]


def _longest_save(trace: TrainingTrace) -> float | None:
    return max((c.seconds for c in trace.checkpoints if c.action == "save" and c.seconds is not None), default=None)


def _median(trace: TrainingTrace, name: str) -> float | None:
    table = trace.series(name)
    if table is None or not np.isfinite(table[:, WARM:]).any():
        return None
    return float(np.nanmedian(table[:, WARM:]))


def _largest(trace: TrainingTrace, name: str) -> float | None:
    table = trace.series(name)
    return None if table is None or not np.isfinite(table).any() else float(np.nanmax(table))


def _spread(trace: TrainingTrace) -> tuple[tuple[float, float], ...]:
    """Lateness of each rank and update: its own time, waiting for others left out, beyond the median of all."""
    table, waits = trace.series("step_s"), trace.series("comm_wait_s")
    if table is None:
        return ()
    own = table[:, WARM:] - (0.0 if waits is None else np.nan_to_num(waits[:, WARM:])) - _queued(trace)
    own = own[np.isfinite(own)]
    middle = float(np.median(own)) if own.size else 0.0
    return spread_of([float(v) / middle - 1 for v in own]) if middle > 0 else ()


def _queued(trace: TrainingTrace) -> Any:
    """Seconds without a core outside collectives: what other programs did to a rank is no lateness of the rank."""
    whole, waiting = trace.series("runqueue_s"), trace.series("runqueue_comm_s")
    if whole is None:
        return 0.0
    return np.nan_to_num(whole[:, WARM:]) - (0.0 if waiting is None else np.nan_to_num(waiting[:, WARM:]))


def _noise(trace: TrainingTrace) -> tuple[NoiseScale | None, str]:
    """Gradient noise scale from each rank's own gradient and the averaged one, or what is missing."""
    local, averaged = trace.series("grad_norm_local"), trace.series("grad_norm")
    job = trace.job
    if local is None or averaged is None or not (job.dp and job.micro_batch and job.accumulation):
        return None, ""
    small = job.micro_batch * job.accumulation
    kept = np.isfinite(local).any(axis=0) & np.isfinite(averaged).any(axis=0)
    squares, whole = (np.nanmean(norms[:, kept] ** 2, axis=0) for norms in (local, averaged))
    found = noise_scale(_floats(squares), _floats(whole), small, small * job.dp)
    if found is not None:
        return found, ""
    if (count := int(np.sum(kept))) < LEAST_UPDATES:
        return None, f"{count} updates, {LEAST_UPDATES} needed"
    return None, f"{count} updates tell no signal from noise; run more, or more ranks"


def _losses(trace: TrainingTrace) -> tuple[float, ...]:
    table = trace.series("loss_nats")
    if table is None or not np.isfinite(table).any():
        return ()
    return tuple(float(v) for v in np.nanmax(table, axis=0) if np.isfinite(v))


def _floats(values: Any) -> Sequence[float]:
    return [float(v) for v in values]
