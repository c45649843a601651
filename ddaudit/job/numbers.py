"""From the settings of a job file to its numbers: batch, epochs, warm-up, memory. Arithmetic only."""

from __future__ import annotations

import math
from typing import Any, Literal

from ddaudit.evidence.job import JobNumbers, JobPlan, MemoryFloor
from ddaudit.job.load import LoadedJob
from ddaudit.job.model import Layout, ModelShape, RunSettings

__all__ = ["SHARED", "job_plan", "memory_floor", "numbers", "state_bytes"]

GIB = 1 << 30

#: What a baseline that leaves it out shares with the plan: facts of data and model, never of batch or schedule.
SHARED = ("seq_len", "dataset_samples", "drop_last", "last_window", "optimizer", "momentum", "precision", "model")

Rule = Literal["linear", "sqrt"]

#: Optimizer -> (how its learning rate follows the batch, numbers of state per parameter).
#: Linear: Goyal et al. 2017 (SGD), You et al. 2017 (LARS). Square root: Malladi et al. 2022 (Adam, RMSprop), You et al.
#: 2020 (LAMB). Where neither is published the rule is None, and no check guesses one.
OPTIMIZERS: dict[str, tuple[Rule | None, int]] = {
    "sgd": ("linear", 0),
    "lars": ("linear", 1),
    "adam": ("sqrt", 2),
    "adamw": ("sqrt", 2),
    "adamax": ("sqrt", 2),
    "nadam": ("sqrt", 2),
    "radam": ("sqrt", 2),
    "lamb": ("sqrt", 2),
    "rmsprop": ("sqrt", 1),
    "adagrad": (None, 1),
    "lion": (None, 1),
    "muon": (None, 1),
}

#: Precision -> bytes per parameter of weight, gradient, float32 master copy, and of one number of optimizer state.
PRECISIONS: dict[str, tuple[int, int, int, int]] = {
    "fp64": (8, 8, 0, 8),
    "fp32": (4, 4, 0, 4),
    "bf16": (2, 2, 0, 2),
    "fp16": (2, 2, 0, 2),
    "bf16-mixed": (2, 2, 4, 4),
    "fp16-mixed": (2, 2, 4, 4),
}


def job_plan(loaded: LoadedJob) -> JobPlan:
    """The evidence that a job file is."""
    job = loaded.job
    baseline = None
    if job.has_baseline:
        absent = [name for name in SHARED if name not in job.baseline.model_fields_set]
        baseline = numbers(job.baseline.model_copy(update={name: getattr(job, name) for name in absent}))
    memory = job.device_memory_gib
    return JobPlan(
        file=loaded.file,
        name=job.name,
        goal=job.goal,
        device_memory_bytes=None if memory is None else memory * GIB,
        planned=numbers(job),
        baseline=baseline,
        lines=loaded.lines,
    )


def numbers(run: RunSettings) -> JobNumbers:
    """Every number of one run that its settings give."""
    layout, shape = run.layout, run.model
    replicas = layout.data_ranks
    batch = _batch(run, replicas)
    epoch = _epoch(run, replicas, batch)
    parameters = float(shape.parameters) if shape.parameters else _parameters(shape)
    rule, _ = OPTIMIZERS.get(_plain(run.optimizer), (None, 0))
    same = ("seq_len", "dataset_samples", "drop_last", "last_window", "optimizer", "lr", "schedule", "precision")
    sizes = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts")
    return JobNumbers(
        world_size=replicas * layout.tp * layout.pp * layout.cp,
        world_size_claimed=layout.world_size,
        dp=replicas // layout.sharded,
        replicas=replicas,
        **{name: getattr(layout, name) for name in ("sharded", "zero_stage", "tp", "pp", "ep", "cp", "virtual_stages")},
        **batch,
        **epoch,
        **_warmup(run, batch),
        **{name: getattr(run, name) for name in same},
        **{name: getattr(shape, name) for name in sizes},
        rule=rule,
        decay_updates=run.decay_steps,
        parameters=parameters,
        parameters_estimated=shape.parameters is None and parameters is not None,
        memory=memory_floor(run, parameters),
    )


def _plain(optimizer: str | None) -> str:
    """``torch.optim.AdamW`` -> ``adamw``."""
    return (optimizer or "").rpartition(".")[2].lower().replace("-", "").replace("_", "")


def _batch(run: RunSettings, replicas: int) -> dict[str, Any]:
    """N * B_local * A: two of micro-batch, accumulation and global batch give the third where it is whole."""
    local, passes, claimed = run.micro_batch, run.accumulation, run.global_batch
    if local and passes is None:
        if claimed is not None:
            passes = claimed // (replicas * local) if claimed % (replicas * local) == 0 else None
        elif run.layout.pp == 1:
            passes = 1  # no accumulation unless the file says so; a pipeline always has micro-batches
    elif passes and local is None and claimed is not None and claimed % (replicas * passes) == 0:
        local = claimed // (replicas * passes)
    total = replicas * local * passes if local and passes else None
    return {
        "micro_batch": local,
        "accumulation": passes,
        "global_batch": total,
        "global_batch_claimed": claimed,
        "tokens_per_update": total * run.seq_len if total and run.seq_len else None,
    }


