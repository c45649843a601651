"""Collectives timed and checked: what each took by size and group, and what came out wrong."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.bandwidth import Fit, algbw_gbps, busbw_gbps, fit_alpha_beta
from ddaudit.evidence.base import JsonEvidence
from ddaudit.evidence.events import Stream

__all__ = ["CollectivePoint", "CollectiveSweep", "PairTime", "Spread", "WrongResult"]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Spread(_Strict):
    """Seconds of repeated calls. One call's time is that of the last rank to finish it."""

    repeats: int
    low_s: float
    median_s: float
    high_s: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        return cls(repeats=len(seconds), low_s=min(seconds), median_s=statistics.median(seconds), high_s=max(seconds))


class CollectivePoint(_Strict):
    """One operation at one size in one group; one spread for each pass of the sweep."""

    op: str
    group: tuple[int, ...]
    bytes: int
    passes: tuple[Spread, ...]

    @property
    def median_s(self) -> float:
        """The quietest pass's median: what else the machine did only ever adds time."""
        return min(p.median_s for p in self.passes)

    @property
    def algbw_gbps(self) -> float:
        return algbw_gbps(self.bytes, self.median_s)

    @property
    def busbw_gbps(self) -> float:
        return busbw_gbps(self.op, self.bytes, self.median_s, len(self.group))


class WrongResult(_Strict):
    """What one rank received and should not have. ``source``: whose part it is, where the operation tells."""

    op: str
    bytes: int
    rank: int
    host: str
    source: int | None = None
    wrong: int
    elements: int
    index: int
    expected: float
    got: float | None
    """None for NaN."""


class PairTime(_Strict):
    """Half the round trip of a message between two ranks that are alone on the wire, for each pass."""

    ranks: tuple[int, int]
    hosts: tuple[str | None, str | None]
    bytes: int
    passes: tuple[Spread, ...]


class CollectiveSweep(JsonEvidence):
    """Assembled from the times that every rank recorded by itself, so that no result depends on the wire under test.

    ``checked`` counts the results that were compared with the right answer, over all ranks, operations and sizes.
    """

    kind: ClassVar[str] = "collectives"

    backend: str
    world_size: int
    checked: int = 0
    points: tuple[CollectivePoint, ...] = ()
    wrong: tuple[WrongResult, ...] = ()
    pairs: tuple[PairTime, ...] = ()

    @classmethod
    def assemble(cls, streams: Sequence[Stream]) -> Self | None:
        head = next((e for s in streams for e in s.of("collective-sweep")), None)
        if head is None:
            return None
        timed: dict[tuple[str, tuple[int, ...], int], dict[int, list[list[float]]]] = defaultdict(dict)
        for event in (e for s in streams for e in s.of("collective")):
            key = (event["op"], tuple(event["group"]), event["bytes"])
            timed[key].setdefault(event["rank"], []).append(event["seconds"])
        return cls(
            backend=head["backend"],
            world_size=head["world_size"],
            checked=sum(e["checked"] for s in streams for e in s.of("collective")),
            points=tuple(
                _point(op, group, size, ranks) for (op, group, size), ranks in timed.items() if set(ranks) == set(group)
            ),
            wrong=tuple(WrongResult(**e["result"]) for s in streams for e in s.of("collective-wrong")),
            pairs=_pairs([e for s in streams for e in s.of("pair")], _hosts(streams)),
        )

    def curves(self) -> dict[tuple[str, tuple[int, ...]], list[CollectivePoint]]:
        """The points of each operation and group, by size."""
        found: dict[tuple[str, tuple[int, ...]], list[CollectivePoint]] = defaultdict(list)
        for point in sorted(self.points, key=lambda p: p.bytes):
            found[point.op, point.group].append(point)
        return dict(found)

    def fits(self) -> dict[tuple[str, tuple[int, ...]], Fit]:
        """The latency-bandwidth model of each operation and group with at least three sizes."""
        curves = {key: [(p.bytes, p.median_s) for p in points] for key, points in self.curves().items()}
        return {key: fit for key, points in curves.items() if (fit := fit_alpha_beta(points)) is not None}


def _point(op: str, group: tuple[int, ...], size: int, by_rank: Mapping[int, list[list[float]]]) -> CollectivePoint:
    """Of each call the time of its slowest rank; passes that some rank did not finish are left out."""
    passes = [
        Spread.of([max(calls) for calls in zip(*ranks, strict=False)]) for ranks in zip(*by_rank.values(), strict=False)
    ]
    return CollectivePoint(op=op, group=group, bytes=size, passes=tuple(passes))


def _hosts(streams: Sequence[Stream]) -> dict[int, str]:
    """Host by rank, as each rank told when it started."""
    return {e["rank"]: e["host"] for s in streams for e in s.of("start")}


def _pairs(events: Sequence[dict[str, Any]], hosts: Mapping[int, str]) -> tuple[PairTime, ...]:
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        first, second = event["ranks"]
        found[first, second].append(event)
    return tuple(
        PairTime(
            ranks=ranks,
            hosts=(hosts.get(ranks[0]), hosts.get(ranks[1])),
            bytes=passes[0]["bytes"],
            passes=tuple(Spread.of(e["seconds"]) for e in passes),
        )
        for ranks, passes in sorted(found.items())
    )
