"""Where a rank stands: host, mesh coordinates, and the kind of parallelism, by what its parameters are."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ddaudit.watch.recorder import Recorder

__all__ = ["parallelism", "place"]


def _is_fsdp(recorder: Recorder) -> bool:
    names = {k.__name__ for root in recorder.models.roots.values() for m in root.modules() for k in type(m).__mro__}
    return "FSDPModule" in names or "FullyShardedDataParallel" in names


def _mesh(recorder: Recorder) -> Any:
    primary = recorder.primary
    items = primary.parameters.items if primary is not None else []
    return max(
        (m for p in items if (m := getattr(p, "device_mesh", None)) is not None), key=lambda m: m.ndim, default=None
    )


def coordinates(recorder: Recorder, rank: int) -> dict[str, int]:
    """Mesh coordinates. "dp" is set where ranks are known to see different data, "shard" where they hold parts."""
    mesh = _mesh(recorder)
    if mesh is None:
        return {"dp": rank} if recorder.models.wrapped else {}
    names = mesh.mesh_dim_names or tuple(f"dim{i}" for i in range(mesh.ndim))
    at = dict(zip(names, (int(x) for x in mesh.get_coordinate() or [0] * mesh.ndim), strict=True))
    if _is_fsdp(recorder) and mesh.ndim == 1:
        return {"dp": rank, "shard": rank}
    return {**at, "shard": rank}


def place(recorder: Recorder, rank: int) -> dict[str, Any]:
    """The ``rank`` event's place."""
    primary = recorder.primary
    first = primary.parameters.items[0] if primary is not None and primary.parameters.items else None
    device = "cpu" if first is None else str(first.device)
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return {"rank": rank, "host": host, "pid": os.getpid(), "device": device, "coords": coordinates(recorder, rank)}


def parallelism(recorder: Recorder, world: int) -> dict[str, Any]:
    """The ``job`` event: what can be seen of the job when its first update begins."""
    mesh, fsdp = _mesh(recorder), _is_fsdp(recorder)
    kind = "data" if recorder.models.wrapped else "sharded" if fsdp else "tensor" if mesh is not None else None
    if world == 1:
        kind = "single"
    primary = recorder.primary
    assert primary is not None or not recorder.windows
    group = primary.optimizer.param_groups[0] if primary is not None else {}
    flat = kind in ("data", "single") or (kind == "sharded" and mesh is not None and mesh.ndim == 1)
    found = {
        "source": "script",
        "parallel": kind or ("unknown" if torch.distributed.is_available() else "single"),
        "world_size": world,
        "dp": world if flat else None,
        "optimizer": type(primary.optimizer).__name__ if primary is not None else None,
        "lr": max(float(group["lr"]), float(group.get("initial_lr", 0.0))) if "lr" in group else None,
        "parameters": primary.parameters.numel if primary is not None else None,
    }
    return {k: v for k, v in found.items() if v is not None}
