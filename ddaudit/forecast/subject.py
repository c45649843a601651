"""What is forecast: a model, a layout to start from, and the batch, from a job file or from a measured run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ddaudit.errors import UsageProblem
from ddaudit.evidence.job import JobNumbers
from ddaudit.evidence.trace import Job
from ddaudit.forecast.layout import Layout, Schedule
from ddaudit.forecast.memory import States
from ddaudit.forecast.shape import Shape
from ddaudit.job.load import LoadedJob
from ddaudit.job.model import ModelShape
from ddaudit.job.numbers import numbers, state_bytes

__all__ = ["WIDTHS", "Subject", "from_job", "from_trace", "layout_of_kind"]

WIDTHS = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "bf16-mixed": 2, "fp16-mixed": 2}


@dataclass(frozen=True)
class Subject:
    """A training to forecast. ``width`` is bytes of a number in matrix products and on the wire."""

    name: str
    shape: Shape
    layout: Layout
    states: States
    width: int = 2
    rule: str | None = None
    warmup: float | None = None
    goal: str | None = None
    memory_bytes: float | None = None
    planned: bool = False


def from_job(loaded: LoadedJob) -> Subject:
    """The planned run of a job file. Its attention is taken not to keep scores, as fused kernels do.

    Raises:
        UsageProblem: the file lacks the model's shape, a batch, or the precision.
    """
    run, job = numbers(loaded.job), loaded.job
    _refuse_gaps(run, loaded.file)
    assert run.micro_batch and run.accumulation and run.precision
    parts = ("dp", "sharded", "zero_stage", "tp", "pp", "ep", "cp", "virtual_stages")
    shape = _shape(run, job.model)
    own: dict[str, Any] = {name: getattr(run, name) for name in parts}
    layout = Layout(**own, micro_batch=run.micro_batch, accumulation=run.accumulation, recompute="selective")
    memory = job.device_memory_gib
    return Subject(
        name=job.name or f"{shape.parameters:.3g} parameters",
        shape=shape,
        layout=layout,
        states=States(*state_bytes(job)),
        width=WIDTHS[run.precision],
        rule=run.rule,
        warmup=run.warmup_updates,
        goal=job.goal,
        memory_bytes=None if memory is None else memory * (1 << 30),
        planned=True,
    )


def _refuse_gaps(run: JobNumbers, file: str) -> None:
    wanted: dict[str, object] = {"model.layers": run.layers, "model.hidden": run.hidden, "model.heads": run.heads}
    wanted |= {"model.vocab": run.vocab, "seq_len": run.seq_len, "precision": run.precision}
    wanted |= {"micro_batch": run.micro_batch, "accumulation": run.accumulation}
    if absent := [name for name, value in wanted.items() if value is None]:
        raise UsageProblem(
            f"a forecast needs {', '.join(absent)}", where=file, fix="add these settings to the job file"
        )


def _shape(run: JobNumbers, model: ModelShape) -> Shape:
    assert run.layers and run.hidden and run.heads and run.vocab and run.seq_len
    return Shape(
        layers=run.layers,
        hidden=run.hidden,
        heads=run.heads,
        vocab=run.vocab,
        seq_len=run.seq_len,
        ffn=run.ffn or 0,
        kv_heads=run.kv_heads or 0,
        gated=model.gated,
        tied=model.tied_embeddings,
        experts=run.experts or 0,
    )


def from_trace(job: Job) -> Subject | None:
    """The training that a trace recorded; None where it does not tell the model's shape."""
    sizes = (job.layers, job.hidden, job.heads, job.vocab, job.seq_len, job.micro_batch, job.accumulation)
    if None in sizes or job.parallel is None:
        return None
    assert job.layers and job.hidden and job.heads and job.vocab and job.seq_len
    assert job.micro_batch and job.accumulation
    shape = Shape(job.layers, job.hidden, job.heads, job.vocab, job.seq_len, tied=False, experts=job.experts or 0)
    width = WIDTHS.get(job.dtype or "fp32", 4)
    start = Layout(micro_batch=job.micro_batch, accumulation=job.accumulation, sequence_parallel=False)
    layout = layout_of_kind(start, job.parallel, job.variant, job.world_size or 1)
    moments = 2 if job.optimizer == "adamw" else 0
    rule = "sqrt" if job.optimizer == "adamw" else "linear" if job.optimizer == "sgd" else None
    states = States(width, width, width * moments)
    name = f"{job.source} model, {job.parallel}"
    return Subject(name, shape, layout, states, width, rule, job.warmup_steps)


def layout_of_kind(start: Layout, kind: str, variant: str | None, ranks: int) -> Layout:
    """``start`` spread over ``ranks`` by one kind of parallelism, as the reference trainer does it."""
    stage = {"zero1": 1, "zero2": 2}.get(variant or "", 0)
    axes: dict[str, dict[str, Any]] = {
        "data": {"sharded": ranks, "zero_stage": stage} if stage else {"dp": ranks},
        "sharded": {"sharded": ranks},
        "tensor": {"tp": ranks, "sequence_parallel": variant == "sequence-parallel"},
        "pipeline": {"pp": ranks, **({"virtual_stages": 2} if variant == "interleaved" else {})},
        "expert": {"dp": ranks, "ep": ranks},
        "context": {"cp": ranks},
        "hsdp": {"dp": ranks // 2, "sharded": 2} if ranks % 2 == 0 else {"sharded": ranks},
        "fsdp-tp": {"sharded": ranks // 2, "tp": 2} if ranks % 2 == 0 else {"sharded": ranks},
    }
    schedule: Schedule = "gpipe" if variant == "gpipe" else "interleaved" if variant == "interleaved" else "1f1b"
    return replace(start, schedule=schedule, **axes.get(kind, {}))
