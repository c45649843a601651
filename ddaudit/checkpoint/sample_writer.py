"""Writes files in the form of torch.save, without torch: for self-tests and samples, never for user data.

Values: None, bool, int, float, str, bytes, list, tuple, dict, numpy arrays (as tensors), and ``Named`` for a bare
global.
"""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_STORAGES = {
    "float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage",
    "int32": "IntStorage", "int16": "ShortStorage", "int8": "CharStorage", "uint8": "ByteStorage", "bool":
    "BoolStorage",
}  # fmt: skip


@dataclass(frozen=True)
class Named:
    """A global, and (when ``args`` is set) a call of it."""

    module: str
    name: str
    args: tuple[Any, ...] | None = None


def save(value: Any, path: Path) -> Path:
    """Writes one archive: data.pkl, byteorder, data/N, version."""
    storages: list[bytes] = []
    body = b"\x80\x02" + _encode(value, storages) + b"."
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{path.stem}/data.pkl", body)
        archive.writestr(f"{path.stem}/byteorder", "little")
        for key, data in enumerate(storages):
            archive.writestr(f"{path.stem}/data/{key}", data)
        archive.writestr(f"{path.stem}/version", "3\n")
    return path


def _encode(value: Any, storages: list[bytes]) -> bytes:
    """Opcodes of protocol 2 that leave ``value`` on the stack."""
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(raw)) + raw
    if isinstance(value, Named):
        head = f"c{value.module}\n{value.name}\n".encode()
        return head if value.args is None else head + _encode(value.args, storages) + b"R"
    if isinstance(value, np.ndarray):
        return _tensor(value, storages)
    parts = [_encode(part, storages) for part in _parts(value)]
    if isinstance(value, tuple):
        return b"(" + b"".join(parts) + b"t"
    opener, closer = (b"}", b"u") if isinstance(value, dict) else (b"]", b"e")
    return opener + (b"(" + b"".join(parts) + closer if parts else b"")


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    assert isinstance(value, (list, tuple)), type(value)
    return list(value)


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def _tensor(array: Any, storages: list[bytes]) -> bytes:
    """_rebuild_tensor_v2(storage, 0, shape, stride, False, {})."""
    key = str(len(storages))
    storages.append(np.ascontiguousarray(array).tobytes())
    strides = tuple(s // array.itemsize for s in np.ascontiguousarray(array).strides) if array.ndim else ()
    pid = ("storage", Named("torch", _STORAGES[array.dtype.name]), key, "cpu", int(array.size))
    head = b"ctorch._utils\n_rebuild_tensor_v2\n("
    fields: tuple[Any, ...] = (0, tuple(array.shape), strides, False, {})
    rest = b"".join(_encode(part, storages) for part in fields)
    return head + _encode(pid, storages) + b"Q" + rest + b"tR"
