"""Reads a tensor's elements in C order, whatever boxes it lies in, with one buffer of bounded size.

A band is a box that spans whole trailing dimensions: inside any chunk it is one run of bytes, so every chunk is read
front
to back and its CRC can be computed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ddaudit.checkpoint.model import Chunk, Span, Tensor
from ddaudit.checkpoint.scan import BLOCK_BYTES
from ddaudit.inert import Malformed, Source

_BAND_BYTES = 4 << 20
_ROW_MAX_BYTES = 256 << 20
_GATHER_MAX_BYTES = 1 << 30
Opener = Callable[[str], Source]


class Unreadable(Exception):
    """The tensor's bytes cannot be put together; the text says why."""


@dataclass(slots=True)
class Piece:
    """A chunk whose place is known, with the CRC of what was read of it so far."""

    chunk: Chunk
    span: Span
    crc: int = 0
    done: int = 0

    @property
    def checked(self) -> bool:
        """True when the recorded checksum covers exactly this chunk's bytes."""
        sum_ = self.span.checksum
        return sum_ is not None and sum_.offset == self.span.offset and self.span.stride is None


def pieces_of(tensor: Tensor) -> list[Piece]:
    """Chunks in C order of their first element; raises Unreadable when one has no place."""
    made = []
    for chunk in tensor.chunks:
        if not chunk.numel:
            continue
        span = chunk.span()
        if span is None:
            raise Unreadable(f"a chunk of {tensor.name} cannot be read")
        made.append(Piece(chunk, span))
    made.sort(key=lambda p: p.chunk.offsets)
    if sum(p.chunk.numel for p in made) != tensor.numel:
        raise Unreadable(f"{tensor.name} is not covered by its chunks")
    return made


def blocks(
    tensor: Tensor,
    opener: Opener,
    on_read: Callable[[Piece, memoryview], None] | None = None,
    buffer: memoryview | None = None,
) -> Iterator[memoryview]:
    """Yields the tensor's bytes in C order. ``on_read`` sees every run of a chunk in that chunk's own order.

    The yielded memory (``buffer``, where it is given) is used again for the next block.
    """
    pieces = pieces_of(tensor)
    item = tensor.item_bytes
    if not item or not tensor.numel:
        return
    if buffer is None:
        buffer = memoryview(bytearray(BLOCK_BYTES))
    if _runs(tensor, pieces):
        for piece in pieces:
            if piece.span.stride is not None or piece.span.swapped:
                yield _gather(piece, item, opener)
                continue
            for block in _read_run(piece, 0, piece.chunk.numel * item, opener, buffer):
                if on_read is not None:
                    on_read(piece, block)
                yield block
        return
    yield from _banded(tensor, pieces, item, opener, buffer, on_read)


def _runs(tensor: Tensor, pieces: list[Piece]) -> bool:
    """True when the chunks, one behind the other, are the tensor in C order: cut along one dimension with all before
    it 1."""
    if len(pieces) == 1:
        return True
    for d, whole in enumerate(tensor.shape):
        if any(p.chunk.shape[d] != whole for p in pieces):
            rest = range(d + 1, len(tensor.shape))
            return prod(tensor.shape[:d]) == 1 and all(
                p.chunk.shape[r] == tensor.shape[r] for p in pieces for r in rest
            )
    return True


def _read_run(piece: Piece, start: int, length: int, opener: Opener, buffer: memoryview) -> Iterator[memoryview]:
    """``length`` bytes of a chunk from its byte ``start``, in blocks."""
    source = opener(piece.span.file)
    seen, into = getattr(source, "view", None), getattr(source, "readinto", None)
    at, end = start, start + length
    while at < end:
        take = min(len(buffer), end - at)
        if seen is not None:
            view = seen(piece.span.offset + at, take, piece.span.offset + end)
            got = len(view)
        elif into is not None:
            view = buffer[:take]
            got = into(view, piece.span.offset + at)
        else:
            view = memoryview(source.pread(piece.span.offset + at, take))
            got = len(view)
        if got != take:
            raise Malformed(f"{got:,} bytes instead of {take:,} (did the file change?)", piece.span.offset + at)
        yield view
        at += take


