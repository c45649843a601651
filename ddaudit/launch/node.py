"""One other node of a run, as the conductor knows it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ddaudit.launch.states import Sample
from ddaudit.launch.wire import Channel

__all__ = ["Node", "unique_name"]


def unique_name(host: str, taken: Collection[str]) -> str:
    """A host's name, reduced to what is safe in a file name. Hosts that share one (containers often do) get numbers."""
    clean = "".join(c if (c.isalnum() and c.isascii()) or c in "_-" else "_" for c in host)[:50] or "node"
    numbered = (f"{clean}-{n}" for n in itertools.count(2))
    return clean if clean not in taken else next(name for name in numbered if name not in taken)


class Node:
    """An agent that said hello. ``ranks`` are its ranks of the running step, ``over`` that all of them are gone."""

    def __init__(self, rank: int, host: str, channel: Channel, gpus: int) -> None:
        self.rank, self.host, self.channel, self.gpus = rank, host, channel, gpus
        self.ready: Mapping[str, Any] | None = None
        self.lost: str | None = None
        self.ranks: list[int] = []
        self.over = True
        self.samples: dict[int, Sample | None] | None = None
        self.clock_offset_s: float | None = None
        """What its wall clock is ahead of ours, by the quickest round trip so far."""
        self._best_rtt_s = float("inf")
        self._ended: set[int] = set()
        self._asked_at: float | None = None
        self._heard_wall = time.time()

    @property
    def usable(self) -> bool:
        return self.lost is None and self.ready is not None

    def begin(self, ranks: Sequence[int]) -> None:
        """A step starts with these ranks here."""
        self.ranks, self.over, self._ended = list(ranks), False, set()

    def note(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "ended":
            self._ended.add(int(event["rank"]))

    def asked(self) -> None:
        """A ping goes out; the oldest that was not answered counts."""
        self._asked_at = self._asked_at or time.monotonic()

    def heard(self) -> None:
        self._asked_at, self._heard_wall = None, time.time()

    @property
    def silent_s(self) -> float:
        """Seconds since the oldest ping without an answer."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    def measure_clock(self, pong: Mapping[str, Any]) -> None:
        """Half the round trip is the error bound, so the quickest one counts."""
        rtt_s = time.monotonic() - float(pong["sent"])
        if 0 <= rtt_s < self._best_rtt_s:
            self._best_rtt_s = rtt_s
            self.clock_offset_s = float(pong["t"]) - (time.time() - rtt_s / 2)

    def lose(self, why: str) -> list[dict[str, Any]]:
        """Nothing more will come of it: the end of every rank that had not ended."""
        self.lost = why
        left = [] if self.over else [r for r in self.ranks if r not in self._ended]
        self.over = True
        nothing = {"code": None, "signal": None, "finished": False, "cpu_s": None, "max_rss_bytes": None}
        return [{"event": "ended", "t": self._heard_wall, "rank": r, **nothing, "lost": why} for r in left]
