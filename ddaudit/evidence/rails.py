"""Bad rails apart from bad ports, nodes and links. Pure arithmetic on tournaments of several rails.

A *rail* is the interface of one index on every node, with the switches that join those interfaces. Each rail plays a
tournament of its own, all at the same time, and one yardstick serves them all: a rail whose meetings are slow with
everybody, while the same nodes are quick on the next rail, is a bad rail. A member that is slow on one sound rail has a
bad *port* there; one that is slow on every sound rail is a bad *node*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from ddaudit.evidence.tournament import Pair, Suspects, best_costs, confirm, confirmation_rounds, suspect, usual_cost

__all__ = [
    "Costs",
    "RailAccused",
    "RailSuspects",
    "Repeats",
    "Round",
    "confirm_rails",
    "repeat_rounds",
    "suspect_rails",
]

Costs = Mapping[int, Mapping[Pair, float]]
"""By rail, then by pair of members, what their first meeting cost."""
Repeats = Mapping[int, Mapping[Pair, Sequence[float]]]
"""By rail, then by pair of members, what their later meetings cost."""
Round = Mapping[int, Sequence[Pair]]
"""By rail, pairs that meet at the same time."""

#: Pairs of sound members that meet again on a suspected rail, and on a sound one for comparison.
SWAPS = 3


@dataclass(frozen=True)
class RailSuspects:
    """``rails`` are those on which hardly anybody met quickly; ``by_rail`` holds the suspects of each other rail, by
    the one yardstick ``typical``."""

    rails: tuple[int, ...] = ()
    by_rail: Mapping[int, Suspects] = field(default_factory=dict)
    typical: float = 0.0


def suspect_rails(costs: Costs, *, factor: float, share: float = 0.6) -> RailSuspects:
    """Which rails, and which members and links of the other rails, are worth a second look.

    A rail is suspected where ``share`` of its members did not meet anybody quickly on it: one bad member spoils the
    meetings of all others, but not their best. At most half of the rails can be: without a quick half there is no
    yardstick.
    """
    best = {rail: best_costs(met) for rail, met in costs.items() if met}
    typical = usual_cost([cost for of_rail in best.values() for cost in of_rail.values()])
    if typical is None:
        return RailSuspects()
    slow = {rail: sum(c >= factor * typical for c in b.values()) / len(b) for rail, b in best.items()}
    rails = tuple(rail for rail, part in slow.items() if part >= share) if len(best) > 1 else ()
    if 2 * len(rails) > len(best):
        rails = ()
    found = {
        rail: suspect(costs[rail], factor=factor, share=share, typical=typical) for rail in best if rail not in rails
    }
    return RailSuspects(rails, found, typical)


def repeat_rounds(found: RailSuspects, members: int, *, partners: int = 2) -> list[Round]:
    """Meetings that must take place before anything is accused; rails meet at the same time.

    Pairs of members that nobody suspects meet on each suspected rail and on a sound one: only the rail is swapped.
    Members and links of sound rails are confirmed as in a tournament without rails.
    """
    plans: dict[int, list[list[Pair]]] = {
        rail: confirmation_rounds(suspects, members, partners=partners) for rail, suspects in found.by_rail.items()
    }
    if found.rails and found.by_rail:
        swaps = [[pair] for pair in _swapped(found, members)]
        for rail in (*found.rails, _sound(found)):
            plans[rail] = [*plans.get(rail, []), *swaps]
    longest = zip_longest(*plans.values(), fillvalue=())
    return [{rail: pairs for rail, pairs in zip(plans, met, strict=True) if pairs} for met in longest]


def _sound(found: RailSuspects) -> int:
    """The rail that suspected rails are compared with: the one with fewest suspects."""
    return min(found.by_rail, key=lambda rail: (len(found.by_rail[rail].doubtful()), rail))


def _swapped(found: RailSuspects, members: int) -> list[Pair]:
    """Neighbours of whom nobody is suspected with everybody, and who were quick with each other on the sound rail. In a
    large fleet chance puts nearly every member at the end of some suspected link, so links rule out pairs only."""
    bad = {m for suspects in found.by_rail.values() for m in suspects.members}
    slow = set(found.by_rail[_sound(found)].links)
    good = [m for m in range(members) if m not in bad]
    ring = [(min(a, b), max(a, b)) for a, b in zip(good, [*good[1:], *good[:1]], strict=True) if a != b]
    return [pair for pair in dict.fromkeys(ring) if pair not in slow][:SWAPS]


@dataclass(frozen=True)
class RailAccused:
    """Who is accused, each with its confidence: the share of all its meetings, first and repeated, that were slow.
    Ports are (member, rail) and links (rail, pair)."""

    rails: Mapping[int, float] = field(default_factory=dict)
    nodes: Mapping[int, float] = field(default_factory=dict)
    ports: Mapping[tuple[int, int], float] = field(default_factory=dict)
    links: Mapping[tuple[int, Pair], float] = field(default_factory=dict)


def confirm_rails(found: RailSuspects, costs: Costs, again: Repeats, *, factor: float) -> RailAccused:
    """Accuses a rail only where sound members were slow on it each time and quick on another rail; a member's port and
    a link as :func:`ddaudit.evidence.tournament.confirm` does; a node where its port is bad on every sound rail, of
    which there must be two."""
    rails = {rail: _certainty(found, rail, costs, again, factor) for rail in found.rails}
    ports: dict[tuple[int, int], float] = {}
    links: dict[tuple[int, Pair], float] = {}
    for rail, suspects in found.by_rail.items():
        accused = confirm(suspects, costs[rail], again.get(rail, {}), factor=factor)
        ports |= {(member, rail): sure for member, sure in accused.members.items()}
        links |= {(rail, pair): sure for pair, sure in accused.links.items()}
    nodes: dict[int, float] = {}
    for member in {member for member, _ in ports}:
        mine = {rail: ports[member, rail] for rail in found.by_rail if (member, rail) in ports}
        if len(mine) == len(found.by_rail) > 1:
            nodes[member] = min(mine.values())
    ports = {port: sure for port, sure in ports.items() if port[0] not in nodes}
    return RailAccused({rail: sure for rail, sure in rails.items() if sure is not None}, nodes, ports, links)


def _certainty(found: RailSuspects, rail: int, costs: Costs, again: Repeats, factor: float) -> float | None:
    """The share of the rail's meetings that were slow; None where swapping to another rail did not help, or did not
    take place."""
    bound = factor * found.typical
    here, there = again.get(rail, {}), again.get(_sound(found), {}) if found.by_rail else {}
    swapped = [pair for pair in here if pair in there]
    slow = all(cost >= bound for pair in swapped for cost in here[pair])
    quick = all(min(there[pair]) < bound for pair in swapped)
    if not swapped or not slow or not quick:
        return None
    everything = [*costs[rail].values(), *(cost for many in here.values() for cost in many)]
    return sum(cost >= bound for cost in everything) / len(everything)
