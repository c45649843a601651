"""What ``benchmarks/chaos.py`` plants, and when: kinds of faults, moments of a run, and what may be said of each."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["FAULTS", "MOMENTS", "Fault", "Strike", "draw"]

#: Moments of a run, in order: what has just happened when the fault strikes, and how long after it at most (s).
MOMENTS: dict[str, tuple[str, float]] = {
    "join": ("the processes of the run were started", 1.0),
    "first": ("a rank of the first step wrote its first event", 0.2),
    "between": ("the first step has ended", 0.1),
    "start": ("the second step's events began: ranks start and meet", 0.6),
    "probe": ("all ranks are in the second step's probe", 0.7),
    "judge": ("the second step was told to end", 0.4),
    "report": ("the run has ended, its report is being written", 0.15),
    "shutdown": ("the report is there", 0.1),
}
ALWAYS = tuple(MOMENTS)
#: While there are ranks.
RANKS = ("first", "start", "probe", "judge")


@dataclass(frozen=True)
class Fault:
    """``ids``: findings that may name the victim; ``codes``: how the conductor may leave beside 0, 1 and 3;
    ``interrupts``: the run may end as interrupted; ``ends``: verdict of a run that is hit by this alone in its probe;
    ``holds``: the step goes on, so that it must be told to end."""

    ends: str
    ids: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    interrupts: bool = False
    holds: bool = False
    moments: tuple[str, ...] = ALWAYS


_LOST = Fault("FAIL", ("launch.host-lost",))
_DIES = ("launch.rank-lost",)
_TERM = Fault("INTERRUPTED", (), (143, -15), interrupts=True)
#: A full or read-only disk ends a run that has no folder yet with 2: nothing was launched.
_STORAGE = Fault("INTERRUPTED", (), (2,), interrupts=True, holds=True)
FAULTS: dict[str, Fault] = {
    "kill-rank": Fault("FAIL", _DIES, moments=RANKS),
    "stop-rank": Fault("FAIL", ("launch.rank-hung",), moments=RANKS),
    "late-rank": Fault("PASS", holds=True, moments=RANKS),
    "kill-agent": _LOST,
    "stop-agent": _LOST,
    "term-agent": _TERM,
    "late-agent": Fault("PASS", holds=True, moments=("join",)),
    "kill-conductor": Fault("INTERRUPTED", (), (-9,), interrupts=True),
    "stop-conductor": Fault("INCONCLUSIVE", interrupts=True),
    "term-conductor": _TERM,
    "int-conductor": Fault("INTERRUPTED", (), (130,), interrupts=True),
    "int-twice": Fault("INTERRUPTED", (), (130,), interrupts=True),
    "hup-conductor": Fault("INTERRUPTED", (), (143, -1), interrupts=True),
    "term-all": _TERM,
    "cut-in": _LOST,
    "cut-out": _LOST,
    "cut-both": _LOST,
    "storage-full": _STORAGE,
    "storage-read-only": _STORAGE,
    "storage-hangs": Fault("INTERRUPTED", interrupts=True, holds=True),
    "clock-skew": Fault("FAIL", _DIES, moments=RANKS),
}


@dataclass
class Strike:
    """One fault of a run: its kind, moment, delay behind that (s) and victim (a node)."""

    fault: str
    moment: str
    after_s: float
    victim: int
    hit: bool = False

    @property
    def kind(self) -> Fault:
        return FAULTS[self.fault]


def draw(
    chance: random.Random, count: int, *, only: Collection[str], moments: Collection[str], pair: bool
) -> list[Strike]:
    """One fault of a run of ``count`` hosts, or two of different kinds, in the order in which they strike."""
    first = _one(chance, count, [f for f in FAULTS if f in only], moments)
    others = [f for f in FAULTS if f.partition("-")[::2] != first.fault.partition("-")[::2]]
    # Two mounts over one folder, and two networks, would be faults of the benchmark.
    apart = [f for f in others if f.partition("-")[0] not in ("storage", "cut") or not _same(f, first.fault)]
    both = [first, _one(chance, count, apart, moments)] if pair else [first]
    order = list(MOMENTS)
    return sorted(both, key=lambda s: (order.index(s.moment), s.after_s))


def _same(one: str, other: str) -> bool:
    return one.partition("-")[0] == other.partition("-")[0]


def _one(chance: random.Random, count: int, faults: list[str], moments: Collection[str]) -> Strike:
    fits = [f for f in faults if set(FAULTS[f].moments) & set(moments)]
    fault = chance.choice(fits)
    moment = chance.choice([m for m in FAULTS[fault].moments if m in moments])
    at_conductor = fault.startswith("storage") or "conductor" in fault or fault == "int-twice"
    victim = 0 if at_conductor else chance.randrange(1, count)
    return Strike(fault, moment, chance.uniform(0.0, MOMENTS[moment][1]), victim)
