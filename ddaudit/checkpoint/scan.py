"""The one pass over a tensor's bytes: canonical digest, finite probe, sign of second moments, zero blocks.

The digest depends on the elements in C order and on the dtype only. Elements are hashed in tiles of 16 MiB, so that two
digests also say in which tile they differ; how the tensor was sharded, by whom and into which format has no influence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

TILE_BYTES = 16 << 20
#: Stays in the second-level cache between checksum, digest and probe. Smaller blocks make two workers wait for each
#: other: each of the four calls a block gives the interpreter away, and getting it back costs as much as 100 KiB.
BLOCK_BYTES = 512 << 10
_ZERO_BLOCK_BYTES = 256 << 10

_FLOATS: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
_MASKED: dict[str, tuple[np.dtype[Any], int]] = {
    "bfloat16": (np.dtype("<u2"), 0x7F80),
    "float16": (np.dtype("<u2"), 0x7C00),
    "float8_e5m2": (np.dtype("u1"), 0x7C),
}
_ZEROS = {name: np.zeros(BLOCK_BYTES // kind.itemsize + 1, dtype=kind) for name, kind in _FLOATS.items()}


@dataclass(slots=True)
class Counts:
    """What the probe found. ``first_bad`` is the index, in C order, of the first element that is not finite."""

    nan: int = 0
    inf: int = 0
    negative: int = 0
    zero_blocks: int = 0
    nonzero: bool = False
    first_bad: int | None = None
    seen: int = 0


class ArrayScan:
    """Takes a tensor's bytes in C order, in blocks of any size.

    The caller puts ``np.errstate(invalid="ignore")`` around them: numpy warns of the very NaN that is looked for, and
    silence for each block on its own would cost 3 % of the pass.
    """

    def __init__(self, dtype: str, numel: int, *, nonnegative: bool = False, digest: bool = True) -> None:
        self.dtype = dtype
        self.numel = numel
        self.nonnegative = nonnegative
        self.counts = Counts()
        self.tiles: list[str] = []
        self._tile = xxhash.xxh3_128() if digest else None
        self._room = TILE_BYTES
        self._rest = b""  # an element cut by the end of a block
        self._kind = _MASKED[dtype][0] if dtype in _MASKED else _FLOATS.get(dtype)
        self._scratch: Any = None
        self._item_bytes = 1 if self._kind is None else self._kind.itemsize

    def feed(self, block: Any) -> None:
        """One more block. Bytes of an element may be split over two blocks."""
        view = memoryview(block)
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        if self._tile is not None:
            self._hash(view)
        self._probe(view)

    def _hash(self, view: memoryview) -> None:
        assert self._tile is not None
        at = 0
        while at < len(view):
            take = min(self._room, len(view) - at)
            self._tile.update(view if take == len(view) else view[at : at + take])
            self._room -= take
            at += take
            if not self._room:
                self.tiles.append(self._tile.hexdigest())
                self._tile.reset()
                self._room = TILE_BYTES

    def _probe(self, view: memoryview) -> None:
        if not self._rest and len(view) <= BLOCK_BYTES and not len(view) % self._item_bytes:
            self._examine(view)
            return
        for at in range(0, len(view), BLOCK_BYTES):
            part = view[at : at + BLOCK_BYTES]
            if self._rest:
                part = memoryview(self._rest + bytes(part))
                self._rest = b""
            extra = len(part) % self._item_bytes
            if extra:
                self._rest = bytes(part[len(part) - extra :])
                part = part[: len(part) - extra]
            self._examine(part)

    def _examine(self, part: memoryview) -> None:
        counts = self.counts
        if not len(part):
            return
        blank = self._count_zero_blocks(part)
        if self._kind is not None and not blank:
            values = self._aligned(part)
            counts.nonzero = counts.nonzero or self._moved(values)
            if self.dtype in _FLOATS:
                self._floats(values)
            else:
                self._masked(values)
        else:
            counts.nonzero |= not blank
        counts.seen += len(part) // self._item_bytes

    def _aligned(self, part: memoryview) -> Any:
        """The part as numbers. In a mapped file they may lie across their own borders, where numpy is slow."""
        values: Any = np.frombuffer(part, dtype=self._kind)
        if values.flags.aligned:
            return values
        if self._scratch is None:
            self._scratch = np.empty(BLOCK_BYTES, dtype=np.uint8)
        raw = self._scratch[: len(part)]
        raw[:] = np.frombuffer(part, dtype=np.uint8)
        return raw.view(self._kind)

    def _count_zero_blocks(self, part: memoryview) -> bool:
        """Notes which of the part's blocks hold zeros alone; True when all do."""
        counts, blank = self.counts, True
        for at in range(0, len(part), _ZERO_BLOCK_BYTES):
            end = min(at + _ZERO_BLOCK_BYTES, len(part))
            if part[at] or part[end - 1] or np.frombuffer(part[at:end], dtype=np.uint8).any():
                blank = False
            else:
                counts.zero_blocks += end - at == _ZERO_BLOCK_BYTES
        return blank

    def _moved(self, values: Any) -> bool:
        """True when a number is neither 0 nor -0. The first one nearly always says so."""
        if self.dtype in _FLOATS:
            return bool(values[0] != 0 or values.any())
        return bool(values[0] << 1 & 0xFFFF or (values << 1).any())  # without the sign

    def _floats(self, values: Any) -> None:
        # The dot product with zeros is NaN exactly when an element is not finite; with itself it could overflow.
        if np.dot(values, _ZEROS[self.dtype][: len(values)]) != 0:
            nan, inf = np.isnan(values), np.isinf(values)
            self._note(nan, inf)
        if self.nonnegative and values.min() < 0:
            self.counts.negative += int(np.count_nonzero(values < 0))

    def _masked(self, values: Any) -> None:
        """bf16, fp16, e5m2: exponent all ones means NaN or Inf, told apart by the mantissa."""
        mask = _MASKED[self.dtype][1]
        hit = (values & mask) == mask
        if hit.any():
            magnitude = values & (0x7F if values.dtype.itemsize == 1 else 0x7FFF)
            self._note(hit & (magnitude != mask), hit & (magnitude == mask))
        if self.nonnegative:
            sign = 0x80 if values.dtype.itemsize == 1 else 0x8000
            self.counts.negative += int(np.count_nonzero(values > sign))

    def _note(self, nan: Any, inf: Any) -> None:
        counts = self.counts
        counts.nan += int(np.count_nonzero(nan))
        counts.inf += int(np.count_nonzero(inf))
        if counts.first_bad is None and (counts.nan or counts.inf):
            counts.first_bad = counts.seen + int(np.argmax(nan | inf))

    def finish(self) -> dict[str, Any]:
        """Plain data: digest, tiles and counts."""
        digest = None
        if self._tile is not None:
            if self._room != TILE_BYTES:
                self.tiles.append(self._tile.hexdigest())
            digest = tensor_digest(self.dtype, self.numel, self.tiles)
        found = self.counts
        return {
            "digest": digest, "tiles": self.tiles, "nan": found.nan, "inf": found.inf, "negative": found.negative,
            "zero_blocks": found.zero_blocks if found.nonzero else 0, "nonzero": found.nonzero, "first_bad":
            found.first_bad,
        }  # fmt: skip


def tensor_digest(dtype: str, numel: int, tiles: list[str]) -> str:
    """xxh3-128 over dtype, element count and the tiles' digests."""
    head = f"{dtype}:{numel}:".encode()
    return xxhash.xxh3_128_hexdigest(head + "".join(tiles).encode())


@dataclass(slots=True)
class TensorScan:
    """The result for one tensor of a checkpoint."""

    name: str
    digest: str | None = None
    tiles: list[str] = field(default_factory=list)
    nan: int = 0
    inf: int = 0
    negative: int = 0
    zero_blocks: int = 0
    nonzero: bool = False
    first_bad: int | None = None
    complete: bool = True
