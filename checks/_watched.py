"""What the checks of watched scripts share. Arrays are [rank, step] unless said otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ddaudit.api import Finding, Plant, TrainingTrace, WatchedScript, skip

from ._arrays import Table, recorded
from ._scripts import builder

#: Columns of ``loss_terms``, in the order in which the watcher writes them.
VALUE, LARGEST, TOTAL, COUNT, RAGGED, IS_SUM, DIVISORS, DIVISOR, SHAPE, SYNCED = range(10)
ARRIVED, ENDED, UNCLIPPED, STEPPED = range(4)
#: ``sample_epoch`` is the loader's number times this, plus the epoch.
EPOCH_BASE = 100_000
REPLICATED = ("data",)
ADAM = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adafactor")
#: Frameworks that decide on accumulation, schedulers and seeds themselves.
FRAMEWORKS = frozenset({"accelerate", "transformers", "lightning", "pytorch_lightning", "deepspeed"})


def planted(name: str, expect: str | tuple[str, ...], fault: str, *, ranks: int = 2, **options: Any) -> Plant:
    """A plant of a watched script: the same program with and without one fault."""
    return Plant(
        name, expect, probe="watch", ranks=1 if options.get("resume") else ranks, planted={"label": fault},
        build=builder(fault, options), types="script",
    )  # fmt: skip


def world(trace: TrainingTrace) -> int:
    """Ranks that belong to the job."""
    return trace.job.world_size or len(trace.ranks)


def readers(trace: TrainingTrace, script: WatchedScript) -> int | None:
    """Ranks that are known to read different data (N); None where that cannot be told.

    Known by a wrapper, or without one by what the script does: every rank shares out its data with a
    DistributedSampler, or gradients are bit-equal on all ranks after collectives as large as they are.
    """
    if trace.job.dp is not None or world(trace) < 2 or trace.job.parallel == "tensor":
        return trace.job.dp
    every = len(trace.ranks) == world(trace) == len(script.ranks)
    shared = [any(x["sampler"].get("num_replicas") == world(trace) for x in r.loaders) for r in script.ranks]
    return world(trace) if every and (all(shared) or _reduced_by_hand(trace)) else None


def warmup_updates(values: Table) -> int | None:
    """Updates before a learning rate [update] first comes within 1 % of its peak; None where the peak is its last."""
    peak = float(np.nanmax(values))
    reached = int(np.flatnonzero(values >= 0.99 * peak)[0])
    return None if peak <= 0 or reached == len(values) - 1 else reached


def _reduced_by_hand(trace: TrainingTrace) -> bool:
    moved, grads, arrived = recorded(trace, "collective_bytes"), trace.array("grad_digests"), trace.array("grad_slices")
    if moved is None or grads is None or arrived is None or not trace.job.parameters:
        return False
    if float(np.nanmedian(moved)) < 2 * trace.job.parameters:  # at least 16 bits for each parameter
        return False
    known = compared(grads)
    alike = float(1 - differing(grads)[known].mean()) if known.any() else 0.0
    own = arrived[:, :, ARRIVED]
    return alike > 0.5 and bool(np.nanmax(np.ptp(own, axis=0), initial=0.0) > 0)


def accumulation(trace: TrainingTrace) -> float | None:
    """The usual number of micro-batches per update; None where it cannot be told."""
    table = recorded(trace, "micro_batches")
    return None if table is None or np.isnan(table[0]).mean() > 0.5 else float(np.nanmedian(table))


def claimed(script: WatchedScript, kind: str) -> dict[int, str]:
    """Values claimed for a kind, with their first source. Claims on ddaudit's own command line stand alone."""
    if kind in script.expected:
        return {script.expected[kind]: "the command line's --expect"}
    found: dict[int, str] = {}
    for rank in script.ranks:
        for claim in rank.claims:
            if claim["kind"] == kind:
                found.setdefault(int(claim["value"]), str(claim["source"]))
    return found


def shares(script: WatchedScript) -> dict[float, str]:
    """Shares of all updates that the script claims for its warm-up, with their first source."""
    found: dict[float, str] = {}
    for claim in (c for rank in script.ranks for c in rank.claims if c["kind"] == "warmup_share"):
        found.setdefault(float(claim["value"]), str(claim["source"]))
    return found


def base_rate(script: WatchedScript) -> dict[float, str]:
    """Learning rates that the script names as meant for its base batch, with their first source."""
    found: dict[float, str] = {}
    for claim in (c for rank in script.ranks for c in rank.claims if c["kind"] == "base_rate"):
        found.setdefault(float(claim["value"]), str(claim["source"]))
    return found


def framework(script: WatchedScript) -> str | None:
    """A framework that drives the loop, or None."""
    return next((f for r in script.ranks for f in r.frameworks if f in FRAMEWORKS), None)


def differing(table: Table) -> Table:
    """[step, parameter]: True where the ranks that recorded a digest do not agree; all False where fewer than two did.

    ``table`` is [rank, step, parameter] with -2 for "not recorded".
    """
    known = np.asarray(table > -2)
    low = np.where(known, table, np.iinfo(table.dtype).max).min(axis=0)
    high = np.where(known, table, -3).max(axis=0)
    return np.asarray((known.sum(axis=0) > 1) & (low != high))


def compared(table: Table) -> Table:
    """[step]: True where at least two ranks recorded digests."""
    return np.asarray(((table > -2).any(axis=2)).sum(axis=0) > 1)


def one_model(script: WatchedScript) -> bool:
    """False where ranks hold parameters of other names or in other numbers, as stages of a pipeline do."""
    return len({r.parameters for r in script.ranks if r.parameters}) <= 1


def aligned(trace: TrainingTrace) -> Table:
    """[step]: True until ranks end an epoch after different numbers of updates (as Join allows): from there on updates
    of one number are not the same update."""
    epochs = trace.array("sample_epoch")
    if epochs is None or epochs.shape[0] < 2 or epochs.shape[1] < 2:
        return np.ones(len(trace.steps), dtype=bool)
    top = epochs.max(axis=2)
    known = (top >= 0).all(axis=0)
    turns = np.diff(top, axis=1, prepend=top[:, :1]) != 0
    parted = (turns != turns[:1]).any(axis=0) & known
    result: Table = np.cumsum(parted) == 0
    return result


def near(value: float, target: float, tolerance: float = 0.02) -> bool:
    """Relative closeness."""
    return bool(np.isfinite(value)) and abs(value - target) <= tolerance * abs(target)


def names(script: WatchedScript, columns: Iterable[int]) -> str:
    """Up to four parameter names."""
    known = script.ranks[0].parameters if script.ranks else ()
    chosen = [known[c] if c < len(known) else f"#{c}" for c in columns]
    return ", ".join(chosen[:4]) + (f" and {len(chosen) - 4} more" if len(chosen) > 4 else "")


def single_optimizer(script: WatchedScript) -> bool:
    """True when one optimizer does all the work (no adversaries, no actor beside a critic)."""
    return all(sum(o["updates"] > 0 for o in rank.optimizers) <= 1 for rank in script.ranks)


def unknown(text: str) -> Finding:
    """The evidence does not decide; ``text`` names what would."""
    return skip(f"unknown: {text}")
