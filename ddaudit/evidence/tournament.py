"""Finding a bad member of a fleet by pairs: who meets whom, and whom the slow meetings have in common. Pure arithmetic.

A meeting's cost is a time: the larger, the worse. A bad *member* is slow with everybody, a bad *link* is slow between
two members who are quick with others. :mod:`ddaudit.evidence.rails` plays one tournament for each rail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

__all__ = [
    "Accused",
    "Pair",
    "Suspects",
    "best_costs",
    "confirm",
    "confirmation_rounds",
    "coverage",
    "rounds",
    "suspect",
    "usual_cost",
]

Pair = tuple[int, int]
"""Two members, the lower first."""


def rounds(members: int) -> Iterator[list[Pair]]:
    """The circle method: ``members - 1`` rounds (``members`` where that is odd) in which everybody meets everybody
    once, all pairs of a round at the same time. Source: Kirkman's round-robin schedule (1847)."""
    seats = list(range(members)) + ([-1] if members % 2 else [])
    half = len(seats) // 2
    for _ in range(max(0, len(seats) - 1)):
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in met if a >= 0 and b >= 0]
        seats.insert(1, seats.pop())


@dataclass(frozen=True)
class Suspects:
    """Members whose meetings are mostly slow, and slow pairs that no such member explains. ``typical`` is the median
    cost of all meetings."""

    members: tuple[int, ...] = ()
    links: tuple[Pair, ...] = ()
    typical: float = 0.0

    def doubtful(self) -> set[int]:
        """Members that are suspected or at the end of a suspected link."""
        return set(self.members) | {m for pair in self.links for m in pair}


def best_costs(costs: Mapping[Pair, float]) -> dict[int, float]:
    """What each member's best meeting cost."""
    best: dict[int, float] = {}
    for pair, cost in costs.items():
        for member in pair:
            best[member] = min(cost, best.get(member, cost))
    return best


def usual_cost(bests: Sequence[float]) -> float | None:
    """The median of the quicker half of the members' best meetings; None without any."""
    return median(sorted(bests)[: max(1, (len(bests) + 1) // 2)]) if bests else None


def suspect(
    costs: Mapping[Pair, float], *, factor: float, share: float = 0.6, typical: float | None = None
) -> Suspects:
    """Who is worth a second look: a member with ``share`` of its meetings at ``factor`` times the typical cost, worst
    first; without that member's meetings, the next one; then the slow pairs that are left.

    The typical cost, where none is given, is :func:`usual_cost`: a bad member cannot spoil its partners' best, nor a
    bad half of a small fleet the median of all.
    """
    best = best_costs(costs)
    typical = usual_cost(list(best.values())) if typical is None else typical
    if typical is None:
        return Suspects()
    slow = {pair for pair, cost in costs.items() if cost >= factor * typical}
    met: dict[int, set[Pair]] = {m: set() for m in best}
    for pair in slow:
        for member in pair:
            met[member].add(pair)
    left = _meetings(costs)
    found: list[int] = []
    while True:
        shares = {m: len(pairs) / left[m] for m, pairs in met.items() if left[m] and m not in found}
        worst = max(shares, key=lambda m: (len(met[m]), shares[m]), default=None)
        # Of two members that met slowly once, neither is worse: one meeting accuses the link, not a member.
        if worst is None or shares[worst] < share or len(met[worst]) < 2:
            break
        found.append(worst)
        for pair in list(met[worst]):
            other = pair[0] if pair[1] == worst else pair[1]
            met[other].discard(pair)
            slow.discard(pair)
        met[worst] = set()
        for other in left:
            left[other] -= 1 if (min(worst, other), max(worst, other)) in costs else 0
    return Suspects(tuple(found), tuple(sorted(slow, key=lambda p: -costs[p])), typical)


def _meetings(costs: Mapping[Pair, float]) -> dict[int, int]:
    count: dict[int, int] = {}
    for first, second in costs:
        count[first] = count.get(first, 0) + 1
        count[second] = count.get(second, 0) + 1
    return count


def confirmation_rounds(found: Suspects, members: int, *, partners: int = 2) -> list[list[Pair]]:
    """Meetings that must take place before anybody is accused, packed into rounds in which nobody meets twice.

    A suspected member is swapped onto ``partners`` members that nobody suspects; a suspected link is tried again, and
    each of its ends with a member that nobody suspects.
    """
    doubtful = found.doubtful()
    good = [m for m in range(members) if m not in doubtful] or [m for m in range(members) if m not in found.members]
    wanted: list[Pair] = []
    for number, member in enumerate(found.members):
        for offset in range(min(partners, len(good))):
            other = good[(number * partners + offset) % len(good)]
            wanted.append((min(member, other), max(member, other)))
    for number, link in enumerate(found.links):
        wanted.append(link)
        for end in link:
            fit = [g for g in good if g not in link]
            if fit:
                other = fit[number % len(fit)]
                wanted.append((min(end, other), max(end, other)))
    return _packed(list(dict.fromkeys(wanted)))


def _packed(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Greedy edge colouring: at most twice the busiest member's meetings."""
    packed: list[list[Pair]] = []
    busy: list[set[int]] = []
    for first, second in pairs:
        at = next((i for i, b in enumerate(busy) if first not in b and second not in b), len(packed))
        if at == len(packed):
            packed.append([])
            busy.append(set())
        packed[at].append((first, second))
        busy[at] |= {first, second}
    return packed


@dataclass(frozen=True)
class Accused:
    """Who is accused. ``confidence``: the share of all the accused one's meetings, first and repeated, that were slow.
    ``cleared`` were suspected and quick when tried again."""

    members: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[Pair, float] = field(default_factory=dict)
    cleared: tuple[int | Pair, ...] = ()


def confirm(
    found: Suspects, costs: Mapping[Pair, float], again: Mapping[Pair, Sequence[float]], *, factor: float
) -> Accused:
    """Accuses only what was slow each time it was tried again: a member with every good partner, a link itself while
    its ends were quick with others. A suspect that was not tried again is not accused."""
    bound = factor * found.typical
    members: dict[int, float] = {}
    links: dict[Pair, float] = {}
    cleared: list[int | Pair] = []
    for member in found.members:
        repeats = [c for pair, many in again.items() if member in pair for c in many if _fair(pair, member, found)]
        if repeats and all(c >= bound for c in repeats):
            everything = [c for pair, c in costs.items() if member in pair and _fair(pair, member, found)] + repeats
            members[member] = sum(c >= bound for c in everything) / len(everything)
        else:
            cleared.append(member)
    for link in found.links:
        repeats = list(again.get(link, ()))
        ends = [c for pair, many in again.items() if pair != link and set(pair) & set(link) and pair not in found.links
                for c in many]  # fmt: skip
        if repeats and all(c >= bound for c in repeats) and ends and min(ends) < bound:
            everything = [costs[link], *repeats]
            links[link] = sum(c >= bound for c in everything) / len(everything)
        else:
            cleared.append(link)
    return Accused(members, links, tuple(cleared))


def _fair(pair: Pair, member: int, found: Suspects) -> bool:
    """Only meetings with members that are not suspected themselves speak about ``member``."""
    other = pair[0] if pair[1] == member else pair[1]
    return other not in found.members


def coverage(members: int, tested: Sequence[Pair]) -> tuple[int, int]:
    """Distinct pairs that met, and all pairs there are."""
    return len(set(tested)), members * (members - 1) // 2
