"""Safetensors headers: parsed with their geometry checked; the tensor bytes are not touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from ddaudit.inert.jsons import read_json
from ddaudit.inert.nodes import Malformed
from ddaudit.inert.source import Source

MAX_HEADER_BYTES = 100_000_000  # the library's own limit

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(slots=True)
class Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    length: int


@dataclass(slots=True)
class SafetensorsHeader:
    """`problems` hold (kind, tensor name, text): geometry that the safetensors library would refuse, and duplicate
    names."""

    entries: dict[str, Entry] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    problems: list[tuple[str, str, str]] = field(default_factory=list)
    data_start: int = 0


def looks_like_safetensors(source: Source) -> bool:
    return source.size >= 10 and source.read(8, 1) == b"{"


def read_safetensors(source: Source) -> SafetensorsHeader:
    """Parses the header; raises `Malformed` when there is none that can be read."""
    if source.size < 8:
        raise Malformed(f"{source.size} bytes are too few for a safetensors file")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER_BYTES or length > source.size - 8:
        raise Malformed(f"a header of {length:,} bytes does not fit in a file of {source.size:,}")
    document = read_json(source.read(8, length), max_bytes=MAX_HEADER_BYTES, max_depth=8)
    header = SafetensorsHeader(data_start=8 + length)
    if not isinstance(document.value, dict):
        raise Malformed("the header is no JSON object")
    header.problems += [
        ("duplicate", key, f"{key} is in the header twice; loaders keep the last") for key in document.duplicates
    ]
    for name, info in document.value.items():
        if name == "__metadata__":
            header.metadata = (
                {str(k): v for k, v in info.items() if isinstance(v, str)} if isinstance(info, dict) else {}
            )
            continue
        try:
            header.entries[name] = _entry(name, info, header.data_start)
        except Malformed as error:
            header.problems.append(("entry", name, f"{name}: {error}"))
    _check_geometry(header, source.size)
    return header


def _entry(name: str, info: Any, data_start: int) -> Entry:
    if not isinstance(info, dict) or not isinstance(info.get("dtype"), str):
        raise Malformed("no dtype")
    dtype, shape, span = info["dtype"], info.get("shape"), info.get("data_offsets")
    if dtype not in DTYPE_BITS:
        raise Malformed(f"the dtype {dtype} is unknown")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 64:
        raise Malformed("the shape is not a list of sizes")
    if (
        not isinstance(span, list)
        or len(span) != 2
        or not all(type(n) is int and n >= 0 for n in span)
        or span[1] < span[0]
    ):
        raise Malformed("data_offsets are no range")
    need = prod(shape) * DTYPE_BITS[dtype]
    if need != (span[1] - span[0]) * 8:
        raise Malformed(f"shape {shape} of {dtype} needs {need // 8:,} bytes, the range has {span[1] - span[0]:,}")
    return Entry(name, dtype, tuple(shape), data_start + span[0], span[1] - span[0])


def _check_geometry(header: SafetensorsHeader, file_size: int) -> None:
    """Ranges must tile the data exactly: no hole, no overlap, nothing behind, nothing beyond the end."""
    at, first_beyond = header.data_start, ""
    broken = any(kind == "entry" for kind, _, _ in header.problems)
    for entry in sorted(header.entries.values(), key=lambda e: (e.offset, e.length)):
        if entry.offset < at:
            header.problems.append(
                ("overlap", entry.name, f"{entry.name} overlaps the tensor before it by {at - entry.offset:,} bytes")
            )
        elif entry.offset > at and not broken:
            header.problems.append(
                ("hole", entry.name, f"{entry.offset - at:,} bytes before {entry.name} belong to no tensor")
            )
        at = max(at, entry.offset + entry.length)
        first_beyond = first_beyond or (entry.name if at > file_size else "")
    if at > file_size:
        text = f"the header describes {at:,} bytes, the file has {file_size:,}; the first tensor cut is {first_beyond}"
        header.problems.append(("truncated", first_beyond, text))
    elif at < file_size and not broken:
        header.problems.append(("trailing", "", f"{file_size - at:,} bytes follow the last tensor"))