def _gather(piece: Piece, item: int, opener: Opener) -> memoryview:
    """A chunk stored with gaps, transposed or big-endian: its extent is read whole and put in C order."""
    shape, stride = piece.chunk.shape, piece.span.stride
    steps = () if stride is None else zip(shape, stride, strict=True)
    extent = piece.chunk.numel if stride is None else 1 + sum((n - 1) * s for n, s in steps)
    if extent * item > _GATHER_MAX_BYTES:
        raise Unreadable(f"a strided chunk of {extent * item:,} bytes is too large to be put in order")
    raw = opener(piece.span.file).read(piece.span.offset, extent * item)
    kind = np.dtype(f"{'>' if piece.span.swapped else '<'}u{item}") if item in (1, 2, 4, 8) else np.dtype(f"V{item}")
    values: Any = np.frombuffer(raw, dtype=kind)
    if stride is not None:
        values = np.lib.stride_tricks.as_strided(values, shape, [s * item for s in stride], writeable=False)
    ordered = np.ascontiguousarray(values)
    flat: Any = ordered.astype(kind.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8)
    return memoryview(flat)


def _banded(
    tensor: Tensor,
    pieces: list[Piece],
    item: int,
    opener: Opener,
    buffer: memoryview,
    on_read: Callable[[Piece, memoryview], None] | None,
) -> Iterator[memoryview]:
    """Puts bands together from all chunks that meet them."""
    shape = tensor.shape
    axis = next((k for k in range(len(shape)) if prod(shape[k + 1 :]) * item <= _BAND_BYTES), len(shape) - 1)
    row = prod(shape[axis + 1 :]) * item
    if row > _ROW_MAX_BYTES:
        raise Unreadable(f"rows of {row:,} bytes are too large to be put together")
    if any(p.span.stride is not None or p.span.swapped for p in pieces):
        raise Unreadable("strided chunks of a sharded tensor are not supported")
    height = max(1, _BAND_BYTES // max(row, 1))
    for lead in product(*(range(n) for n in shape[:axis])):
        mine = [
            p
            for p in pieces
            if all(o <= i < o + n for i, o, n in zip(lead, p.chunk.offsets, p.chunk.shape, strict=False))
        ]
        for low in range(0, shape[axis], height):
            high = min(shape[axis], low + height)
            band: Any = np.empty((high - low, *shape[axis + 1 :], item), dtype=np.uint8)
            for piece in mine:
                _fill(band, piece, lead, axis, low, high, item, opener, buffer, on_read)
            yield memoryview(band.reshape(-1))


def _fill(
    band: Any,
    piece: Piece,
    lead: tuple[int, ...],
    axis: int,
    low: int,
    high: int,
    item: int,
    opener: Opener,
    buffer: memoryview,
    on_read: Callable[[Piece, memoryview], None] | None,
) -> None:
    """Copies the part of a chunk that lies in the band: one run of the chunk's bytes."""
    offsets, shape = piece.chunk.offsets, piece.chunk.shape
    first, last = max(low, offsets[axis]), min(high, offsets[axis] + shape[axis])
    if first >= last:
        return
    local = 0
    for d in range(axis):
        local = local * shape[d] + (lead[d] - offsets[d])
    row = prod(shape[axis + 1 :]) * item
    start = (local * shape[axis] + first - offsets[axis]) * row
    raw = bytearray((last - first) * row)
    at = 0
    for block in _read_run(piece, start, len(raw), opener, buffer):
        raw[at : at + len(block)] = block
        at += len(block)
        if on_read is not None:
            on_read(piece, block)
    part = np.frombuffer(raw, dtype=np.uint8).reshape(last - first, *shape[axis + 1 :], item)
    where = (
        slice(first - low, last - low),
        *(slice(o, o + n) for o, n in zip(offsets[axis + 1 :], shape[axis + 1 :], strict=True)),
    )
    band[where] = part
