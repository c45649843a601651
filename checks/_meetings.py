"""What the meetings of a tournament say, read three ways: large messages, small ones, and lost segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from ddaudit.api import Limit, LinkTrials, Meeting, RailAccused, RailSuspects, confirm_rails, suspect_rails

from ._links import NetLimits

__all__ = ["TIMES", "Pair", "Reading", "readings"]

Pair = tuple[int, int]
TIMES, LOST = "times the typical pair", "of the TCP segments"


@dataclass(frozen=True)
class Kind:
    """One thing that is read of a meeting. ``excess`` is what a cost must exceed the typical one by at least."""

    what: str
    unit: str
    read: Callable[[Meeting], float | None]
    limit: Limit
    excess: float
    well: str
    """How those meetings went that were not bad."""


def _kinds(limits: NetLimits) -> tuple[Kind, ...]:
    slow, late_s = limits.slow_factor, limits.slow_excess_s.fail_above or 0.0
    lost = limits.lost_share
    return (
        Kind("large messages", TIMES, lambda m: m.cost_s, slow, late_s, "quick"),
        Kind("small messages", TIMES, lambda m: m.latency_s, slow, late_s, "quick"),
        Kind("TCP segments", LOST, lambda m: m.lost_share, lost, lost.fail_above or 1.0, "spared"),
    )


def readings(trials: LinkTrials, limits: NetLimits) -> Iterator[Reading]:
    """Costs of pairs (by rail and place in it), of the first meetings and of the repeated ones, the worse direction
    counting: times of the largest message, half round trips of the smallest, lost shares. A fixed amount is added to
    all, so that a large factor of next to nothing is nothing."""
    factor = limits.slow_factor.fail_above or 4.0
    place = {rank: (rail, index) for rail, lane in enumerate(trials.lanes) for index, rank in enumerate(lane)}
    for kind in _kinds(limits):
        costs: dict[int, dict[Pair, float]] = {rail: {} for rail in range(len(trials.lanes))}
        sides: dict[tuple[int, Pair], list[list[float]]] = {}
        for meeting in trials.meetings:
            read = kind.read(meeting)
            if read is None:
                continue
            (rail, mine), (_, other) = place[meeting.source], place[meeting.target]
            pair = (min(mine, other), max(mine, other))
            cost = read + kind.excess / (factor - 1)
            if meeting.again:
                sides.setdefault((rail, pair), [[], []])[0 if mine < other else 1].append(cost)
            else:
                costs[rail][pair] = max(cost, costs[rail].get(pair, 0.0))
        again: dict[int, dict[Pair, list[float]]] = {rail: {} for rail in costs}
        for (rail, pair), (one, two) in sides.items():
            again[rail][pair] = [max(x) for x in zip(one, two, strict=False)]
        if any(costs.values()):
            yield Reading(kind, costs, again, factor)


@dataclass(frozen=True)
class Reading:
    """What one kind of reading says of the fleet. Costs are by rail and pair of places in it."""

    kind: Kind
    costs: Mapping[int, Mapping[Pair, float]]
    again: Mapping[int, Mapping[Pair, list[float]]]
    factor: float

    @cached_property
    def suspects(self) -> RailSuspects:
        return suspect_rails(self.costs, factor=self.factor)

    def accused(self) -> RailAccused:
        return confirm_rails(self.suspects, self.costs, self.again, factor=self.factor)

    def usual(self, rail: int, member: int | None = None) -> float:
        """The median cost of the rail's meetings, or of a member's on it."""
        return median(c for p, c in self.costs[rail].items() if member is None or member in p)

    def value(self, cost: float) -> float:
        """The cost as it is told: in times of the typical one, or the share itself."""
        return cost - self.kind.excess / (self.factor - 1) if self.kind.unit == LOST else cost / self.suspects.typical

    def worse(self, cost: float) -> str:
        value = self.value(cost)
        if self.kind.unit == LOST:
            return f"were lost and sent again in {value:.1%} of cases"
        return f"take {value:.1f} times as long as elsewhere"
