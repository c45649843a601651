"""The faults that can be planted into the reference training, and where each can occur. No torch.

A plant is a real wrong computation in the real training path (``planting.py`` does it), so that a check which catches
it has caught the fault itself and not a marker of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddaudit.errors import UsageProblem
from ddaudit.registry import suggest

__all__ = ["FAULTS", "Fault", "applicable", "params_for", "require"]

KINDS = ("single", "data", "sharded", "tensor", "pipeline", "expert", "context", "fsdp-tp", "hsdp")
MANY = tuple(k for k in KINDS if k != "single")
REPLICAS = ("data", "sharded", "expert", "fsdp-tp", "hsdp")
"""Kinds with several data-parallel replicas."""


ACCUMULATED = {"accumulation": 2}
SAVED = {"checkpoint": "end"}
RESUMED = {"resume_from": "scratch/saved/step-3"}
ZERO1 = "ZeroRedundancyOptimizer checks the parameters it is given"


@dataclass(frozen=True)
class Fault:
    """One plant: what it does, the kinds where it can occur, and why not elsewhere. ``forms`` narrows a kind to
    variants (a kind that is not named there has the fault in all of them). ``params`` are training parameters without
    which the fault would change nothing."""

    what: str
    kinds: tuple[str, ...] = KINDS
    reason: str = ""
    forms: Callable[[str, str], bool] = lambda parallel, form: True
    forms_reason: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)


def _not_zero1(parallel: str, form: str) -> bool:
    return form != "zero1"


def _sequence(parallel: str, form: str) -> bool:
    return parallel != "tensor" or form == "sequence-parallel"


def _not_zero2(parallel: str, form: str) -> bool:
    return form != "zero2"


FAULTS: dict[str, Fault] = {
    "grad-sum": Fault(
        "gradients are summed over the replicas instead of averaged", REPLICAS, "no gradient is averaged over replicas"
    ),
    "param-unsynced": Fault(
        "one parameter's gradient is never synchronised",
        (*REPLICAS, "tensor", "context"),
        "no gradient is synchronised between ranks",
        _sequence,
        "replicated gradients are equal by construction; see tp-reduce-skipped",
    ),
    "accum-undivided": Fault("micro-batch losses are not divided by the accumulation", params=ACCUMULATED),
    "accum-double-divided": Fault("micro-batch losses are divided by the accumulation twice", params=ACCUMULATED),
    "mean-of-means": Fault(
        "each micro-batch's own mean is averaged, whatever its token count", params={**ACCUMULATED, "ragged": True}
    ),
    "same-shard": Fault("all replicas read the first replica's samples", REPLICAS, "all ranks read the same samples"),
    "sync-every-micro-step": Fault(
        "gradients are synchronised at every micro-batch",
        ("data", "sharded", "fsdp-tp", "hsdp"),
        "no gradient is synchronised while micro-batches run",
        params=ACCUMULATED,
    ),
    "sync-skipped-step": Fault(
        "gradients are not synchronised in update 1",
        ("data", "expert", "context"),
        "an update has nothing to apply before gradients were synchronised",
        _not_zero2,
        "a sharded gradient exists only once it was reduced",
    ),
    "tp-reduce-skipped": Fault(
        "one row-parallel layer leaves its partial sums unreduced", ("tensor", "fsdp-tp"), "no layer is split by rows"
    ),
    "replica-drift": Fault(
        "one replicated parameter drifts on the last rank",
        ("data", "tensor", "expert", "context", "hsdp", "fsdp-tp"),
        "no parameter has a second copy",
        _not_zero2,
        "no parameter has a second copy",
    ),
    "init-differs": Fault(
        "one replicated parameter starts with other values on the last rank",
        ("data", "tensor", "expert", "context", "hsdp", "fsdp-tp"),
        "no parameter has a second copy",
        _not_zero2,
        "no parameter has a second copy",
    ),
    "micro-batches-swapped": Fault(
        "the last stage swaps the targets of two micro-batches", ("pipeline",), "inputs and targets travel together"
    ),
    "micro-batch-dropped": Fault(
        "the last stage leaves one micro-batch's loss out", ("pipeline",), "no stage loses a micro-batch in transit"
    ),
    "zero-grad-missed": Fault("gradients of update 0 are not cleared before update 1"),
    "expert-token-dropped": Fault("one expert ignores its last token", ("expert",), "the model has no experts"),
    "expert-undivided": Fault(
        "expert gradients are not divided by the number of replicas", ("expert",), "the model has no experts"
    ),
    "context-mask-off-by-one": Fault(
        "attention across sequence slices sees one position ahead", ("context",), "the sequence is not split"
    ),
    "accum-count-differs": Fault(
        "the last replica accumulates one micro-batch less",
        ("data",),
        "ranks meet in every forward pass, so a missing one would hang them",
        _not_zero2,
        "ranks meet in every forward pass, so a missing one would hang them",
        ACCUMULATED,
    ),
    "lr-per-micro-batch": Fault("the scheduler ticks once per micro-batch", params=ACCUMULATED),
    "lr-differs": Fault("the last rank uses a learning rate 10 % higher", MANY, "there is one rank"),
    "no-reshuffle": Fault("every epoch uses the order of the first", params={"dataset_samples": 64}),
    "init-scaled": Fault("the output head starts 50 times too wide"),
    "grad-vanishing": Fault("gradients are scaled down by 1e12"),
    "loss-nan": Fault("a gradient becomes NaN in update 2"),
    "loss-flat": Fault("the learning rate is zero"),
    "loss-diverged": Fault("the learning rate is 100 times too high"),
    "loss-spike": Fault("the targets of one update, two thirds on, are garbled"),
    "loss-below-entropy": Fault("the model is shown the targets as inputs"),
    "optimizer-empty": Fault("the optimizer holds no parameter", forms=_not_zero1, forms_reason=ZERO1),
    "optimizer-stale": Fault("the optimizer holds copies of the parameters", forms=_not_zero1, forms_reason=ZERO1),
    "clip-before-sync": Fault(
        "gradients are clipped before they are synchronised",
        ("data", "expert", "context"),
        "gradients are not whole on any rank before they are synchronised",
        _not_zero2,
        "gradients are not whole on any rank before they are synchronised",
        {"clip_norm": 0.1},
    ),
    "no-warmup": Fault("the warm-up that the job claims is left out"),
    "slow-input": Fault("every sample takes 5 ms longer to read"),
    "slow-input-rank": Fault("the last rank waits 50 ms longer for the data of each update"),
    "slow-rank": Fault("the last rank computes 50 ms longer in each update", MANY, "there is one rank"),
    "slow-compute": Fault("all ranks compute 50 ms longer in each update"),
    "slow-collective": Fault(
        "one all-reduce of each update takes 50 ms longer on the wire", MANY, "one rank has no peers to reduce with"
    ),
    "late-launch": Fault("the host works for 50 ms before it launches the forward pass"),
    "slow-link": Fault(
        "each bucket of gradients takes as long on the wire as its bytes take on a slow link, 50 ms for all of them",
        ("data",),
        "gradients are not reduced in buckets",
        _not_zero2,
        "gradients are not reduced in buckets",
    ),
    "slow-rank-blocked": Fault("the last rank's device takes 50 ms longer in each update", MANY, "there is one rank"),
    "lateness-roams": Fault("the ranks take turns in being 50 ms late", MANY, "there is one rank"),
    "host-work-on-rank0": Fault("rank 0 does 50 ms of work of its own in each update", MANY, "there is one rank"),
    "forced-sync": Fault("ranks meet 200 times an update to average metrics", MANY, "there is one rank"),
    "stage-imbalance": Fault("the last stage computes 50 ms longer", ("pipeline",), "the model has no stages"),
    "expert-imbalance": Fault(
        "all tokens go to the experts of the last rank, which work 50 ms for them", ("expert",), "there are no experts"
    ),
    "sequence-imbalance": Fault(
        "the last replica reads the long samples and computes 50 ms for them",
        ("data",),
        "all ranks read the same samples, or an imbalance would look the same",
        params={"ragged": True},
    ),
    "slow-storage": Fault("workers wait 5 ms for each sample", params={"num_workers": 1}),
    "slow-decode": Fault("workers compute 5 ms for each sample", params={"num_workers": 1}),
    "bursty-workers": Fault("every second batch takes 100 ms longer to load", params={"num_workers": 2}),
    "worker-respawn": Fault("loader workers are started anew every few updates", params={"num_workers": 1}),
    "worker-storm": Fault("every loader worker computes with many threads", params={"num_workers": 2}),
    "thread-storm": Fault("every rank computes with many more threads than cores", params={"preset": "small"}),
    "gc-uncoordinated": Fault("ranks collect garbage in turns, 50 ms each time"),
    "memory-growth": Fault("2 MB are kept of every update"),
    "memory-pressure": Fault("every update takes fresh memory from the system and gives it back"),
    "core-contended": Fault("other processes compute on every core"),
    "core-shared": Fault("another process computes on the core of the last rank", MANY, "there is one rank"),
    "cpu-quota": Fault("a CPU quota of its cgroup holds the last rank back", MANY, "there is one rank"),
    "item-now-and-then": Fault("nothing is wrong: the loss is read as a number once in 100 updates"),
    "cold-cache": Fault("nothing is wrong: samples take 4 ms longer when they are read for the first time"),
    "untimed-work": Fault("50 ms of each update pass outside every timer"),
    "rng-identical": Fault(
        "all replicas draw the same random numbers", REPLICAS, "there is one replica, whose ranks must draw alike"
    ),
    "resume-sampler-ignored": Fault("a resumed run reads its data from the start", params=RESUMED),
    "resume-schedule-reset": Fault("a resumed run starts its schedule anew", params=RESUMED),
    "resume-optimizer-reset": Fault("a resumed run forgets the optimizer's moments", params=RESUMED),
    "ckpt-no-sampler": Fault("the checkpoint leaves the sampler's position out", params=SAVED),
    "ckpt-no-scheduler": Fault("the checkpoint leaves the schedule out", params=SAVED),
    "ckpt-no-rng": Fault("the checkpoint leaves the random states out", params=SAVED),
    "ckpt-no-step": Fault("the checkpoint leaves the global step out", params=SAVED),
    "ckpt-no-optimizer": Fault("the checkpoint leaves the optimizer out", params=SAVED),
    "ckpt-no-optimizer-shard": Fault(
        "the last rank's optimizer shard is never written",
        MANY,
        "there is one rank; see ckpt-no-optimizer",
        params=SAVED,
    ),
}


def applicable(plant: str, parallel: str, variant: str = "") -> str | None:
    """None where the plant can occur, else the reason why it cannot, for a matrix cell: ``n/a for tensor: ...``.

    Raises:
        UsageProblem: no plant has that name.
    """
    from ddaudit.training.params import VARIANTS

    if plant not in FAULTS:
        raise UsageProblem(f"no plant is called {plant!r}", fix=suggest(plant, FAULTS))
    fault, form = FAULTS[plant], variant or VARIANTS[parallel][0]
    if parallel not in fault.kinds:
        return f"n/a for {parallel}: {fault.reason}"
    if not fault.forms(parallel, form):
        return f"n/a for {parallel} ({form}): {fault.forms_reason}"
    return None


def params_for(plant: str, parallel: str) -> dict[str, Any]:
    """Training parameters without which the plant would change nothing, for a matrix cell. A pipeline accumulates
    anyway, and as many micro-batches as its schedule likes."""
    needed = dict(FAULTS[plant].params)
    if parallel == "pipeline":
        needed.pop("accumulation", None)
    return needed


def require(plant: str, parallel: str, variant: str) -> None:
    """Raises UsageProblem where the plant cannot occur."""
    if (reason := applicable(plant, parallel, variant)) is not None:
        raise UsageProblem(f"plant {plant!r} is {reason}")
