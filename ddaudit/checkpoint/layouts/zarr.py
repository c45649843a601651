"""Zarr v2 directories (Megatron's old backend): ``<tensor>/.zarray`` plus one file a chunk. A missing chunk reads as
zeros."""

from __future__ import annotations

import re
from itertools import islice, product
from math import prod
from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.model import Chunk, Span, Tensor
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion

NAME = "zarr"
_DTYPES = {
    "<f4": "float32", "<f8": "float64", "<f2": "float16", "<i8": "int64", "<i4": "int32", "<i2": "int16", "|i1": "int8",
    "|u1": "uint8", "|b1": "bool", "bfloat16": "bfloat16", "<u2": "bfloat16", "|V2": "bfloat16",
}  # fmt: skip
_MAX_CHUNKS = 1_000_000


def detect(folder: Folder) -> bool:
    return any(n.endswith("/.zarray") for n in folder.names())


def read(reader: Reader) -> None:
    arrays = [n for n in reader.folder.names() if n.endswith("/.zarray")]
    for name in arrays:
        _array(reader, name.removesuffix("/.zarray"))
    reader.made.completion = Completion(proven=None, proof=f"{len(arrays)} zarr arrays; the format has no marker")


def _array(reader: Reader, path: str) -> None:
    made, full = reader.made, reader.folder.full(f"{path}/.zarray")
    info = reader.json(f"{path}/.zarray")
    info = info if isinstance(info, dict) else {}
    shape: Any = info.get("shape")
    chunks: Any = info.get("chunks")
    if not _sizes(shape) or not _sizes(chunks) or len(shape) != len(chunks) or 0 in chunks:
        made.fault("file.malformed", f"{path}/.zarray gives no valid shape and chunks", file=full)
        return
    dtype = _DTYPES.get(str(info.get("dtype")), "?")
    tensor = Tensor(path.replace("/", "."), dtype, tuple(shape), file=full)
    counts = [max(1, -(-n // c)) for n, c in zip(shape, chunks, strict=True)]
    sub = reader.folder.sub(path)
    have = {n for n in sub.names() if re.fullmatch(r"[\d./]+", n)}
    plain = info.get("compressor") is None and not info.get("filters") and info.get("order", "C") == "C"
    whole = all(n % c == 0 for n, c in zip(shape, chunks, strict=True)) or prod(counts) == 1
    need = prod(counts)
    separator = info.get("dimension_separator", ".")
    for at in islice(product(*(range(n) for n in counts)), _MAX_CHUNKS):
        key = str(separator).join(map(str, at)) if at else "0"
        if key not in have:
            text = f"{path}: chunk {key} of {need} is missing and would be read as zeros"
            made.fault(
                "shard.hole", text, file=sub.full(key), tensor=tensor.name, measured=len(have), limit=need, unit="chunk"
            )
            continue
        if plain and whole and dtype != "?":
            box = tuple(chunks) if prod(counts) > 1 else tuple(shape)
            if sub.size(key) >= prod(box) * tensor.item_bytes:
                offsets = tuple(i * c for i, c in zip(at, chunks, strict=True))
                tensor.chunks.append(Chunk(offsets, box, sub.full(key), Span(sub.full(key), 0)))
            else:
                made.fault(
                    "file.truncated", f"{path}: chunk {key} is too short", file=sub.full(key), tensor=tensor.name
                )
    made.add_tensor(tensor)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 64 and all(type(n) is int and n >= 0 for n in value)
