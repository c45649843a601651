"""The ``memory`` probe: a rank's memory counted tensor by tensor, and what recomputing activations trades."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.evidence.costs import MemoryCosts, MemoryTrade
from ddaudit.registry import probe

if TYPE_CHECKING:
    import torch

    from ddaudit.probes._model_step import ModelStep

__all__ = ["MemoryParams", "memory"]

RECOMPUTE = ("none", "selective", "full")
ADAM_STATES, STEP_BYTES = 2, 4


class MemoryParams(BaseModel):
    """Activations are counted at ``samples`` and at twice as many. ``copies`` keeps further copies of the parameters
    in the optimizer's state, on purpose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: Literal["tiny", "small", "medium", "large"] = "small"
    samples: int = Field(2, ge=1, le=4096)
    repeats: int = Field(5, ge=1, le=1000)
    copies: int = Field(0, ge=0, le=4)


@probe("memory", produces=(MemoryCosts,), params=MemoryParams, where="ranks")
def memory(context: ProbeContext, params: MemoryParams) -> None:
    """Counts parameters, gradients and AdamW's state, the activations of two micro-batch sizes, and times passes with
    activations kept, partly recomputed (attention) and all recomputed (whole blocks). Rank 0 speaks for all."""
    from ddaudit.probes._model_step import ModelStep
    from ddaudit.training.optimizer import build
    from ddaudit.training.params import TrainParams

    train = TrainParams(preset=params.preset)
    step = ModelStep.of(context, train)
    weights = list(step.model.parameters())
    optimizer = build(train, weights)
    step.loss(params.samples).backward()  # type: ignore[no-untyped-call]
    gradients = sum(_bytes(w.grad) for w in weights if w.grad is not None)
    optimizer.step()
    for copy in range(params.copies):
        for weight in weights:
            optimizer.state[weight][f"copy{copy}"] = weight.detach().clone()
    state = sum(_bytes(v) for s in optimizer.state.values() for v in s.values() if hasattr(v, "nbytes"))
    optimizer.zero_grad(set_to_none=True)
    parameters, count = sum(map(_bytes, weights)), sum(w.numel() for w in weights)
    size = weights[0].element_size()
    sizes = (params.samples, 2 * params.samples)
    activations = {samples: _activations(step, samples) for samples in sizes}
    trades = tuple(_trade(step, kind, params) for kind in RECOMPUTE)
    if context.rank == 0:
        costs = MemoryCosts(
            host=context.host,
            device=str(step.device),
            parameter_bytes=parameters,
            gradient_bytes=gradients,
            optimizer_bytes=state,
            predicted_state_bytes=count * size * (2 + ADAM_STATES) + STEP_BYTES * len(weights),
            activations=activations,
            trades=trades,
            **_process(step.device, parameters + state),
        )
        context.events.emit_evidence(costs)


def _bytes(tensor: Any) -> int:
    return int(tensor.nbytes)


def _process(device: torch.device, known: int) -> dict[str, int | None]:
    """What the system and the allocator say of this process; ``other`` is resident beyond the tensors on a CPU."""
    process = psutil.Process()
    resident = process.memory_info().rss
    found: dict[str, int | None] = {
        "resident_bytes": resident,
        "proportional_bytes": _proportional(),
        "available_bytes": psutil.virtual_memory().available,
        "other_bytes": max(0, resident - known) if device.type == "cpu" else None,
    }
    if device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        found |= {"allocated_bytes": allocated, "reserved_bytes": reserved, "available_bytes": free}
        found["other_bytes"] = max(0, allocated - known)
    return found


def _proportional() -> int | None:
    """PSS: pages that processes share count in parts. None where the kernel does not say."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text("ascii", "replace").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _activations(step: ModelStep, samples: int) -> int:
    """Bytes that a forward pass keeps for its backward pass, each storage counted once, parameters left out."""
    import torch

    own = {w.untyped_storage().data_ptr() for w in step.model.parameters()}
    kept: dict[int, int] = {}
    held: list[torch.Tensor] = []  # a storage that were freed in the pass could come again under the same address

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step.loss(samples)
    del loss
    return sum(kept.values())


def _trade(step: ModelStep, kind: str, params: MemoryParams) -> MemoryTrade:
    from ddaudit.probes._model_step import median_s

    with _recomputing(step, kind):
        size = _activations(step, params.samples)
        seconds = median_s(step.device, lambda: step.passes(params.samples), params.repeats)
    return MemoryTrade(recompute=kind, activation_bytes=size, seconds=seconds)


@contextmanager
def _recomputing(step: ModelStep, kind: str) -> Iterator[None]:
    """Wraps attention (selective) or whole blocks (full) in activation checkpointing."""
    from torch.utils.checkpoint import checkpoint

    blocks: list[Any] = list(step.model.blocks.values())
    modules = {"none": [], "selective": [b.attention for b in blocks], "full": blocks}[kind]

    def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: checkpoint(forward, *given, use_reentrant=False)

    for module in modules:
        module.forward = wrapped(module.forward)
    try:
        yield
    finally:
        for module in modules:
            del module.forward
