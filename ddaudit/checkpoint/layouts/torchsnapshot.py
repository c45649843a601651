"""torchsnapshot: ``.snapshot_metadata`` (a manifest, written last) and blobs without checksums."""

from __future__ import annotations

from math import prod
from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts.dcp import check_cover
from ddaudit.checkpoint.model import Chunk, Span, Tensor, Value
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion
from ddaudit.inert import ITEM_BITS, Malformed, unsafe_name

NAME = "torchsnapshot"
MANIFEST = ".snapshot_metadata"


def detect(folder: Folder) -> bool:
    return MANIFEST in folder


def read(reader: Reader) -> None:
    made, folder = reader.made, reader.folder
    document = reader.json(MANIFEST, "file.malformed")
    manifest = document.get("manifest") if isinstance(document, dict) else None
    if not isinstance(manifest, dict):
        if document is not None:
            made.fault("file.malformed", f"{MANIFEST} has no manifest", file=folder.full(MANIFEST))
        return
    made.know("ranks", document.get("world_size"), MANIFEST)
    made.completion = Completion(proven=True, proof=f"{MANIFEST} is written last; it names every blob")
    for key, entry in manifest.items():
        if isinstance(entry, dict):
            _entry(reader, str(key), entry)
    made.promises.update({"sampler": "expected", "schedule": "expected"})


def _entry(reader: Reader, key: str, entry: dict[str, Any]) -> None:
    """Names start with the rank ("0/model/x"); replicated entries of other ranks point at the same blobs."""
    made = reader.made
    rank, _, rest = key.partition("/")
    number = int(rank) if rank.isdigit() and len(rank) < 9 else None
    name = (f"rank{rank}." if number else "") + rest.replace("/", ".").replace("%2F", "/").replace(
        "optim.", "optimizer.", 1
    )
    kind = str(entry.get("type", "")).lower()
    if kind in ("tensor", "shardedtensor", "chunkedtensor", "dtensor"):
        _tensor(reader, name, entry, number)
    elif kind == "object":
        _object(reader, name, entry, number)
    elif "serialized_value" in entry or "readable" in entry:
        made.values[name] = Value(name, _primitive(entry), reader.folder.full(MANIFEST), number)


def _primitive(entry: dict[str, Any]) -> Any:
    kind, text = entry.get("type"), entry.get("serialized_value")
    try:
        if kind == "int":
            return int(str(text)[:30])
        if kind == "bool":
            return str(text) == "True"
        if kind == "float":
            return float(str(entry.get("readable", ""))[:40])
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def _tensor(reader: Reader, name: str, entry: dict[str, Any], rank: int | None) -> None:
    made = reader.made
    parts = (
        entry.get("shards") or entry.get("chunks") or [{"offsets": None, "sizes": entry.get("shape"), "tensor": entry}]
    )
    if not isinstance(parts, list):
        return
    dtype = str(entry.get("dtype") or (parts[0].get("tensor") or {}).get("dtype", "")).removeprefix("torch.")
    shape = entry.get("shape")
    if shape is None and all(isinstance(p, dict) and isinstance(p.get("sizes"), list) for p in parts):
        shape = [
            max(o + n for o, n in pairs)
            for pairs in zip(*[list(zip(p["offsets"], p["sizes"], strict=True)) for p in parts], strict=True)
        ]
    if not isinstance(shape, list) or dtype not in ITEM_BITS or not all(type(n) is int and n >= 0 for n in shape):
        made.fault(
            "file.malformed",
            f"{MANIFEST}: {name} has no valid dtype and shape",
            file=reader.folder.full(MANIFEST),
            tensor=name,
        )
        return
    tensor = Tensor(name, dtype, tuple(shape), file=reader.folder.full(MANIFEST), rank=rank)
    boxes = []
    for part in parts:
        offsets = tuple(part.get("offsets") or [0] * len(shape))
        sizes = tuple(part.get("sizes") or shape)
        boxes.append((offsets, sizes))
        span = _span(reader, name, part.get("tensor") or part, dtype, prod(sizes), rank)
        if span is not None:
            tensor.chunks.append(Chunk(offsets, sizes, span.file, span, rank))
    if len(parts) > 1:
        check_cover(made, tensor, boxes)
    made.add_tensor(tensor)


def _span(reader: Reader, name: str, entry: dict[str, Any], dtype: str, numel: int, rank: int | None) -> Span | None:
    made, location = reader.made, str(entry.get("location") or "")
    full = reader.folder.full(str(location))
    if unsafe_name(location):
        made.fault("path.escape", f"{MANIFEST} names the blob {location!r:.120}, which leads out", tensor=name)
        return None
    if location not in reader.folder:
        made.fault(
            "complete.file-missing", f"{location} is missing: {name} lies in it", file=full, tensor=name, rank=rank
        )
        return None
    span = entry.get("byte_range")
    start, end = (
        span
        if isinstance(span, list) and len(span) == 2 and all(type(n) is int for n in span)
        else (0, reader.folder.size(location))
    )
    need = numel * ITEM_BITS[dtype] // 8
    if entry.get("serializer") == "torch_save":
        return _archived(reader, name, location, start, end)
    if start < 0 or end > reader.folder.size(location) or end - start != need:
        text = (
            f"{name} needs {need:,} bytes; {location} has "
            f"{reader.folder.size(location):,}, the range is {start:,}-{end:,}"
        )
        made.fault(
            "file.truncated",
            text,
            file=full,
            tensor=name,
            measured=reader.folder.size(location),
            limit=end,
            unit="byte",
        )
        return None
    return Span(full, start)


def _archived(reader: Reader, name: str, location: str, start: int, end: int) -> Span | None:
    from ddaudit.inert import TensorRef

    full = reader.folder.full(location)
    try:
        window = reader.folder.source(location).window(start, end - start)
    except Malformed as error:
        reader.made.fault("file.truncated", f"{name}: {error}", file=full, tensor=name)
        return None
    found = reader.torch_in(window, full, name)
    if found is None or not isinstance(found.value, TensorRef):
        return None
    chunks = reader.tensor_of(found.value, found, window, name, full, None).chunks
    return chunks[0].span() if chunks else None


def _object(reader: Reader, name: str, entry: dict[str, Any], rank: int | None) -> None:
    location = str(entry.get("location") or "")
    if unsafe_name(location):
        reader.made.fault("path.escape", f"{MANIFEST} names the blob {location!r:.120}, which leads out", key=name)
    elif location not in reader.folder:
        full = reader.folder.full(str(location))
        reader.made.fault(
            "complete.file-missing", f"{location} is missing: {name} lies in it", file=full, key=name, rank=rank
        )
    else:
        reader.load(str(location), name, rank)
