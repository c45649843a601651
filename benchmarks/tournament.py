"""How well a tournament finds bad members of simulated fleets. Prints recall, precision and rounds by fleet size.

``python -m benchmarks.tournament [--members 8 64 512 4096] [--rails 8] [--fleets 20]``. Each fleet has 0 to 3 bad
members or links, 5 % noise on every meeting, and 1 % of meetings that something else made three times as slow. With
``--rails`` 0 to 3 nodes, ports, links or rails are bad, each told from the others. Large fleets play 64 rounds only, as
a budget would have it; links that never met cannot be found and are told as untested.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from ddaudit.evidence.rails import confirm_rails, repeat_rounds, suspect_rails
from ddaudit.evidence.tournament import Pair, confirm, confirmation_rounds, coverage, rounds, suspect

SLOW, NOISE, BURST, FACTOR = 3.0, 0.05, 0.01, 2.0


@dataclass
class Fleet:
    """What is wrong with a simulated fleet."""

    members: int
    bad: set[int]
    links: set[Pair]
    chance: random.Random

    @classmethod
    def made(cls, members: int, chance: random.Random) -> Fleet:
        wrong = chance.randrange(0, min(4, members // 4 + 1))
        picked = chance.sample(range(members), 2 * wrong)
        bad = set(picked[: (wrong + 1) // 2])
        ends = picked[len(bad) :]
        links = {(min(a, b), max(a, b)) for a, b in zip(ends[: wrong // 2], ends[wrong // 2 :], strict=False)}
        return cls(members, bad, set(list(links)[: wrong // 2]), chance)

    def meet(self, pair: Pair) -> float:
        slow = SLOW if self.bad & set(pair) or pair in self.links else 1.0
        burst = SLOW if self.chance.random() < BURST else 1.0
        return slow * burst * max(0.5, self.chance.gauss(1.0, NOISE))


@dataclass
class Score:
    found: int = 0
    wanted: int = 0
    accused: int = 0
    right: int = 0
    rounds: int = 0
    tested: int = 0
    pairs: int = 0


def play(fleet: Fleet, most_rounds: int, score: Score) -> None:
    """One tournament with its confirmation, added to the score. A link counts as wanted where its ends met."""
    costs = {pair: fleet.meet(pair) for met in islice(rounds(fleet.members), most_rounds) for pair in met}
    found = suspect(costs, factor=FACTOR)
    again: dict[Pair, list[float]] = {}
    extra = 0
    for _ in range(3):
        for met in confirmation_rounds(found, fleet.members):
            extra += 1
            for pair in met:
                again.setdefault(pair, []).append(fleet.meet(pair))
    accused = confirm(found, costs, again, factor=FACTOR)
    links = {link for link in fleet.links if link in costs}
    score.wanted += len(fleet.bad) + len(links)
    score.found += len(fleet.bad & set(accused.members)) + len(links & set(accused.links))
    score.accused += len(accused.members) + len(accused.links)
    score.right += len(fleet.bad & set(accused.members)) + len(fleet.links & set(accused.links))
    score.rounds += min(most_rounds, fleet.members - 1 + fleet.members % 2) + extra
    pairs_met, all_pairs = coverage(fleet.members, list(costs))
    score.tested, score.pairs = score.tested + pairs_met, score.pairs + all_pairs


@dataclass(frozen=True)
class Fault:
    """``kind`` is "rail", "node", "port" or "link"; a rail has no members, a node no rail."""

    kind: str
    rail: int | None = None
    members: tuple[int, ...] = ()


@dataclass
class RailFleet:
    """What is wrong with a simulated fleet of several rails."""

    members: int
    rails: int
    wrong: set[Fault]
    chance: random.Random

    @classmethod
    def made_of(cls, members: int, rails: int, chance: random.Random) -> RailFleet:
        """At most one rail is bad, and no member has two faults: those are one fault of another kind."""
        wrong: set[Fault] = set()
        picked = iter(chance.sample(range(members), min(members, 8)))
        kinds = ["node", "port", "link", "rail"]
        for _ in range(chance.randrange(0, min(4, members // 4 + 1))):
            kind, rail = chance.choice(kinds), chance.randrange(rails)
            if kind == "rail":
                kinds.remove("rail")
                wrong.add(Fault("rail", rail))
            elif kind == "link":
                wrong.add(Fault("link", rail, tuple(sorted((next(picked), next(picked))))))
            else:
                wrong.add(Fault(kind, rail if kind == "port" else None, (next(picked),)))
        return cls(members, rails, wrong, chance)

    def meet(self, rail: int, pair: Pair) -> float:
        faults = {Fault("rail", rail), Fault("link", rail, pair)}
        faults |= {f for m in pair for f in (Fault("node", None, (m,)), Fault("port", rail, (m,)))}
        slow = SLOW if faults & self.wrong else 1.0
        burst = SLOW if self.chance.random() < BURST else 1.0
        return slow * burst * max(0.5, self.chance.gauss(1.0, NOISE))

    def findable(self, costs: Mapping[int, Mapping[Pair, float]]) -> set[Fault]:
        """Faults that a tournament can show: ports and links of a bad rail are hidden, a link that never met was not
        tested, and a node needs two sound rails to be told from a port."""
        bad_rails = {f.rail for f in self.wrong if f.kind == "rail"}
        sound = [rail for rail in range(self.rails) if rail not in bad_rails]
        found = {f for f in self.wrong if f.kind == "rail"}
        for fault in self.wrong:
            if fault.kind == "node":
                found.add(fault if len(sound) > 1 else Fault("port", sound[0], fault.members))
            elif fault.rail in sound and (fault.kind == "port" or fault.members in costs[sound[0]]):
                found.add(fault)
        return found


def play_rails(fleet: RailFleet, most_rounds: int, score: Score) -> None:
    """One tournament on every rail at once, with its confirmation, added to the score."""
    played = list(islice(rounds(fleet.members), most_rounds))
    costs = {rail: {p: fleet.meet(rail, p) for met in played for p in met} for rail in range(fleet.rails)}
    found = suspect_rails(costs, factor=FACTOR)
    again: dict[int, dict[Pair, list[float]]] = {}
    extra = repeat_rounds(found, fleet.members) * 3
    for rail, pair in ((rail, pair) for met in extra for rail, pairs in met.items() for pair in pairs):
        again.setdefault(rail, {}).setdefault(pair, []).append(fleet.meet(rail, pair))
    told = confirm_rails(found, costs, again, factor=FACTOR)
    accused = {Fault("rail", r) for r in told.rails} | {Fault("node", None, (m,)) for m in told.nodes}
    accused |= {Fault("port", r, (m,)) for m, r in told.ports} | {Fault("link", r, pair) for r, pair in told.links}
    wanted = fleet.findable(costs)
    score.wanted += len(wanted)
    score.found += len(wanted & accused)
    score.accused += len(accused)
    score.right += len(wanted & accused)
    score.rounds += len(played) + len(extra)
    pairs_met, all_pairs = coverage(fleet.members, list(costs[0]))
    score.tested, score.pairs = score.tested + pairs_met, score.pairs + all_pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="*", default=[8, 16, 64, 256, 1024, 4096])
    parser.add_argument("--rails", type=int, default=1)
    parser.add_argument("--fleets", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{'members':>8} {'recall':>7} {'precision':>9} {'rounds':>7} {'pairs met':>9} {'seconds':>8}")
    for members in options.members:
        score, began = Score(), time.perf_counter()
        most = members if members <= 256 else 64
        for number in range(options.fleets):
            chance = random.Random(f"{options.seed}-{members}-{number}")
            if options.rails > 1:
                play_rails(RailFleet.made_of(members, options.rails, chance), most, score)
            else:
                play(Fleet.made(members, chance), most, score)
        recall = score.found / score.wanted if score.wanted else 1.0
        precision = score.right / score.accused if score.accused else 1.0
        seconds = (time.perf_counter() - began) / options.fleets
        print(f"{members:>8} {recall:>7.1%} {precision:>9.1%} {score.rounds / options.fleets:>7.1f} "
              f"{score.tested / score.pairs:>9.1%} {seconds:>8.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
