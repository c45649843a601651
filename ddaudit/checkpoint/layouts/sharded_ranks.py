"""Joins per-rank files of DTensors or ShardedTensors: local parts become chunks of one logical tensor."""

from __future__ import annotations

import re
from typing import Any

from ddaudit.checkpoint.layouts.dcp import check_cover
from ddaudit.checkpoint.model import Checkpoint, Chunk, Tensor
from ddaudit.inert import Record

_RANK = re.compile(r"^(?P<head>.*?)rank(?P<rank>\d+)\.(?P<rest>.+)$")


def shard_dim(placement: Any) -> int | None:
    """The one sharded dimension of a DTensorSpec; None for replicated or several."""
    fields = placement.fields if isinstance(placement, Record) else {}
    placements = fields.get("placements")
    dims = []
    for item in placements if isinstance(placements, (list, tuple)) else []:
        if isinstance(item, Record) and item.kind in ("Shard", "_StridedShard"):
            dim = item.fields.get("dim", item.fields.get("arg0"))
            dims.append(dim if type(dim) is int else None)
    return dims[0] if len(dims) == 1 else None


def merge_ranks(made: Checkpoint, prefix: str = "") -> None:
    """Replaces ``rank0.x``, ``rank1.x`` ... by ``x`` where every rank holds a part of the same global shape."""
    groups: dict[str, list[tuple[int, Tensor]]] = {}
    for tensor in made.tensors.values():
        match = _RANK.match(tensor.name)
        if match and match["head"] == prefix:
            groups.setdefault(match["rest"], []).append((int(match["rank"]), tensor))
    dims: dict[str, int] = made.facts.get("shard_dims", {})
    placed: set[str] = made.facts.get("placed", set())
    for rest, parts in groups.items():
        parts.sort(key=lambda p: p[0])
        if len({t.shape for _, t in parts}) != 1 or len({t.dtype for _, t in parts}) != 1:
            continue
        dim = next((dims[t.name] for _, t in parts if t.name in dims), None)
        if dim is not None or any(t.name in placed for _, t in parts):
            _join(made, f"{prefix}{rest}", parts, dim)


def _join(made: Checkpoint, name: str, parts: list[tuple[int, Tensor]], dim: int | None) -> None:
    """One tensor of all parts: at the offsets they carry, or one behind the other along ``dim``."""
    whole = Tensor(name, parts[0][1].dtype, parts[0][1].shape, file=parts[0][1].file)
    at, boxes = 0, []
    for rank, tensor in parts:
        for chunk in tensor.chunks:
            offsets = chunk.offsets if dim is None else tuple(at if d == dim else 0 for d in range(len(chunk.shape)))
            whole.chunks.append(Chunk(offsets, chunk.shape, chunk.file, chunk.span() or (lambda: None), rank))
            boxes.append((offsets, chunk.shape))
            at += chunk.shape[dim] if dim is not None and dim < len(chunk.shape) else 0
    check_cover(made, whole, boxes)
    for _, tensor in parts:
        made.tensors.pop(tensor.name, None)
    made.add_tensor(whole)


def merge_copies(made: Checkpoint, prefix: str = "") -> None:
    """What every rank stored alike (counters, groups, replicated tensors by their CRC) becomes one entry."""
    ranks = {m["rank"] for n in (*made.values, *made.tensors) if (m := _RANK.match(n)) and m["head"] == prefix}
    values: dict[str, list[str]] = {}
    tensors: dict[str, list[str]] = {}
    for table, found in ((made.values, values), (made.tensors, tensors)):
        for name in table:
            match = _RANK.match(name)
            if match and match["head"] == prefix:
                found.setdefault(match["rest"], []).append(name)
    for rest, names in values.items():
        first = made.values[names[0]]
        if len(names) == len(ranks) and all(made.values[n].value == first.value for n in names):
            for name in names:
                del made.values[name]
            first.name, first.rank = f"{prefix}{rest}", None
            made.values.setdefault(first.name, first)
    for rest, names in tensors.items():
        marks = {_mark(made.tensors[n]) for n in names}
        if len(names) == len(ranks) and len(marks) == 1 and None not in marks:
            kept = made.tensors[names[0]]
            for name in names:
                del made.tensors[name]
            kept.name, kept.rank = f"{prefix}{rest}", None
            made.tensors.setdefault(kept.name, kept)


def _mark(tensor: Tensor) -> Any:
    """Dtype, shape and recorded CRC of a tensor that is one whole chunk; None when that is not known."""
    span = tensor.chunks[0].span() if len(tensor.chunks) == 1 else None
    if span is None or span.checksum is None or tensor.chunks[0].shape != tensor.shape:
        return None
    return tensor.dtype, tensor.shape, span.checksum.crc, span.offset - span.checksum.offset
