"""What a job file says before a device is touched: effective batch, divisibility, epochs and accumulation windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ddaudit.api import (
    EXAMPLE_JOB,
    Finding,
    JobNumbers,
    JobPlan,
    Limit,
    Limits,
    Plant,
    Remedy,
    Status,
    check,
    fail,
    ok,
    skip,
    warn,
)

from ._job import at, plant

BATCH = ("global_batch", "micro_batch", "accumulation")


def _without_accumulation(folder: Path, planted: bool) -> Mapping[str, Any]:
    """The example with a global batch of its own: 250 samples do not split into 8 replicas x 8 samples."""
    text = EXAMPLE_JOB.replace("accumulation    = 4 ", "global_batch    = 250 ", 1) if planted else EXAMPLE_JOB
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return {"file": str(path)}


@check(
    "job.batch",
    question="batch",
    asks="What is the planned effective batch N * B_local * A, and is it the one that the job file states?",
    plant=(
        plant("the stated batch is another", "batch.effective-mismatch", global_batch=200),
        Plant(
            "the batch does not divide", "job.batch-indivisible", probe="job", build=_without_accumulation, types="job"
        ),
    ),
)
def batch(job: JobPlan) -> Iterator[Finding]:
    """N counts replicas that see different data: tensor, pipeline and context parallel ranks share one."""
    run = job.planned
    claimed, where = run.global_batch_claimed, at(job, *BATCH)
    if run.global_batch is None:
        known = run.micro_batch or run.accumulation
        if claimed is not None and known:
            each = run.replicas * known
            text = f"global_batch {claimed} does not divide by N * {known} = {run.replicas} * {known} = {each}"
            near = max(each, round(claimed / each) * each)
            kept = {"measured": claimed % each, "unit": "samples left over", "limit": 0}
            remedy = Remedy(text=f"Set global_batch to a multiple of {each}, such as {near}.")
            whole = "B_eff = N * B_local * A in whole micro-batches"
            yield fail("job.batch-indivisible", text, where=where, limit_source=whole, remedy=remedy, **kept)
        else:
            yield skip("not measured: the job file lacks two of micro_batch, accumulation and global_batch")
        return
    kept = {"measured": run.global_batch, "unit": "samples", "limit": claimed}
    source = None if claimed is None else "global_batch in the job file"
    if claimed not in (None, run.global_batch):
        remedy = Remedy(text="Change global_batch, or the factor that was meant otherwise; N is dp * sharded.")
        text = f"{effective(run)}; the file states global_batch = {claimed}"
        yield fail("batch.effective-mismatch", text, where=where, limit_source=source, remedy=remedy, **kept)
        return
    yield ok(effective(run) + _length(run), where=where, limit_source=source, **kept)


def effective(run: JobNumbers) -> str:
    parts = f"{run.replicas} * {run.micro_batch} * {run.accumulation}"
    tokens = f", {run.tokens_per_update} tokens" if run.tokens_per_update else ""
    ranks = f"{run.world_size} rank{'s' if run.world_size > 1 else ''}"
    return f"planned: B_eff = N * B_local * A = {parts} = {run.global_batch} samples{tokens} per update on {ranks}"


def _length(run: JobNumbers) -> str:
    each = f"; {run.updates_per_epoch} updates per epoch" if run.updates_per_epoch else ""
    return each + (f", {run.updates} in all" if run.updates else "")


@check(
    "job.layout",
    asks="Do ranks, heads, layers, experts and sequence divide by the planned layout?",
    plant=(
        plant("more ranks than the layout has", "job.layout-mismatch", layout__world_size=12),
        plant("heads that tensor parallelism cannot divide", "job.heads-indivisible", layout__tp=3),
        plant("fewer layers than pipeline stages", "job.layers-indivisible", layout__pp=32),
        plant("layers that leave stages uneven", "job.layers-uneven", layout__pp=5),
        plant("experts that do not spread evenly", "job.experts-indivisible", model__experts=6, layout__ep=4),
        plant("expert groups larger than the data ranks", "job.expert-ranks", model__experts=48, layout__ep=3),
        plant("a sequence that does not cut evenly", "job.sequence-indivisible", layout__cp=3),
    ),
)
def layout(job: JobPlan) -> Iterator[Finding]:
    """Every axis must divide what it splits; a remainder ends in an error at start-up, or in ranks that wait."""
    run, clean = job.planned, True
    product = f"dp {run.dp} * sharded {run.sharded} * tp {run.tp} * pp {run.pp} * cp {run.cp}"
    if run.world_size_claimed not in (None, run.world_size):
        clean = False
        yield fail(
            "job.layout-mismatch",
            f"world_size is {run.world_size_claimed}, and {product} = {run.world_size}",
            where=at(job, "layout.world_size", "layout"),
            measured=run.world_size_claimed,
            unit="ranks",
            limit=run.world_size,
            limit_source="world_size = dp * sharded * tp * pp * cp",
        )
    for finding in (*_divided(job), *_stages(job)):
        clean = False
        yield finding
    if clean:
        text = f"{product} = {run.world_size} ranks, and every axis divides what it splits, as far as the file says it"
        yield ok(text, measured=0, unit="remainders", limit=0, limit_source="axes divide what they split")


def _divided(job: JobPlan) -> Iterator[Finding]:
    """Quantities that an axis must divide without remainder."""
    run, data_ranks = job.planned, job.planned.dp * job.planned.sharded
    rows: tuple[tuple[str, int | None, int, str, str, str], ...] = (
        ("heads", run.heads, run.tp, "tp", "job.heads-indivisible", "whole heads per tensor-parallel rank"),
        ("ffn", run.ffn, run.tp, "tp", "job.ffn-indivisible", "whole columns per tensor-parallel rank"),
        ("experts", run.experts, run.ep, "ep", "job.experts-indivisible", "equally many experts per rank"),
        ("ranks of data parallelism", data_ranks, run.ep, "ep", "job.expert-ranks", "ep lies across dp * sharded"),
        ("seq_len", run.seq_len, run.cp, "cp", "job.sequence-indivisible", "equal parts of each sequence"),
    )
    for name, size, degree, axis, id, why in rows:
        if size is not None and size % degree:
            keys = (f"layout.{axis}", f"model.{name}", name)
            text = f"{size} {name} do not divide by {axis} = {degree}"
            kept = {"measured": size % degree, "unit": "left over", "limit": 0, "limit_source": why}
            remedy = Remedy(text=f"Choose {axis} among the divisors of {size}: {_divisors(size)}.")
            yield fail(id, text, where=at(job, *keys), remedy=remedy, **kept)
    if run.kv_heads and run.kv_heads % run.tp and run.tp % run.kv_heads:
        text = f"{run.kv_heads} key/value heads neither divide by tp = {run.tp} nor divide it"
        kept = {"measured": run.kv_heads % run.tp, "unit": "left over", "limit": 0}
        source = "whole key/value heads per rank, or whole copies of one"
        yield fail("job.heads-indivisible", text, where=at(job, "layout.tp"), limit_source=source, **kept)


def _divisors(number: int, most: int = 8) -> str:
    found = [n for n in range(1, min(number, 4096) + 1) if number % n == 0]
    return ", ".join(map(str, found[:most])) + (" ..." if len(found) > most else "")


def _stages(job: JobPlan) -> Iterator[Finding]:
    """Layers by pipeline stages: too few cannot run, uneven ones wait for the fullest stage."""
    run = job.planned
    chunks = run.pp * run.virtual_stages
    if run.layers is None or chunks == 1 or run.layers % chunks == 0:
        return
    where, source = at(job, "layout.pp"), "layers per chunk of the pipeline"
    if run.layers < chunks:
        text = f"{run.layers} layers are fewer than {chunks} pipeline chunks"
        kept = {"measured": run.layers, "unit": "layers", "limit": chunks}
        yield fail("job.layers-indivisible", text, where=where, limit_source=source, **kept)
        return
    fullest = -(-run.layers // chunks)
    excess = fullest * chunks / run.layers - 1
    text = (
        f"{run.layers} layers over {chunks} pipeline chunks: the fullest holds {fullest}, and every step waits for it"
    )
    kept = {"measured": excess, "unit": "of the ideal time", "limit": 0.0, "limit_source": source}
    yield warn("job.layers-uneven", f"{text} ({excess:.0%} longer)", where=where, **kept)


class JobLimits(Limits):
    """Shares of an epoch."""

    family = "job"

    unread_share: Limit = Limit(
        warn_above=0.05, source="default: samples of one epoch that no update reads; a reshuffle changes which"
    )


@check(
    "job.epoch",
    asks="How many updates make an epoch, and how much of the data set does it leave out?",
    plant=(
        plant("a data set smaller than one update", "job.no-update", dataset_samples=100),
        plant("a third of each epoch is left out", "data.partial-coverage", dataset_samples=400, last_window="drop"),
    ),
)
def epoch(job: JobPlan, limits: JobLimits) -> Iterator[Finding]:
    """Counts as torch's DistributedSampler and DataLoader do; see ``JobNumbers`` for what ``drop_last`` changes."""
    run = job.planned
    if run.updates_per_epoch is None or not run.dataset_samples:
        yield skip("not measured: needs dataset_samples and the batch")
        return
    where = at(job, "dataset_samples")
    if run.updates_per_epoch == 0:
        text = f"{run.dataset_samples} samples make no update of B_eff = {run.global_batch}"
        kept = {"measured": 0, "unit": "updates/epoch", "limit": 1, "limit_source": "an epoch holds an update"}
        yield fail("job.no-update", text, where=where, **kept)
        return
    unread = run.unread_samples or 0
    share, limit = unread / run.dataset_samples, limits.unread_share
    text = f"{run.updates_per_epoch} updates per epoch of {run.dataset_samples} samples; {unread} ({share:.2%}) unread"
    kept = {"measured": share, "unit": "of the data set", "limit": limit.bound(share), "limit_source": limit.source}
    if limit.judge(share) is Status.PASS:
        yield ok(text, where=where, **kept)
        return
    remedy = Remedy(text="Lower B_eff, or say drop_last = false and what the loop does with a short last_window.")
    yield warn("data.partial-coverage", text, where=where, remedy=remedy, **kept)


