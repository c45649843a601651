"""Numbers from raw tensor bytes, for the few tensors with one element that count something."""

from __future__ import annotations

import struct

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.inert import Malformed

_FORMATS = {
    "float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B",
    "uint64": "Q", "uint32": "I", "uint16": "H", "bool": "?",
}  # fmt: skip
MAX_SCALARS = 50_000


def decode(raw: bytes, dtype: str, swapped: bool = False) -> float | None:
    """The number in ``raw``; None for dtypes that count nothing."""
    if dtype == "bfloat16":
        return float(struct.unpack("<f", b"\0\0" + (raw[::-1] if swapped else raw))[0])
    if dtype not in _FORMATS:
        return None
    return float(struct.unpack((">" if swapped else "<") + _FORMATS[dtype], raw)[0])


def read_scalars(made: Checkpoint, folder: Folder) -> None:
    """Fills ``value`` of every tensor with one element (at most ``MAX_SCALARS``: more are no counters)."""
    wanted = [t for t in made.tensors.values() if t.numel == 1 and t.item_bytes and t.chunks][:MAX_SCALARS]
    for tensor in wanted:
        span = tensor.chunks[0].span()
        if span is None:
            continue
        try:
            raw = folder.source(span.file).read(span.offset, tensor.item_bytes)
        except Malformed:
            continue
        tensor.value = decode(raw, tensor.dtype, span.swapped)
