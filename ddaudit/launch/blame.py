"""Who failed by itself, and who was taken along. Pure: from what was seen of the ranks to the culprits and the reason.

One dead rank fails all others within milliseconds ("connection closed by peer"), and one stuck rank makes all others
wait. The culprit is therefore sought by rules, from the surest to the weakest; where no rule separates the ranks, none
is accused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddaudit.evidence.launch import RankState

__all__ = ["Seen", "blame"]

#: Errors that a peer's death or silence causes: gloo's and NCCL's transport and timeout messages, and the store's.
SECONDARY = re.compile(
    r"closed by peer|reset by peer|gloo/transport|Timed out waiting \d+ ?ms|wait timeout after|socket timeout"
    r"|recvValue failed|failed to (?:recv|send)|remote process (?:has )?exited|monitoredBarrier"
    r"|NCCL communicator was aborted|Watchdog caught collective operation timeout|DistNetworkError|DistStoreError",
    re.IGNORECASE,
)
#: Phases before the probe, in order; ranks in a later one wait for those in an earlier one.
PHASES = ("load", "import", "rendezvous", "first-collective", "probe")


@dataclass(frozen=True)
class Seen:
    """What is known of one rank when the step is over.

    ``failed_at`` (seconds, wall clock) is set when it ended by itself with a failure. ``groups`` maps a process group
    to its ``enqueued`` and ``completed`` sequence numbers and last ``op``. ``main_stack`` is the main thread's stack.
    """

    rank: int
    state: RankState
    failed_at: float | None = None
    signal: str | None = None
    exit_code: int | None = None
    host: str = ""
    lost: str | None = None
    """Why nothing more was heard of its host."""
    error_type: str | None = None
    error: str | None = None
    finished: bool = False
    phases: tuple[str, ...] = ()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answered: bool = False
    main_stack: str = ""

    @property
    def secondary(self) -> bool:
        """True for a failure that another rank's end or silence explains."""
        return (
            self.lost is None and self.error is not None and bool(SECONDARY.search(f"{self.error_type}: {self.error}"))
        )

    @property
    def alive(self) -> bool:
        return self.state in ("on-cpu", "sleeping", "disk", "stopped")

    @property
    def pending(self) -> bool:
        """True while some collective was entered and not left."""
        return any(g["enqueued"] > g["completed"] for g in self.groups.values())


Verdict = dict[int, str]


def blame(ranks: Sequence[Seen]) -> Verdict:
    """Culprits with the reason for each; empty when the ranks cannot be told apart (or all is well)."""
    if all(r.finished or r.state == "done" for r in ranks):
        return {}
    rules = (_failed_first, _stopped, _late_in_start_up, _behind, _silent, _outside, _disk, _busy, _unfinished)
    for rule in rules:
        if found := rule(ranks):
            return found
    return {}


def _failed_first(ranks: Sequence[Seen]) -> Verdict:
    """The first own failure in time, and any rank with the very same one: a bug that all ranks share."""
    own = sorted((r for r in ranks if r.failed_at is not None and not r.secondary), key=lambda r: r.failed_at or 0.0)
    if not own:
        return {}
    first = own[0]
    same = [r for r in own if _manner(r) == _manner(first)]
    shared = f", and so did {len(same) - 1} more" if len(same) > 1 else ""
    return {r.rank: f"it {_how(r)} before any peer failed by itself{shared}" for r in same}


def _manner(rank: Seen) -> tuple[object, ...]:
    """What makes two failures the same one: numbers in messages (ranks, pids, ports) do not count."""
    if rank.lost is not None:
        return ("host", rank.host)
    if rank.error is None:
        return (rank.signal, rank.exit_code)
    return (rank.error_type, re.sub(r"\d+", "", rank.error))


def _how(rank: Seen) -> str:
    if rank.lost is not None:
        return f"was lost with its host, of which nothing more was heard ({rank.lost}),"
    if rank.signal:
        return f"was ended by {rank.signal}"
    return f"raised {rank.error_type}" if rank.error_type else f"left with exit code {rank.exit_code}"


def _stopped(ranks: Sequence[Seen]) -> Verdict:
    why = "it was stopped (SIGSTOP or a debugger) while its peers waited"
    return {r.rank: why for r in ranks if r.state == "stopped"}


def _late_in_start_up(ranks: Sequence[Seen]) -> Verdict:
    reached = {r.rank: max((PHASES.index(p) for p in r.phases if p in PHASES), default=-1) for r in ranks}
    last, most = min(reached.values()), max(reached.values())
    if last == most or most < PHASES.index("rendezvous"):
        return {}
    name = PHASES[last] if last >= 0 else "its start"
    why = f"it was still in {name} while peers had reached {PHASES[most]}"
    return {rank: why for rank, at in reached.items() if at == last}


def _behind(ranks: Sequence[Seen]) -> Verdict:
    """Collectives of a group are entered in one order by all: who entered fewer is whom the others wait for."""
    groups = sorted({g for r in ranks for g in r.groups}, key=lambda g: (-sum(g in r.groups for r in ranks), g))
    late: list[tuple[str, list[Seen], int]] = []
    for group in groups:
        entered = {r.rank: r.groups[group]["enqueued"] for r in ranks if group in r.groups}
        if min(entered.values()) < max(entered.values()):
            low, high = min(entered.values()), max(entered.values())
            late.append((group, [r for r in ranks if entered.get(r.rank) == low], high))
    for group, behind, high in late:
        # A rank that waits in another group is itself waiting for somebody.
        if idle := [r for r in behind if not r.pending]:
            return {r.rank: _lag(r, group, high) for r in idle}
    return {r.rank: _lag(r, late[0][0], late[0][2]) for r in late[0][1]} if late else {}


def _lag(rank: Seen, group: str, high: int) -> str:
    mine = rank.groups[group]["enqueued"]
    where = "finished" if rank.finished else "stood"
    return f"it {where} at collective {mine} of group {group} while peers waited for it in collective {high}"


def _silent(ranks: Sequence[Seen]) -> Verdict:
    alive = [r for r in ranks if r.alive]
    mute = [r for r in alive if not r.answered]
    if not mute or len(mute) == len(alive):
        return {}
    why = "it did not answer the launcher while peers did: a native call holds the interpreter"
    return {r.rank: why for r in mute}


def _outside(ranks: Sequence[Seen]) -> Verdict:
    alive = [r for r in ranks if r.alive and not r.finished and r.main_stack]
    inside = [r for r in alive if "torch/distributed/" in r.main_stack]
    if not inside or len(inside) == len(alive):
        return {}
    why = "its main thread was outside any collective while peers were inside one"
    return {r.rank: why for r in alive if r not in inside}


def _disk(ranks: Sequence[Seen]) -> Verdict:
    why = "it was in uninterruptible sleep, waiting for a device or a file server"
    return {r.rank: why for r in ranks if r.state == "disk"}


def _busy(ranks: Sequence[Seen]) -> Verdict:
    busy = [r for r in ranks if r.state == "on-cpu"]
    waiting = [r for r in ranks if r.alive and r.state != "on-cpu"]
    return {r.rank: "it was computing while peers waited" for r in busy} if waiting else {}


def _unfinished(ranks: Sequence[Seen]) -> Verdict:
    left = [r for r in ranks if not r.finished and r.state != "done"]
    return {left[0].rank: "it alone had not finished"} if len(left) == 1 else {}
