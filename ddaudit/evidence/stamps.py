"""When each rank came to each collective and left it: what parts waiting for the last peer from the wire.

Stamps are read from one host's monotonic clock, which its processes share; clocks of different hosts say nothing about
each other, and a reader has to compare durations there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddaudit.evidence.base import Array
from ddaudit.evidence.events import Stream

if TYPE_CHECKING:
    import numpy as np

__all__ = ["stamp_arrays"]

AXES = ("rank", "step", "slot")


def stamp_arrays(streams: Sequence[Stream], steps: Sequence[int]) -> tuple[list[list[int]], dict[str, Array]]:
    """Groups (global ranks of each), and the arrays ``stamp_group`` (index of the group, -1 where unused), ``arrived``
    and ``left`` (seconds on the host's clock, less the earliest start of any step), all [rank, step, slot]; no arrays
    where nothing was stamped. Malformed stamps are left out: events may come from a damaged file.
    """
    import numpy as np

    column = {step: index for index, step in enumerate(steps)}
    groups: dict[tuple[int, ...], int] = {}
    cells: dict[tuple[int, int], list[tuple[int, float, float]]] = {}
    starts: dict[tuple[int, int], float] = {}
    for row, stream in enumerate(streams):
        local: list[tuple[int, ...] | None] = []
        numbers: dict[int, int] = {}
        for event in stream.of("step"):
            at = (row, column[int(event["step"])])
            if "groups" in event:  # told when they change
                local, numbers = _own_groups(event["groups"]), {}
            if found := list(_stamps(event, local, numbers, groups)):
                cells[at], starts[at] = found, float(event["begin_s"])
    if not cells:
        return [], {}
    origin = min(starts.values())
    shape = (len(streams), len(steps), max(len(found) for found in cells.values()))
    group: np.ndarray[Any, np.dtype[Any]] = np.full(shape, -1, dtype=np.int64)
    arrived, left = np.full(shape, np.nan), np.full(shape, np.nan)
    for at, found in cells.items():
        used = slice(0, len(found))
        group[at][used] = [g for g, _, _ in found]
        arrived[at][used] = [starts[at] - origin + a for _, a, _ in found]
        left[at][used] = [starts[at] - origin + b for _, _, b in found]
    named = {"stamp_group": Array(group, "1", AXES), "arrived": Array(arrived, "s", AXES)}
    return [list(g) for g in groups], named | {"left": Array(left, "s", AXES)}


def _own_groups(told: Any) -> list[tuple[int, ...] | None]:
    """A rank's groups; None for what is no group."""
    return [tuple(g) if _is_group(g) else None for g in told] if isinstance(told, list) else []


def _stamps(
    event: Mapping[str, Any],
    local: Sequence[tuple[int, ...] | None],
    numbers: dict[int, int],
    groups: dict[tuple[int, ...], int],
) -> Iterator[tuple[int, float, float]]:
    """(group, arrived, left) of one step event of a rank whose own groups are ``local``. New groups are added to
    ``groups``; ``numbers`` keeps the rank's own, since looking a group of thousands up takes its length."""
    stamps = event.get("stamps")
    if not isinstance(stamps, list) or not isinstance(event.get("begin_s"), float):
        return
    for stamp in stamps:
        match stamp:
            case [int(index), float(arrived), float(left)] if 0 <= index < len(local):
                if index not in numbers and (members := local[index]) is not None:
                    numbers[index] = groups.setdefault(members, len(groups))
                if index in numbers:
                    yield numbers[index], arrived, left


def _is_group(ranks: Any) -> bool:
    return isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks)
