"""Question 2: is the effective batch ``B_eff = N * B_local * A`` reported, and is it the one that was asked for?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddaudit.api import Finding, Plant, Remedy, TrainingTrace, check, fail, ok, skip

from ._arrays import Table, place, recorded, shards

TWO = {"parallel": "data", "steps": 6}


@dataclass(frozen=True)
class Effective:
    """The effective batch as measured: N replicas, B_local samples a micro-batch, A micro-batches an update."""

    replicas: int
    local: float
    accumulation: float
    samples: float
    tokens: float | None

    def __str__(self) -> str:
        tokens = f", {self.tokens:.0f} tokens" if self.tokens is not None else ""
        parts = f"{self.replicas} * {_plain(self.local)} * {_plain(self.accumulation)}"
        return f"B_eff = N * B_local * A = {parts} = {_plain(self.samples)} samples{tokens} per update"


def _plain(value: float) -> str:
    return f"{value:g}"


def effective(trace: TrainingTrace) -> Effective | None:
    """Measures the effective batch: replicas are groups of ranks that read the same samples, and each counts once.

    The median over steps is taken, so that a short last batch of an epoch does not decide.
    """
    groups = shards(trace)
    samples, micro = recorded(trace, "samples"), recorded(trace, "micro_batches")
    if not groups or samples is None or micro is None:
        return None
    heads = [group[0] for group in groups]
    per_update = samples[heads].sum(axis=0)
    tokens = recorded(trace, "tokens")
    return Effective(
        replicas=len(groups),
        local=float(np.nanmedian(samples[heads] / np.maximum(micro[heads], 1))),
        accumulation=float(np.nanmedian(micro[heads])),
        samples=float(np.nanmedian(per_update)),
        tokens=None if tokens is None else float(np.nanmedian(_each_once(tokens, groups))),
    )


def _each_once(tokens: Table, groups: list[list[int]]) -> Table:
    """Tokens an update [step]: context-parallel ranks share a sample's tokens, other members repeat them.

    The ranks of one group either all count the whole samples (take one) or count parts that add up (add them). Parts
    are smaller than the group's largest possible whole, which only the parts' owner knows; the reference trainer
    counts whole samples on every rank, so one member speaks for its group.
    """
    return np.asarray(sum(np.nanmax(tokens[group], axis=0) for group in groups))


@check(
    "batch.effective",
    question="batch",
    asks="Is the effective batch N * B_local * A the configured one?",
    plant=(
        Plant(
            "two ranks are fed the same shard",
            "batch.effective-mismatch",
            ranks=2,
            params=TWO,
            planted={"plant": "same-shard"},
            types="data",
        ),
    ),
)
def effective_batch(trace: TrainingTrace) -> Iterator[Finding]:
    """Counts what ranks really read. N is the number of replicas that see different data, never the world size:
    tensor, pipeline and context parallel ranks share one replica, and pipeline micro-batches count in A.
    """
    measured = effective(trace)
    if measured is None:
        yield skip("not measured: the ranks recorded no sample ids or micro-batches")
        return
    job = trace.job
    world = job.world_size or len(trace.ranks)
    wanted = job.global_batch
    if wanted is None and job.dp and job.micro_batch and job.accumulation:
        wanted = job.dp * job.micro_batch * job.accumulation
    text = f"{measured} on {world} rank{'s' if world > 1 else ''}"
    source = "the job's own configuration: N * B_local * A"
    kept = {
        "measured": measured.samples,
        "unit": "samples",
        "limit": wanted,
        "limit_source": source if wanted else None,
    }
    if wanted is None or measured.samples == wanted:
        yield ok(text + ("" if wanted is None else ", as configured"), **kept)
        return
    yield fail(
        "batch.effective-mismatch",
        f"{text}; configured {wanted} = {job.dp} * {job.micro_batch} * {job.accumulation}",
        where=place(trace, 0),
        remedy=Remedy(
            text="Compare N, B_local and A one by one: the factor that differs names the setting that is wrong."
        ),
        **kept,
    )
