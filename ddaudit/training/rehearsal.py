"""Plans of large worlds, tried in one process: mesh, batch and shards of rank 0 on torch's fake process group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from ddaudit.errors import UsageProblem
from ddaudit.training.params import TrainParams, geometry

__all__ = ["Rehearsal", "rehearse"]

MAX_WORLD = 16_384


@dataclass(frozen=True)
class Rehearsal:
    """One training step at ``world_size`` ranks. ``problem`` says why it does not fit; ``shard_bytes`` are rank 0's
    parameters where its kind shards them, ``whole_bytes`` those of the whole model, both as they are kept.
    ``slots`` are the optimizer's tensors per parameter, None where it shards them by itself."""

    step: str
    parallel: str
    world_size: int
    axes: Mapping[str, int]
    replicas: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    whole_bytes: int | None = None
    shard_bytes: int | None = None
    slots: int | None = None
    problem: str | None = None

    @property
    def rank_bytes(self) -> int | None:
        """Parameters, gradients and optimizer state of rank 0, activations not counted; None where what a rank holds
        is not worked out (kinds that cut the model itself, and states that are sharded without the parameters)."""
        held = self.shard_bytes if self.parallel in ("sharded", "hsdp") else self.whole_bytes
        if held is None or self.parallel not in ("single", "data", "sharded", "hsdp") or self.slots is None:
            return None
        return held * (2 + self.slots)


def rehearse(steps: Sequence[tuple[str, Mapping[str, Any]]], world_size: int) -> list[Rehearsal]:
    """Tries each (step id, parameters of the train probe) at ``world_size`` ranks. Imports torch; sends nothing.

    The global batch is rounded up to one micro-batch for every replica and pass, as a user would have to.
    """
    if not 2 <= world_size <= MAX_WORLD:
        raise UsageProblem(f"--world-size {world_size}", expected=f"2 to {MAX_WORLD}")
    with _fake_world(world_size):
        return [_one(id, params, world_size) for id, params in steps]


@contextmanager
def _fake_world(world_size: int) -> Iterator[None]:
    """A process group whose collectives return at once; rank 0 of many."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _one(id: str, given: Mapping[str, Any], world_size: int) -> Rehearsal:
    try:
        params = TrainParams.model_validate(dict(given))
    except ValidationError as error:
        return Rehearsal(id, "?", world_size, {}, problem=str(error.errors()[0]["msg"]))
    params = _grown(params, world_size)
    blank = Rehearsal(id, params.parallel, world_size, {})
    try:
        layout = geometry(params, world_size)
        _refuse_model(params, layout.axes)
        mesh = _mesh(layout.axes)
    except (UsageProblem, RuntimeError, ValueError) as error:
        return replace(blank, problem=str(error).partition("\n")[0])
    whole, shard = _bytes(params, mesh)
    return replace(
        blank,
        axes=layout.axes,
        replicas=layout.dp,
        micro_batch=layout.micro_batch,
        accumulation=layout.accumulation,
        global_batch=params.global_batch,
        whole_bytes=whole,
        shard_bytes=shard,
        slots=None if params.form.startswith("zero") else 2 if params.optimizer == "adamw" else 0,
    )


def _refuse_model(params: TrainParams, axes: Mapping[str, int]) -> None:
    """Refuses what the model itself cannot be cut into."""
    from ddaudit.training.model import shape_of

    shape = shape_of(params)
    cuts = (("tp", "heads", shape.heads), ("pp", "layers", shape.layers), ("cp", "positions", shape.seq_len))
    for axis, what, extent in cuts:
        if extent % axes.get(axis, 1):
            raise UsageProblem(f"{extent} {what} cannot be split over {axes[axis]} {axis} ranks")


def _grown(params: TrainParams, world_size: int) -> TrainParams:
    """With a global batch, and data for it, that divide among so many ranks."""
    passes = params.accumulation or (4 if params.parallel == "pipeline" else 2 if params.form == "accumulate" else 1)
    unit = world_size * passes * (params.micro_batch or 1)
    batch = -(-params.global_batch // unit) * unit
    return params.model_copy(update={"global_batch": batch, "dataset_samples": max(params.dataset_samples, batch)})


def _mesh(axes: Mapping[str, int]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


def _bytes(params: TrainParams, mesh: Any) -> tuple[int, int | None]:
    """Parameter bytes of the model, and of rank 0's FSDP2 shard; None for kinds that do not shard by it."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    from ddaudit.training.model import DTYPES, Transformer, shape_of

    item = DTYPES[params.dtype].itemsize  # bf16 computes in it, and keeps its parameters in fp32
    with torch.device("meta"):
        model = Transformer(shape_of(params))
    whole = sum(p.numel() for p in model.parameters()) * item
    if params.parallel not in ("sharded", "hsdp"):
        return whole, None
    fully_shard(model, mesh=mesh)
    shard = sum(p.to_local().numel() for p in model.parameters() if isinstance(p, DTensor))
    return whole, shard * item
