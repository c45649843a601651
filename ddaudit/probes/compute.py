"""The ``compute`` probe: FLOPs of a step, counted and by formula, against what matrix products reach here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.evidence.costs import ComputeCosts, MatmulRate
from ddaudit.registry import probe

__all__ = ["ComputeParams", "compute"]

#: Edge of square products, and of products with a thin side, by device: a device needs large ones to show its rate.
EDGES = {"cpu": (128, 256), "cuda": (1024, 4096, 8192)}
THIN = {"cpu": 16, "cuda": 128}


class ComputeParams(BaseModel):
    """``samples`` is the micro-batch. ``recompute`` runs every forward pass twice, on purpose: more FLOPs than the
    formula knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: Literal["tiny", "small", "medium", "large"] = "small"
    dtype: Literal["fp32", "bf16", "fp64"] = "fp32"
    samples: int = Field(4, ge=1, le=4096)
    repeats: int = Field(5, ge=1, le=1000)
    recompute: bool = False


@probe("compute", produces=(ComputeCosts,), params=ComputeParams, where="ranks")
def compute(context: ProbeContext, params: ComputeParams) -> None:
    """Counts one forward and backward pass with FlopCounterMode, times several, and times matrix products by shape.
    The counter is a dispatch mode and slow: it never runs inside a timed pass. Rank 0 speaks for all."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from ddaudit.probes._model_step import ModelStep, median_s
    from ddaudit.training.params import TrainParams

    step = ModelStep.of(context, TrainParams(preset=params.preset, dtype=params.dtype))
    if step.device.type == "cpu" and params.preset == "tiny":
        torch.set_num_threads(1)  # as the trainer does, so that MFU compares one thread with one
    # The counter does not know every fused attention (the CPU's is one): as plain products all of it is counted.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        if params.recompute:
            step.loss(params.samples)
        step.passes(params.samples)
    seconds = median_s(step.device, lambda: step.passes(params.samples), params.repeats)
    tokens = params.samples * step.shape.seq_len
    if context.rank != 0:
        return
    context.events.emit_evidence(
        ComputeCosts(
            host=context.host,
            device=str(step.device),
            dtype=params.dtype,
            tokens=tokens,
            counted_flops=float(counter.get_total_flops()),
            formula_flops=step.shape.flops_per_token() * tokens,
            seconds=seconds,
            matmuls=tuple(_matmuls(context, params)),
        )
    )


def _matmuls(context: ProbeContext, params: ComputeParams) -> list[MatmulRate]:
    """Rates of square and thin products in the dtype that the model computes in."""
    import torch

    from ddaudit.device import device_of
    from ddaudit.probes._model_step import median_s

    device = device_of(context.device, context.local_rank)
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
    rates = []
    for edge in EDGES[device.type]:
        for m in (edge, THIN[device.type]):
            left = torch.ones(m, edge, dtype=kinds[params.dtype], device=device)
            right = torch.ones(edge, edge, dtype=kinds[params.dtype], device=device)
            seconds = median_s(device, lambda a=left, b=right: a @ b, params.repeats)  # type: ignore[misc]
            rates.append(MatmulRate(m=m, k=edge, n=edge, flops_per_s=2.0 * m * edge * edge / seconds))
    return rates
