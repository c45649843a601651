"""Runs in a process of its own, with limits: lists an HDF5 file's datasets, refusing whatever points outside the file.

usage: python -m ddaudit.checkpoint.hdf5_child PATH LEVEL; prints one JSON object.
"""

from __future__ import annotations

import io
import json
import math
import resource
import sys
import zipfile
from pathlib import Path
from typing import Any

MAX_OBJECTS = 1_000_000
MAX_ATTRIBUTE_BYTES = 1 << 20
_MEMORY = 4 << 30
_CPU_S = 4  # a damaged file can send the library round in circles
_CPU_MAX_S = 600
_STORED_BYTES_PER_S = 20 << 20
_DECODED_BYTES_PER_S = 64 << 20
_DEFLATE_MAX_RATIO = 1032  # what a dataset claims beyond this many times its stored bytes, deflate cannot hold
_KERAS_MEMBER = "model.weights.h5"
_BLOCK_BYTES = 8 << 20
#: How h5py and zipfile say that a file is not what it should be.
REFUSALS = (OSError, RuntimeError, ValueError, KeyError, MemoryError, zipfile.BadZipFile)


def main(argv: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s(Path(argv[0]).stat().st_size, 0), _CPU_MAX_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        document = describe(argv[0], argv[1])
    except REFUSALS as error:
        document = {"error": f"{type(error).__name__}: {error}"[:300]}
    sys.stdout.write(json.dumps(document, allow_nan=False))
    return 0


def cpu_limit_s(stored: int, decoded: int) -> int:
    """CPU seconds that a file of ``stored`` bytes may take of which ``decoded`` bytes are read through filters.

    Well below what any machine needs per byte, and bounded: a bomb is given up, a healthy large file is not.
    """
    return min(_CPU_MAX_S, _CPU_S + stored // _STORED_BYTES_PER_S + decoded // _DECODED_BYTES_PER_S)


def _allow(stored: int, decoded: int) -> None:
    """Raises the limit by what one more dataset may take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft == resource.RLIM_INFINITY:
        return
    more = min(decoded, stored * _DEFLATE_MAX_RATIO) / _DECODED_BYTES_PER_S
    resource.setrlimit(resource.RLIMIT_CPU, (min(hard, soft + math.ceil(more)), hard))


def describe(path: str, level: str) -> dict[str, Any]:
    """Datasets, groups and attributes of the file, or of the weights inside a ``.keras`` archive."""
    import h5py

    made: dict[str, Any] = {"datasets": [], "groups": [], "attributes": {}, "faults": []}
    with open(path, "rb") as raw:  # noqa: PTH123 - the path was resolved by the caller
        packed = raw.read(4) == b"PK\x03\x04"
    if packed:
        with h5py.File(_weights_of(path), "r") as file:
            _walk(file, made, level, packed=True)
    else:
        with h5py.File(path, "r", locking=False) as file:
            _walk(file, made, level, packed=False)
    return made


def _weights_of(path: str) -> io.BytesIO:
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(_KERAS_MEMBER)
        if info.file_size > _MEMORY // 2 or info.file_size > 200 * max(info.compress_size, 1):
            raise ValueError(f"{_KERAS_MEMBER} claims {info.file_size:,} bytes")
        return io.BytesIO(archive.read(info))


def _walk(file: Any, made: dict[str, Any], level: str, *, packed: bool) -> None:
    """Visits hard links only; soft links stay inside but repeat, external ones are refused. No recursion, no cycles."""
    import h5py

    todo: list[tuple[str, Any]] = [("", file)]
    seen: set[int] = set()
    while todo:
        path, group = todo.pop()
        _attributes(path, group, made)
        for key in group:
            name = f"{path}/{key}" if path else key
            link = group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                made["faults"].append(["hdf5.external", name, f"{name} is a link into the file {link.filename!r:.120}"])
                continue
            if isinstance(link, h5py.SoftLink):
                continue
            item = group[key]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen or len(seen) > MAX_OBJECTS:
                continue
            seen.add(address)
            if isinstance(item, h5py.Group):
                made["groups"].append(name)
                todo.append((name, item))
            elif isinstance(item, h5py.Dataset):
                _dataset(name, item, made, level, packed)


def _attributes(path: str, group: Any, made: dict[str, Any]) -> None:
    for key in group.attrs:
        name = f"{path}/{key}" if path else key
        try:
            identity = group.attrs.get_id(key)
            if identity.get_storage_size() > MAX_ATTRIBUTE_BYTES:
                continue
            made["attributes"][name] = _plain(group.attrs[key])
        except (OSError, TypeError, ValueError, RuntimeError):
            made["faults"].append(["file.malformed", name, f"the attribute {name} cannot be read"])


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "tolist"):
        value = value.tolist()
        return (
            [_plain(v) for v in value]
            if isinstance(value, list)
            else _plain(value)
            if isinstance(value, bytes)
            else _finite(value)
        )
    return _finite(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)[:200]


def _dataset(name: str, item: Any, made: dict[str, Any], level: str, packed: bool) -> None:
    """Where the bytes are, when they lie in one run; else (at level full) what they hold, read through the filters."""
    if item.external or item.is_virtual:
        made["faults"].append(["hdf5.external", name, f"{name} keeps its data in other files"])
        return
    dtype = item.dtype.name if item.dtype.kind in "fiub" and item.dtype.byteorder in "<|=" else "?"
    row: dict[str, Any] = {"name": name, "dtype": dtype, "shape": list(item.shape or ()), "offset": None}
    offset = item.id.get_offset()
    if offset is not None and not packed and dtype != "?":
        row["offset"] = offset
    try:
        if item.size == 1 and dtype != "?":
            row["value"] = _finite(item[()].item())
        if level == "full" and row["offset"] is None and dtype != "?" and item.size:
            _allow(item.id.get_storage_size(), int(item.size) * item.dtype.itemsize)
            row["scan"] = _scan(item)
    except OSError as error:
        kind = "integrity.crc" if "filter" in str(error) or "checksum" in str(error).lower() else "file.malformed"
        made["faults"].append([kind, name, f"{name}: {str(error)[:160]}"])
    made["datasets"].append(row)


def _scan(item: Any) -> dict[str, Any]:
    import numpy as np

    from ddaudit.checkpoint.scan import ArrayScan

    scan = ArrayScan(item.dtype.name, int(item.size))
    rows = max(1, _BLOCK_BYTES // max(1, item.dtype.itemsize * int(item.size // max(1, (item.shape or (1,))[0]))))
    parts = (slice(at, at + rows) for at in range(0, item.shape[0], rows)) if item.shape else iter([()])
    with np.errstate(invalid="ignore"):
        for part in parts:
            scan.feed(item[part].tobytes())
    return scan.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