def _epoch(run: RunSettings, replicas: int, batch: dict[str, Any]) -> dict[str, Any]:
    """Micro-batches, updates and left-overs of one epoch, as torch's DistributedSampler and DataLoader cut it.

    The sampler gives each replica floor(D / N) samples with ``drop_last`` and ceil(D / N) without (some samples twice);
    the loader makes floor or ceil of that over B_local micro-batches; A of them make one update. Samples of a short
    last window count as read unless the file says that it is dropped.
    """
    found: dict[str, Any] = {"updates": run.steps, "epochs": run.epochs}
    local, passes, samples = batch["micro_batch"], batch["accumulation"], run.dataset_samples
    if not (local and passes and samples):
        return found
    if run.drop_last is False:
        micro_batches = math.ceil(math.ceil(samples / replicas) / local)
    else:
        micro_batches = samples // replicas // local
    windows, rest = divmod(micro_batches, passes)
    stepped = run.last_window in ("rescale", "step-as-full")
    updates = windows + (1 if rest and stepped else 0)
    kept = windows * passes if run.last_window == "drop" else micro_batches
    read = kept * local * replicas
    found |= {
        "micro_batches_per_epoch": micro_batches,
        "updates_per_epoch": updates,
        "left_over_micro_batches": rest,
        "unread_samples": max(0, samples - read),
    }
    if updates and run.epochs is not None:
        found["updates"] = math.floor(run.epochs * updates)
    elif updates and run.steps is not None:
        found["epochs"] = run.steps / updates
    return found


def _warmup(run: RunSettings, batch: dict[str, Any]) -> dict[str, Any]:
    """Warm-up in updates and in tokens, whichever the file gives."""
    steps, tokens, each = run.warmup_steps, run.warmup_tokens, batch["tokens_per_update"]
    if steps is not None:
        return {"warmup_updates": float(steps), "warmup_tokens": float(steps) * each if each else None}
    if tokens is not None:
        return {"warmup_tokens": float(tokens), "warmup_updates": tokens / each if each else None}
    return {}


def _block(shape: ModelShape) -> tuple[float, float] | None:
    """Parameters of one transformer block: (attention, one feed-forward network); biases and norms are left out.

    Attention has 2 h^2 for query and output and 2 h^2 * kv/heads for key and value; a feed-forward network has two
    matrices of h * ffn, three when gated. With ffn = 4 h that is the 12 h^2 of Narayanan et al. 2021.
    """
    if not shape.hidden:
        return None
    shared = shape.kv_heads / shape.heads if shape.kv_heads and shape.heads else 1.0
    ffn = shape.ffn or 4 * shape.hidden
    return 2 * shape.hidden**2 * (1 + shared), (3 if shape.gated else 2) * shape.hidden * ffn


def _parameters(shape: ModelShape) -> float | None:
    """L blocks, and vocab * hidden once or twice; None when the shape does not give them."""
    block = _block(shape)
    if block is None or not shape.layers or not shape.vocab or not shape.hidden:
        return None
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied_embeddings else 2)
    return shape.layers * (block[0] + block[1] * (shape.experts or 1)) + embeddings


def memory_floor(run: RunSettings, parameters: float | None) -> MemoryFloor | None:
    """Bytes of parameters, gradients and optimizer states of one rank (mean over pipeline stages).

    Rajbhandari et al. 2020 (ZeRO), section 3.1 and figure 1: mixed-precision Adam takes 2 + 2 + 12 bytes a parameter;
    stage 1 divides the 12, stage 2 gradients as well, stage 3 everything by the sharding degree. Tensor and pipeline
    parallelism divide the parameters themselves; experts are divided by ``ep``, and sharded over the ranks that remain.
    """
    if parameters is None or run.precision is None:
        return None
    layout = run.layout
    experts = min(_expert_parameters(run.model), parameters)
    dense = (parameters - experts) / (layout.tp * layout.pp)
    routed = experts / (layout.tp * layout.pp * layout.ep)
    parts = [(dense, layout.sharded), (routed, max(1, layout.sharded // layout.ep))]
    weight, gradient, optimizer = state_bytes(run)

    def held(width: int, stage: int) -> float:
        """Bytes of ``width`` per parameter, sharded from this ZeRO stage on."""
        return sum(width * count / (over if layout.zero_stage >= stage else 1) for count, over in parts)

    return MemoryFloor(
        parameters=dense + routed,
        weights_bytes=held(weight, 3),
        gradients_bytes=held(gradient, 2),
        optimizer_bytes=held(optimizer, 1),
        gathered_bytes=_gathered(run.model, layout, weight),
    )


def state_bytes(run: RunSettings) -> tuple[int, int, int]:
    """Bytes per parameter of weights, gradients and optimizer (master copy and moments); needs ``precision``."""
    assert run.precision is not None
    weight, gradient, master, moment = PRECISIONS[run.precision]
    states = OPTIMIZERS.get(_plain(run.optimizer), (None, 0))[1]
    if _plain(run.optimizer) == "sgd" and run.momentum:
        states = 1
    return weight, gradient, master + moment * states


def _expert_parameters(shape: ModelShape) -> float:
    block = _block(shape)
    if block is None or not shape.experts or not shape.layers:
        return 0.0
    return shape.layers * shape.experts * block[1]


def _gathered(shape: ModelShape, layout: Layout, weight: int) -> float:
    block = _block(shape)
    if block is None or layout.sharded == 1 or layout.zero_stage < 3:
        return 0.0
    experts = max(1.0, (shape.experts or 1) / layout.ep)
    return weight * (block[0] + block[1] * experts) / layout.tp
