"""What came before the first step: the queue of the cluster's scheduler, and the start-up of every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import JsonEvidence
from ddaudit.evidence.events import Stream

__all__ = ["EarlierTry", "JobPlacement", "LaunchLedger", "RankStart", "SchedulerFacts"]


class SchedulerFacts(JsonEvidence):
    """The scheduler's own times of a job. Slurm's have a resolution of one second.

    ``queue_s`` is Start - Eligible: waiting for resources or priority. ``held_s`` is Eligible - Submit: a hold, a
    begin time or a dependency, which is the user's own doing. Both are 0 without a scheduler, and None where one is
    there and its times were not read, with the reason in ``absent``.
    """

    kind: ClassVar[str] = "scheduler"

    host: str
    scheduler: Literal["slurm", "kubernetes", "none"]
    looked_for: str
    job_id: str | None = None
    state: str | None = None
    reason: str | None = None
    restarts: int | None = None
    submit: str | None = None
    eligible: str | None = None
    start: str | None = None
    queue_s: float | None = None
    held_s: float | None = None
    absent: str | None = None


class EarlierTry(BaseModel):
    """A try of a job that Slurm ended and queued again. ``seconds`` is how long it held its nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: str
    start: str
    end: str
    seconds: float


class JobPlacement(JsonEvidence):
    """Where a job's nodes lie and what has become of its allocation so far.

    ``leaves`` maps leaf switches to how many of the job's nodes hang on them, and ``fewest_leaves`` is the smallest
    number of leaves with as many nodes; empty without a topology, with the reason in ``leaves_absent`` and the nodes by
    the stems of their names in ``names``. ``tries`` are the earlier ones, None where accounting does not tell them
    (``tries_absent``). ``idle_s`` runs from the start of the allocation to the first event of this run in it.
    """

    kind: ClassVar[str] = "placement"

    host: str
    job_id: str
    nodes: int
    names: Mapping[str, int] = {}
    leaves: Mapping[str, int] = {}
    fewest_leaves: int | None = None
    leaves_absent: str | None = None
    restarts: int | None = None
    tries: tuple[EarlierTry, ...] | None = None
    tries_absent: str | None = None
    requeued_s: float | None = None
    """Time in the queue between the tries."""
    devices: int | None = None
    device_word: str = "devices"
    idle_s: float | None = None

    @property
    def lost_s(self) -> float | None:
        """How long earlier tries held their nodes."""
        return None if self.tries is None else sum(t.seconds for t in self.tries)

    def device_hours(self, seconds: float) -> str:
        """What the whole allocation is worth over that time."""
        return f"{seconds * self.devices / 3600:.2f} {self.device_word[:-1]} hours" if self.devices else "devices n/a"


class RankStart(BaseModel):
    """Seconds of one rank's start, phase after phase; None for a phase it did not come to.

    ``spawn_s`` runs from the request to start the step to the rank's first line, ``first_step_s`` from that request to
    the end of the first training step. The others are the phases' own lengths.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    host: str
    spawn_s: float | None = None
    load_s: float | None = None
    import_s: float | None = None
    rendezvous_s: float | None = None
    first_collective_s: float | None = None
    first_step_s: float | None = None


#: Phases as ranks name them in their events.
PHASES = {
    "load_s": "load",
    "import_s": "import",
    "rendezvous_s": "rendezvous",
    "first_collective_s": "first-collective",
}


class LaunchLedger(JsonEvidence):
    """Where a step's time went before its first training step. ``server_s`` is the start of the process that ranks are
    forked from, with its import of torch; it is paid once for all steps of a run."""

    kind: ClassVar[str] = "launch-ledger"

    server_s: float | None = None
    ranks: tuple[RankStart, ...] = ()

    @classmethod
    def assemble(cls, streams: Sequence[Stream]) -> Self | None:
        launch = next((e for s in streams for e in s.of("evidence") if e.get("kind") == "launch"), None)
        asked = None if launch is None else launch["t"] - launch["facts"]["seconds"]
        ranks = tuple(_start(stream, asked) for stream in streams if stream.first("start") is not None)
        if not ranks:
            return None
        return cls(
            server_s=None if launch is None else launch["facts"].get("server_s"),
            ranks=tuple(sorted(ranks, key=lambda r: r.rank)),
        )


def _start(stream: Stream, asked: float | None) -> RankStart:
    """``asked`` is the wall-clock time of the request; without the launcher's record nothing is measured from it."""
    start, step = stream.first("start"), stream.first("step")
    assert start is not None
    seconds = {e["name"]: e["seconds"] for e in reversed(stream.of("phase"))}
    return RankStart(
        rank=start["rank"],
        host=start["host"],
        spawn_s=None if asked is None else max(0.0, start["t"] - asked),
        first_step_s=None if asked is None or step is None else max(0.0, step["t"] - asked),
        **{field: seconds.get(name) for field, name in PHASES.items()},
    )
