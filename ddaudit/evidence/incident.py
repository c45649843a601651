"""What can be known about a broken job: typed facts read from logs, kernel logs, dumps and scheduler text.

Times are seconds since the epoch. A stamp that names no zone is read as if it were UTC and carries
``zoned=False``; the timeline decides which offset joins the clocks. Ranks are global ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import JsonEvidence

Role = Literal["root", "symptom", "cascade", "info"]


@dataclass(frozen=True, slots=True)
class Spot:
    """One line of one file: the pointer behind every claim. ``line`` counts from 1."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """A moment as written in a file."""

    time_s: float
    zoned: bool


@dataclass(frozen=True, slots=True)
class Event:
    """A line that the catalogue knows, with whoever it can be pinned to."""

    signature: str
    cause: str
    role: Role
    layer: str
    spot: Spot
    stamp: Stamp | None = None
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    job: str | None = None
    kernel: bool = False
    handled: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Raised:
    """A Python exception that reached a log: the last line of a traceback, or of an error file."""

    kind: str
    message: str
    spot: Spot
    rank: int | None
    host: str | None
    stamp: Stamp | None
    frames: tuple[str, ...] = ()
    thread: str | None = None
    handled: bool = False
    cause: str = ""
    signature: str = ""
    role: Role = "root"
    also: tuple[Spot, ...] = ()


@dataclass(frozen=True, slots=True)
class Rank:
    """Where one global rank ran and how it ended. ``gpu`` is a PCI address like ``0000:9a:00``."""

    rank: int
    host: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    gpu: str | None = None
    gpu_index: int | None = None
    exit_code: int | None = None
    exit_spot: Spot | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of one rank: from a watchdog line, a progress line or a Flight Recorder entry."""

    rank: int
    group: str
    seq: int
    op: str
    numel_in: int | None
    numel_out: int | None
    dtype: str
    state: str
    spot: Spot
    frames: tuple[str, ...] = ()
    stamp: Stamp | None = None
    ran_ms: float | None = None
    frame_spots: tuple[Spot, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """The last collective a rank had put on its queue and the last that it had completed."""

    rank: int
    group: str
    enqueued: int
    completed: int
    spot: Spot


@dataclass(frozen=True, slots=True)
class Stack:
    """A thread's Python or native frames, innermost first, as ``function (file:line)``."""

    rank: int | None
    host: str | None
    pid: int | None
    thread: str
    main: bool
    worker: bool
    frames: tuple[str, ...]
    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class Process:
    """A row of ``ps``: state letters such as ``D`` (uninterruptible) and ``T`` (stopped)."""

    pid: int
    host: str | None
    state: str
    wchan: str
    command: str
    spot: Spot


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as ``nvidia-smi`` saw it. Values are the text after the colon; spots give the line of each."""

    host: str | None
    bdf: str
    index: int | None
    values: Mapping[str, str]
    spots: Mapping[str, Spot]


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that ``nvidia-smi`` saw on a GPU; ``gpu_index`` is None in lists that name no index."""

    pid: int
    host: str | None
    gpu_index: int | None
    name: str
    memory_mib: int
    spot: Spot


@dataclass(frozen=True, slots=True)
class SchedulerJob:
    """A job or step as the scheduler reported it."""

    job: str
    state: str
    exit_code: str
    spot: Spot
    nodes: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One training step in a log. Times in seconds; ``compute`` and ``wait`` are per rank when printed so."""

    rank: int | None
    step: int | None
    loss: float | None
    step_s: float | None
    data_s: float | None
    spot: Spot
    stamp: Stamp | None = None
    compute_s: float | None = None
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Per-rank numbers printed on one line, in the unit of the line (only their ratios are judged)."""

    what: Literal["compute", "wait"]
    values: Mapping[int, float]
    spot: Spot


@dataclass(frozen=True, slots=True)
class RankNote:
    """A line in which a rank says how many batches it has, or that its epoch ended."""

    rank: int | None
    text: str
    spot: Spot


@dataclass(frozen=True, slots=True)
class Mount:
    """A row of ``df`` or of a quota report that is full."""

    path: str
    kind: Literal["full", "inodes", "quota"]
    host: str | None
    spot: Spot


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was read, and whose it is."""

    path: str
    kind: str
    bytes_read: int
    lines: int
    host: str | None = None
    rank: int | None = None
    note: str = ""
    first: Stamp | None = None
    last: Stamp | None = None
    last_spot: Spot | None = None
    tail_ranks: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Incident:
    """All facts of one incident, sorted by file and line.

    Of a restarted job these are the facts of its last attempt, which began at ``attempt_s`` (the job's clock) after the
    line ``restarted``; ``earlier`` holds those of the attempts before it.
    """

    sources: tuple[SourceFile, ...] = ()
    events: tuple[Event, ...] = ()
    raised: tuple[Raised, ...] = ()
    ranks: Mapping[int, Rank] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    listed_hosts: tuple[str, ...] = ()
    world_size: int | None = None
    collectives: tuple[Collective, ...] = ()
    progress: tuple[Progress, ...] = ()
    stacks: tuple[Stack, ...] = ()
    processes: tuple[Process, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu_processes: tuple[GpuProcess, ...] = ()
    jobs: tuple[SchedulerJob, ...] = ()
    job: str | None = None
    steps: tuple[Step, ...] = ()
    rank_times: tuple[RankTimes, ...] = ()
    mounts: tuple[Mount, ...] = ()
    shift_s: float | None = None
    window: tuple[float, float] | None = None
    failure_s: float | None = None
    finished: Spot | None = None
    versions: Mapping[str, Mapping[str, tuple[str, Spot]]] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    rank_notes: tuple[RankNote, ...] = ()
    adapters: frozenset[str] = frozenset()
    whole_logs: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    attempt_s: float | None = None
    restarted: Spot | None = None
    earlier: Incident | None = None


class Cited(BaseModel):
    """A line that speaks for a suspect."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Suspect(BaseModel):
    """A cause that one or more families of evidence argue for. ``why_not`` is None for the chosen one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    families: tuple[str, ...]
    cause: str
    why: str
    why_not: str | None = None
    confidence: str = "high"
    rank: int | None = None
    host: str | None = None
    gpu: str | None = None
    evidence: tuple[Cited, ...] = ()
    do_now: str = ""
    commands: tuple[str, ...] = ()


class Moment(BaseModel):
    """A dated line, or a span, on the job's clock. ``lane`` is the job, a host or a rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: Literal["steps", "cause", "sign", "wait", "aside", "restart"]
    lane: str
    start_s: float
    end_s: float | None = None
    text: str
    file: str
    line: int


class IncidentFacts(JsonEvidence):
    """What triage made of a bundle: the suspects of every family, what was set aside, and what is missing.

    ``cause`` is the chosen cause id, ``none`` when nothing is wrong, ``unknown.*`` when the evidence does not decide.
    """

    kind: ClassVar[str] = "incident"

    source: str
    cause: str
    files: int
    suspects: tuple[Suspect, ...] = ()
    set_aside: tuple[tuple[str, str, str], ...] = ()
    missing: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    timeline: tuple[Moment, ...] = ()

    def of(self, family: str) -> tuple[Suspect, ...]:
        """Suspects of one family, the chosen one first."""
        return tuple(sorted((s for s in self.suspects if family in s.families), key=lambda s: s.why_not is not None))
