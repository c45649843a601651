"""Does the planned layout do what it is planned for: fit the model, raise the batch, or save time?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ddaudit.api import Finding, JobNumbers, JobPlan, Limit, Limits, Remedy, Status, check, draft, fail, ok, skip, warn

from ._job import at, plant, times

GIB = 1 << 30
LAYOUT = ("layout", "layout.dp", "goal")


class JobGoalLimits(Limits):
    """Shares of device memory, of a pipeline's step, and of the baseline's time."""

    family = "job"

    state_share: Limit = Limit(
        warn_above=0.85,
        fail_above=1.0,
        source="above 1 physically impossible; above 0.85 little is left for activations, workspaces and CUDA context",
    )
    bubble_share: Limit = Limit(
        warn_above=0.25, source="default: idle share of a pipeline; GPipe calls it negligible from m = 4 p (Huang 2019)"
    )
    speedup: Limit = Limit(
        fail_below=1.01, source="the goal is less time: an upper bound that is not above 1 cannot meet it"
    )


@check(
    "job.memory",
    asks="Do parameters, gradients and optimizer states fit into a device?",
    plant=(
        plant(
            "whole copies on small devices", "job.does-not-fit", layout__sharded=1, layout__dp=8, device_memory_gib=16
        ),
        plant("states that leave no room", "job.memory-tight", layout__sharded=1, layout__dp=8, device_memory_gib=22),
    ),
)
def memory(job: JobPlan, limits: JobGoalLimits) -> Iterator[Finding]:
    """A floor: model states of one rank by layout, ZeRO stage, precision and optimizer (Rajbhandari et al. 2020), and
    under full sharding one gathered block. Activations, workspaces and context come on top, so a PASS promises nothing.
    """
    run, device = job.planned, job.device_memory_bytes
    floor = run.memory
    if floor is None or device is None:
        yield skip("not measured: needs precision, device_memory_gib, and model.parameters or the model's shape")
        return
    share, limit = floor.total_bytes / device, limits.state_share
    guess = " (estimated from its shape)" if run.parameters_estimated else ""
    text = (
        f"{_gib(floor.total_bytes)} GiB of model states per rank: weights {_gib(floor.weights_bytes)}, gradients"
        f" {_gib(floor.gradients_bytes)}, {run.optimizer or 'optimizer'} {_gib(floor.optimizer_bytes)}, gathered block"
        f" {_gib(floor.gathered_bytes)}; {run.parameters or 0:.4g} parameters{guess}, device {_gib(device)} GiB"
    )
    kept = {"measured": share, "unit": "of the device", "limit": limit.bound(share), "limit_source": limit.source}
    status = limit.judge(share)
    if status is Status.PASS:
        yield ok(text, where=at(job, "device_memory_gib"), **kept)
        return
    id = "job.does-not-fit" if status is Status.FAIL else "job.memory-tight"
    remedy = Remedy(
        text="Raise sharded (zero_stage = 3), tp or pp: plain data parallelism copies all states to each rank."
    )
    yield draft(status, id, text, where=at(job, "device_memory_gib"), remedy=remedy, **kept)


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.4g}"


@check(
    "job.pipeline",
    asks="Do micro-batches fill the pipeline?",
    plant=plant("fewer micro-batches than stages", "job.pipeline-bubble", layout__pp=8),
)
def pipeline(job: JobPlan, limits: JobGoalLimits) -> Iterator[Finding]:
    """Idle share (p - 1) / (v m + p - 1) of GPipe and 1F1B; v chunks a stage divide it (Narayanan et al. 2021)."""
    run, share, limit = job.planned, job.planned.bubble_share, limits.bubble_share
    if share is None:
        yield skip("not measured: a pipeline needs accumulation (its micro-batches per update)")
        return
    kept = {"measured": share, "unit": "of the step", "limit": limit.bound(share), "limit_source": limit.source}
    where = at(job, "layout.pp", "layout")
    if run.pp == 1:
        yield ok("no pipeline is planned, so none idles", where=where, **kept)
        return
    text = f"{share:.0%} of each step idles: {run.accumulation} micro-batches through {run.pp} pipeline stages"
    if limit.judge(share) is Status.PASS:
        yield ok(text, where=where, **kept)
        return
    remedy = Remedy(text=f"Cut the batch into at least {4 * run.pp} micro-batches, use fewer stages, or interleave.")
    yield warn("job.pipeline-bubble", text, where=where, remedy=remedy, **kept)


Judge = Callable[[JobPlan, JobGoalLimits], Iterator[Finding]]
NOT_SERVED = "job.goal-not-served"


@check(
    "job.goal",
    asks="Does the planned parallelism serve the stated goal?",
    plant=(
        plant("whole copies for more capacity", NOT_SERVED, goal="capacity", layout__sharded=1, layout__dp=8),
        plant("tensor parallelism for a larger batch", NOT_SERVED, layout__sharded=2, layout__tp=4),
        plant(
            "accumulation while devices serve no batch", NOT_SERVED, layout__sharded=2, layout__tp=4, accumulation=16
        ),
        plant(
            "a pipeline that idles, to save time",
            NOT_SERVED,
            goal="wall-clock",
            layout__sharded=1,
            layout__pp=8,
            accumulation=1,
        ),
        plant("whole copies for memory", NOT_SERVED, goal="memory-fit", layout__sharded=1, layout__dp=8),
    ),
)
def goal(job: JobPlan, limits: JobGoalLimits) -> Iterator[Finding]:
    """Data parallelism raises the batch and saves time, and never fits a larger model; sharding, tensor, pipeline and
    expert parallelism fit one, and of these only sharding raises the batch; accumulation raises it without devices.
    """
    if job.goal is None:
        yield skip("not measured: the job file states no goal")
        return
    yield from GOALS[job.goal](job, limits)


def _capacity(job: JobPlan, _: JobGoalLimits) -> Iterator[Finding]:
    run = job.planned
    shares = {"sharded": run.sharded, "tp": run.tp, "pp": run.pp, "ep": run.ep if run.experts else 1}
    if job.goal == "memory-fit":
        shares["cp"] = run.cp
    ranks = run.sharded * run.tp * run.pp * shares.get("cp", 1)
    split = max(ranks, shares["ep"])
    kept = {
        "measured": split,
        "unit": "ranks per copy",
        "limit": 2,
        "limit_source": "one copy on one rank saves nothing",
    }
    if split > 1:
        said = ", ".join(f"{axis} {n}" for axis, n in shares.items() if n > 1)
        stage = f" (stage {run.zero_stage}: weights stay whole)" if run.sharded > 1 and run.zero_stage < 3 else ""
        yield ok(f"goal {job.goal}: {split} ranks share one copy ({said}){stage}", where=at(job, *LAYOUT), **kept)
        return
    good = job.baseline
    if job.goal == "memory-fit" and good and (run.micro_batch or 0) < (good.micro_batch or 0):
        text = f"goal memory-fit: activations of {run.micro_batch} samples, not {good.micro_batch}; states stay whole"
        yield ok(text, where=at(job, "micro_batch"), **{**kept, "limit": None, "limit_source": None})
        return
    text = f"goal {job.goal}: each of {run.world_size} ranks holds parameters, gradients and optimizer states whole"
    remedy = Remedy(text="Replicas do not add memory. Use sharded (FSDP2), tp or pp, or ep for experts.")
    yield fail(NOT_SERVED, text, where=at(job, *LAYOUT), remedy=remedy, **kept)


def _larger_batch(job: JobPlan, _: JobGoalLimits) -> Iterator[Finding]:
    run, good, k = job.planned, job.baseline, job.batch_ratio
    if good is None or k is None:
        yield skip("not measured: needs the batch of the plan and of a [baseline] to say larger than which")
        return
    where, unit = at(job, *LAYOUT), "samples"
    size, size0 = run.global_batch, good.global_batch
    if run.seq_len != good.seq_len and run.tokens_per_update and good.tokens_per_update:
        size, size0, unit = run.tokens_per_update, good.tokens_per_update, "tokens"
    kept = {"measured": size, "unit": unit, "limit": size0, "limit_source": "the baseline's batch"}
    idle = run.world_size > good.world_size and run.replicas <= good.replicas
    why = (
        f"; ranks grow from {good.world_size} to {run.world_size}, replicas do not (N = {run.replicas}):"
        " tensor, pipeline and context parallelism share one replica's data"
        if idle
        else ""
    )
    remedy = Remedy(text="Only dp and sharded raise N; accumulation raises the batch too, at the price of time.")
    if k <= 1:
        text = f"goal larger-batch: B_eff is {size} {unit}, the baseline's {size0}{why}"
        yield fail(NOT_SERVED, text, where=where, remedy=remedy, **kept)
        return
    text = f"goal larger-batch: B_eff grows {times(k)}, from {size0} to {size} {unit}"
    passes = (run.accumulation or 1) / (good.accumulation or 1)
    if idle:
        yield warn(NOT_SERVED, f"{text}, none of it by the added devices{why}", where=where, remedy=remedy, **kept)
    elif passes > 1 and run.replicas <= good.replicas:
        yield ok(f"{text}, through accumulation: each update takes {times(passes)} the passes", where=where, **kept)
    else:
        yield ok(f"{text} on {times(run.replicas / good.replicas)} the replicas", where=where, **kept)


def _wall_clock(job: JobPlan, limits: JobGoalLimits) -> Iterator[Finding]:
    """Ideal time is samples * seq_len / (ranks * (1 - bubble)); communication only adds to it."""
    run, good = job.planned, job.baseline
    mine, other = _ideal_time(run), _ideal_time(good) if good else None
    if good is None or mine is None or other is None:
        yield skip("not measured: needs a [baseline] with its layout, and accumulation where there is a pipeline")
        return
    if run.parameters and good.parameters and abs(run.parameters / good.parameters - 1) > 0.01:
        yield skip("not measured: plan and baseline train models of different size, so their times do not compare")
        return
    (time, samples), (time0, samples0) = mine, other
    whole = samples is not None and samples0 is not None
    speedup = time0 / time * (samples0 / samples if samples and samples0 else 1.0)
    ranks = run.world_size / good.world_size
    text = f"goal wall-clock: at most {speedup:.2f}x as fast as the baseline on {times(ranks)} the ranks"
    text += "" if whole else ", for equally many samples"
    if samples and samples0 and samples > samples0 * 1.01:
        text += f"; it reads {times(samples / samples0)} the samples ({run.updates} updates of {run.global_batch})"
    if run.bubble_share:
        text += f"; {run.bubble_share:.0%} of each step is pipeline bubble"
    limit = limits.speedup
    kept = {"measured": speedup, "unit": "x", "limit": limit.bound(speedup), "limit_source": limit.source}
    if limit.judge(speedup) is Status.PASS:
        yield ok(text, where=at(job, *LAYOUT), **kept)
        return
    remedy = Remedy(text="Cut the updates as the batch grows, or give devices to the axis that shortens an update.")
    yield fail(NOT_SERVED, text, where=at(job, *LAYOUT), remedy=remedy, **kept)


def _ideal_time(run: JobNumbers) -> tuple[float, float | None] | None:
    """(time per sample in units of one rank's, samples of the whole run where known)."""
    bubble = run.bubble_share
    if bubble is None:
        return None
    samples = run.updates * run.global_batch if run.updates and run.global_batch else None
    return (run.seq_len or 1) / (run.world_size * (1 - bubble)), samples


GOALS: dict[str, Judge] = {
    "capacity": _capacity,
    "memory-fit": _capacity,
    "larger-batch": _larger_batch,
    "wall-clock": _wall_clock,
}
