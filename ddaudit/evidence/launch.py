"""What became of the processes of one step: who started, who ended how, who was lost or stuck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import JsonEvidence

__all__ = ["LaunchFacts", "RankOutcome", "RankState"]

#: ``done`` ended with code 0; ``exited`` with another code; ``killed`` by a signal it did not ask for; ``on-cpu``,
#: ``sleeping``, ``disk`` (D state), ``stopped`` were still there at the deadline; ``never-started`` had no process;
#: ``host-lost`` was on a host that hung up or fell silent.
RankState = Literal[
    "done", "exited", "killed", "on-cpu", "sleeping", "disk", "stopped", "zombie", "never-started", "host-lost"
]


class RankOutcome(BaseModel):
    """One rank's end. ``culprit`` is True for the rank that failed by itself, not for those it took along.

    ``why`` says how a culprit was told from its peers. ``problem`` marks an error that its user can mend (a wrong
    parameter, too few devices) rather than a fault. ``collective_seq`` counts the collectives that the rank entered in
    the group where it stood last; ``collective_pending`` is True while it had not left the last one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    host: str
    pid: int | None = None
    state: RankState
    exit_code: int | None = None
    signal: str | None = None
    killed_by_us: bool = False
    culprit: bool = False
    why: str | None = None
    problem: bool = False
    error: str | None = None
    last_event: str | None = None
    last_step: int | None = None
    collective_seq: int | None = None
    collective_op: str | None = None
    collective_pending: bool | None = None
    stuck_at: str | None = None
    """``file:line in function``: the innermost frame of the main thread that is not a library's."""
    stack: str | None = None
    cpu_s: float | None = None
    max_rss_bytes: int | None = None


class LaunchFacts(JsonEvidence):
    """The launcher's own record of a step. Times are seconds from the request to start."""

    kind: ClassVar[str] = "launch"

    world_size: int
    host: str
    folder: str | None = None
    """Name of the step's folder below ``events/`` and ``logs/``."""
    timeout_s: float
    seconds: float
    server_s: float | None = None
    torch_preloaded: bool | None = None
    timed_out: bool = False
    interrupted: bool = False
    progressing: bool = False
    """True when the ranks still got on as the deadline passed: slow, not stuck."""
    oom_kills: int | None = None
    """Processes that the kernel ended for memory on this host during the step; None where it does not say."""
    clock_offsets_s: Mapping[str, float] = {}
    """By host, what its wall clock is ahead of the conductor's; hosts other than the conductor's only."""
    ranks: tuple[RankOutcome, ...] = ()

    @property
    def ok(self) -> bool:
        """True when every rank ran to its end."""
        return len(self.ranks) == self.world_size and all(r.state == "done" for r in self.ranks)

    @property
    def lost_hosts(self) -> tuple[str, ...]:
        """Hosts that hung up or fell silent during the step."""
        return tuple(dict.fromkeys(r.host for r in self.ranks if r.state == "host-lost"))
