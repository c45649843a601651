"""Fingerprints of samples and tensors: 53-bit integers, equal for equal bits, stable between processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["hash_bytes", "leaves", "local", "only_tensors", "rows", "sample", "samples", "tensors"]

MASK = (1 << 53) - 1
MAX_DEPTH = 6
#: Elements up to which copying a sample costs less than looking at it by itself.
SMALL_ELEMENTS = 2048
_PLAIN = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8})

_hasher: Callable[[], Any]
_hash_one: Callable[[Any], int]
try:
    import xxhash

    _hasher, _hash_one = xxhash.xxh3_64, xxhash.xxh3_64_intdigest
except ImportError:  # the script's environment may lack it; slower, and just as good

    def _hasher() -> Any:
        return hashlib.blake2b(digest_size=8)

    def _hash_one(part: Any) -> int:
        return int.from_bytes(hashlib.blake2b(part, digest_size=8).digest(), "big")


def hash_bytes(*parts: Any) -> int:
    """53-bit hash of the concatenated bytes-like parts, each of one dimension."""
    if len(parts) == 1:
        return _hash_one(parts[0]) & MASK
    state = _hasher()
    for part in parts:
        state.update(part)
    return int.from_bytes(state.digest()[:8], "big") & MASK


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor itself. Starts no communication."""
    found = getattr(tensor, "_local_tensor", tensor)
    return found if isinstance(found, Tensor) else tensor


def _bytes(tensor: Tensor) -> Any:
    part = local(tensor)
    if part.requires_grad:
        part = part.detach()
    if part.dtype in _PLAIN and part.device.type == "cpu" and part.layout is torch.strided and part.is_contiguous():
        return part.numpy().reshape(-1)  # the hot path: parameters and samples lie in memory as they are hashed
    flat = part.cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def tensors(items: Iterable[Tensor]) -> int:
    """One hash of the bits of several tensors, in order."""
    return hash_bytes(*(_bytes(t) for t in items))


def _pieces(item: Any, depth: int = 0) -> Iterator[Any]:
    """Bytes of a sample before collation: tensors, arrays, numbers, strings and their containers."""
    if isinstance(item, Tensor):
        if item.layout is torch.strided:
            yield _bytes(item)
    elif isinstance(item, list | tuple) and depth < MAX_DEPTH:
        for part in item:
            yield from _pieces(part, depth + 1)
    elif isinstance(item, str):
        yield item.encode("utf-8", "replace")
    elif isinstance(item, bytes | bytearray | memoryview):
        yield item
    elif isinstance(item, bool | int | float):
        yield repr(item).encode()
    elif hasattr(item, "__array_interface__"):
        yield getattr(item, "tobytes")()  # noqa: B009 - numpy arrays and PIL images share the protocol
    elif isinstance(item, Mapping) and depth < MAX_DEPTH:
        for key in item:
            yield from _pieces(item[key], depth + 1)


def sample(item: Any) -> int:
    """Fingerprint of one sample as the data set returned it."""
    return hash_bytes(*_pieces(item))


def samples(items: Sequence[Any]) -> list[int]:
    """Fingerprint of each sample; small tensors of one shape are read together, which gives the same numbers."""
    parts = [item if isinstance(item, list | tuple) else (item,) for item in items]
    columns = list(zip(*parts, strict=False))
    if len({len(part) for part in parts}) != 1 or not all(map(_alike, columns)):
        return [sample(item) for item in items]
    return _of_rows(len(items), [_bytes(torch.stack(column)) for column in columns])


def only_tensors(item: Any, depth: int = 0) -> bool:
    """Whether a sample is made of plain tensors alone, so that its rows in a batch made by stacking hold its bits."""
    if isinstance(item, list | tuple):
        return depth < MAX_DEPTH and bool(item) and all(only_tensors(part, depth + 1) for part in item)
    if isinstance(item, Mapping):
        return depth < MAX_DEPTH and bool(item) and all(only_tensors(part, depth + 1) for part in item.values())
    return type(item) is Tensor and item.layout is torch.strided


def _of_rows(count: int, tables: list[Any]) -> list[int]:
    """Hash of the bytes of each of ``count`` rows over all tables, which lie in memory row by row. Lines of code cost
    more than bytes here: this runs for every batch, in cold caches."""
    parts = [memoryview(table).cast("B") for table in tables]
    flat = [(data, len(data) // count) for data in parts]
    if len(flat) == 1:
        data, width = flat[0]
        return [_hash_one(data[at : at + width]) & MASK for at in range(0, count * width, width)]
    return [_hash_one(b"".join(data[i * width : (i + 1) * width] for data, width in flat)) & MASK for i in range(count)]


def _alike(column: Sequence[Any]) -> bool:
    """Whether all are plain tensors in this host's memory, of one type, one shape, and a few kilobytes."""
    first = column[0]
    if type(first) is not Tensor or first.dtype not in _PLAIN or not 0 < first.numel() <= SMALL_ELEMENTS:
        return False
    shape, dtype = first.shape, first.dtype
    return first.device.type == "cpu" and all(
        type(t) is Tensor and t.dtype is dtype and t.shape == shape and t.layout is torch.strided for t in column
    )


def leaves(batch: Any, depth: int = 0) -> Iterator[Tensor]:
    """Tensors of a batch in a fixed order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, list | tuple) and depth < MAX_DEPTH:
        for part in batch:
            yield from leaves(part, depth + 1)
    elif isinstance(batch, Mapping) and depth < MAX_DEPTH:
        for key in batch:
            yield from leaves(batch[key], depth + 1)


def rows(found: list[Tensor]) -> list[int]:
    """Fingerprint of each row of collated tensors that share their first dimension; empty when there are none."""
    first = next((t.shape[0] for t in found if t.dim() > 0), 0)
    usable = [t for t in found if t.dim() > 0 and t.shape[0] == first and t.layout is torch.strided]
    if not usable or first == 0:
        return []
    return _of_rows(first, [_bytes(t) for t in usable if t.numel()])
