"""Links between hosts, measured pair by pair: latency, large messages each way, and what went over which wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import JsonEvidence
from ddaudit.evidence.events import Stream

__all__ = ["Interface", "LinkTrials", "Meeting", "Segments"]

#: Of fewer segments a lost share of 1 % would be less than five.
ENOUGH_SEGMENTS = 500


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Segments(_Strict):
    """TCP segments with data that one side sent to the other, those among them that were sent again, and those of which
    the receiver said that it had them already (RFC 2883)."""

    sent: int
    resent: int
    needless: int = 0

    @property
    def lost_share(self) -> float | None:
        """The share that had to be sent again; None of too few."""
        return max(0, self.resent - self.needless) / self.sent if self.sent >= ENOUGH_SEGMENTS else None


class Meeting(_Strict):
    """One member's side of one meeting: what it sent to the other. ``latency_s`` is half the median round trip of a
    4-byte message; ``seconds`` maps a message's size to its times one way, less that latency for the answer."""

    source: int
    target: int
    again: bool
    """True for a meeting that tried a suspect again."""
    latency_s: float
    seconds: Mapping[int, tuple[float, ...]]
    segments: Segments | None = None
    """None where the kernel does not count, or the messages did not go over TCP."""

    @property
    def lost_share(self) -> float | None:
        """The share of what ``source`` sent that was lost on its way; None where that was not measured."""
        return self.segments.lost_share if self.segments else None

    @property
    def cost_s(self) -> float:
        """The median time of the largest message."""
        return median(self.seconds[max(self.seconds)])

    @property
    def gbps(self) -> float | None:
        """Gigabits per second by the slope between the two largest sizes, so that neither latency nor what a shaper
        lets through at once counts; None where larger messages took no longer."""
        if len(self.seconds) < 2:
            return None
        small, large = sorted(self.seconds)[-2:]
        slope = (median(self.seconds[large]) - median(self.seconds[small])) / (large - small)
        return 8e-9 / slope if slope > 0 else None


class Interface(_Strict):
    """Bytes over one interface of one host during the probe. ``nominal_gbps`` is what the driver says, for hardware
    only; ``chosen`` marks the one that the ranks were told to use."""

    host: str
    name: str
    received: int
    sent: int
    nominal_gbps: float | None = None
    chosen: bool = False


class LinkTrials(JsonEvidence):
    """A round-robin tournament. ``members`` are ranks, one of each host (all ranks of one host where there is only
    one), ``lanes`` for each rail one rank of every member's host, the first rail's being ``members``, and ``hosts``
    the hosts of all of them. ``work_s`` holds each member's times of the same piece of work, by set of passes: one
    before the messages and, where a member was slow in it, more of them afterwards. ``left_out`` counts pairs that the
    budget left no time for."""

    kind: ClassVar[str] = "links"

    members: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...] = ()
    hosts: Mapping[int, str]
    rounds: int
    left_out: int = 0
    budget_s: float | None = None
    expected_gbps: float | None = None
    """The rate that whoever runs it expects of each link."""
    meetings: tuple[Meeting, ...] = ()
    work_s: Mapping[int, tuple[tuple[float, ...], ...]] = {}
    interfaces: tuple[Interface, ...] = ()

    @classmethod
    def assemble(cls, streams: Sequence[Stream]) -> Self | None:
        heads = [e for s in streams for e in s.of("links")]
        if not heads:
            return None
        hosts = {e["rank"]: e["host"] for s in streams for e in s.of("start")}
        ends = [e for s in streams for e in s.of("links-end")]
        members = tuple(heads[0]["members"])
        lanes = tuple(tuple(lane) for lane in heads[0].get("lanes", [members]))
        return cls(
            members=members,
            lanes=lanes,
            hosts={rank: hosts.get(rank, "not known") for lane in lanes for rank in lane},
            rounds=max((e["rounds"] for e in ends), default=0),
            left_out=max((e["left_out"] for e in ends), default=0),
            budget_s=heads[0]["budget_s"],
            expected_gbps=heads[0].get("expected_gbps"),
            meetings=tuple(Meeting(**e["meeting"]) for s in streams for e in s.of("meeting")),
            work_s=_worked(streams),
            interfaces=tuple(Interface(**e["interface"]) for s in streams for e in s.of("interface")),
        )


def _worked(streams: Sequence[Stream]) -> dict[int, tuple[tuple[float, ...], ...]]:
    """Sets of times by member, in the order in which all of them worked."""
    found: dict[int, tuple[tuple[float, ...], ...]] = {}
    for event in (e for s in streams for e in s.of("work")):
        found[event["rank"]] = (*found.get(event["rank"], ()), tuple(event["seconds"]))
    return found