#: What becomes of a short last window -> words, and whether it is a fault.
WINDOWS: dict[str, tuple[str, bool]] = {
    "drop": ("and drops them", False),
    "rescale": ("and steps them with their own divisor", False),
    "step-as-full": ("and steps them as if the window were full, so its gradient is too small", True),
    "carry": ("and carries their gradients into the next epoch", True),
}


@check(
    "job.accumulation",
    question="accumulation",
    asks="Does every worker count the same accumulation windows, and what becomes of an epoch's last one?",
    plant=(
        plant(
            "gradients cross the epoch's end",
            "accum.window-crosses-epoch",
            dataset_samples=1_048_640,
            last_window="carry",
        ),
    ),
)
def accumulation(job: JobPlan) -> Iterator[Finding]:
    """A sampler that gives every replica equally many samples lets all of them count the same micro-batches. When their
    number does not divide by A, each epoch ends in a short window: harmless when dropped or rescaled.
    """
    run = job.planned
    count, passes, rest = run.micro_batches_per_epoch, run.accumulation, run.left_over_micro_batches
    if count is None or passes is None or rest is None:
        yield skip("not measured: needs dataset_samples, micro_batch and accumulation")
        return
    where = at(job, "last_window", "accumulation", "global_batch")
    kept = {"measured": rest, "unit": "micro-batches left over", "limit": 0, "limit_source": "whole windows of A"}
    text = (
        f"each of {run.replicas} replicas reads {count} micro-batches per epoch: {count // passes} windows of {passes}"
    )
    if rest == 0 or (run.epochs is not None and run.epochs <= 1):
        yield ok(text + (f", and {rest} that the run's end leaves" if rest else ""), where=where, **kept)
        return
    text += f", and {rest} more"
    if run.last_window is None:
        yield skip(f"not judged: {text}; say with last_window what the loop does with them", where=where, **kept)
        return
    words, wrong = WINDOWS[run.last_window]
    if not wrong:
        yield ok(f"{text}; the loop takes {rest} {words}", where=where, **kept)
        return
    remedy = Remedy(text=f"Divide the last window's loss by {rest}, not {passes}, or drop it.")
    text += f"; the loop takes {rest} {words}"
    yield warn("accum.window-crosses-epoch", text, where=where, remedy=remedy, **kept)
