"""Do boxes tile a tensor? Bounds, overlaps and holes of n-dimensional chunks, without comparing every pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

_PAIRS_MAX = 4_000_000
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class Cover:
    """``volume`` of ``size`` elements are covered. ``outside``, ``overlap``, ``hole``: the first case of each."""

    size: int
    volume: int
    outside: int | None = None  # index of a chunk beyond the tensor
    overlap: tuple[int, int] | None = None  # indices of two chunks that share elements
    hole: tuple[int, ...] | None = None  # first element that no chunk covers
    malformed: int | None = None  # index of a chunk with another number of dimensions, or negative numbers
    unchecked: bool = False  # too many irregular chunks for the overlap test


def cover(shape: Sequence[int], boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Cover:
    """Examines (offsets, sizes) boxes against a tensor of ``shape``. Zero-size boxes are legal and ignored."""
    dims = len(shape)
    made = Cover(prod(shape), 0)
    for index, (offsets, sizes) in enumerate(boxes):
        if len(offsets) != dims or len(sizes) != dims or any(type(n) is not int or n < 0 for n in (*offsets, *sizes)):
            made.malformed = index
            return made
        if any(o + n > whole for o, n, whole in zip(offsets, sizes, shape, strict=True)):
            made.outside = index
            return made
    made.volume = sum(prod(sizes) for _, sizes in boxes)
    if dims == 0:
        made.volume = min(1, len(boxes))
        made.overlap = (0, 1) if len(boxes) > 1 else None
        made.hole = () if not boxes else None
        return made
    kept = [i for i, (_, sizes) in enumerate(boxes) if prod(sizes)]
    if len(kept) > 1 and not _is_stack(shape, [boxes[i] for i in kept]):
        low = np.array([boxes[i][0] for i in kept], dtype=np.int64)
        high = low + np.array([boxes[i][1] for i in kept], dtype=np.int64)
        _find_overlap(made, low, high, kept)
    if made.volume < made.size and made.overlap is None:
        made.hole = _first_hole(shape, [boxes[i] for i in kept])
    return made


def _is_stack(shape: Sequence[int], boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> bool:
    """True for slices along one dimension, each beginning no earlier than the one before it ends: how nearly every
    tensor is cut."""
    cut = [d for d, whole in enumerate(shape) if any(sizes[d] != whole for _, sizes in boxes)]
    if len(cut) != 1:
        return False
    end = 0
    for start, length in sorted((offsets[cut[0]], sizes[cut[0]]) for offsets, sizes in boxes):
        if start < end:
            return False
        end = start + length
    return True


def _find_overlap(made: Cover, low: Ints, high: Ints, kept: list[int]) -> None:
    """Sweeps along the dimension with the most different offsets; only boxes that meet there are compared whole."""
    axis = int(np.argmax([len(np.unique(low[:, d])) for d in range(low.shape[1])]))
    order = np.lexsort((*(low[:, d] for d in range(low.shape[1])), low[:, axis]))
    low, high = low[order], high[order]
    ends = np.maximum.accumulate(high[:, axis])
    if bool(np.all(low[1:, axis] >= ends[:-1])):
        return
    if _is_grid(low, high):
        return
    reach = np.searchsorted(low[:, axis], high[:, axis], side="left")
    if int(np.sum(reach - np.arange(len(low)))) > _PAIRS_MAX:
        made.unchecked = True
        return
    for i in range(len(low) - 1):
        others = slice(i + 1, int(reach[i]))
        meet = np.all((low[others] < high[i]) & (low[i] < high[others]), axis=1)
        if meet.any():
            made.overlap = (kept[int(order[i])], kept[int(order[i + 1 + int(np.argmax(meet))])])
            return


def _is_grid(low: Ints, high: Ints) -> bool:
    """True when every box is a distinct cell of the grid that all their edges draw: then none can overlap."""
    cells = []
    for d in range(low.shape[1]):
        starts, index = np.unique(low[:, d], return_inverse=True)
        stops = np.unique(high[:, d])
        if len(starts) != len(stops) or not np.array_equal(high[:, d], stops[index]) or np.any(starts[1:] < stops[:-1]):
            return False
        cells.append(index.reshape(-1))
    return len(np.unique(np.stack(cells, axis=1), axis=0)) == len(low)


def _first_hole(shape: Sequence[int], boxes: list[tuple[Sequence[int], Sequence[int]]]) -> tuple[int, ...]:
    """The first uncovered element in C order: in each dimension, the first slab that the boxes do not fill.

    A sweep over the boxes' edges keeps the covered volume of the slab, so the cost is that of sorting them.
    """
    prefix: list[int] = []
    alive = boxes
    for d, whole in enumerate(shape):
        change: dict[int, int] = {0: 0}
        for offset, size in alive:
            volume = prod(size[d + 1 :])
            change[offset[d]] = change.get(offset[d], 0) + volume
            change[offset[d] + size[d]] = change.get(offset[d] + size[d], 0) - volume
        at = _first_thin(change, whole, prod(shape[d + 1 :]))
        prefix.append(0 if at is None else at)
        if at is not None:
            alive = [b for b in alive if b[0][d] <= at < b[0][d] + b[1][d]]
    return tuple(prefix)


def _first_thin(change: dict[int, int], whole: int, full: int) -> int | None:
    """The first edge below ``whole`` from which on less than ``full`` is covered."""
    covered = 0
    for edge in sorted(change):
        covered += change[edge]
        if edge < whole and covered < full:
            return edge
    return None
