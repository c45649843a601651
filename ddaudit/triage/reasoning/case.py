"""What all judges look at: who failed, who only followed, who hung, and what an event is worth."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ddaudit.evidence.incident import Collective, Event, Incident, Raised, SchedulerJob, Spot
from ddaudit.triage.timeline import placed

__all__ = ["Candidate", "Case", "Rejected", "Tier"]


#: Without the job's log, host events this much older than the newest are another story.
BLIND_S = 6 * 3600.0


Confidence = Literal["high", "medium", "low"]


class Tier:
    """Precedence of causes, strongest first. A later tier wins only when no earlier one has a candidate."""

    SCHEDULER = 0
    HARDWARE = 1
    OWN_ERROR = 2
    HANG = 3
    SYMPTOM = 4
    SLOW = 5
    UNKNOWN = 6


@dataclass(frozen=True)
class Candidate:
    """A cause somebody argues for, with its evidence. ``time_s`` is job time where known."""

    cause: str
    tier: int
    why: str
    evidence: tuple[Spot, ...]
    rank: int | None = None
    host: str | None = None
    gpu: str | None = None
    device: str | None = None
    path: str | None = None
    pid: int | None = None
    confidence: Confidence = "high"
    time_s: float | None = None
    missing: tuple[str, ...] = ()
    families: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejected:
    """Something that looks like a cause and is not, and why."""

    cause: str
    why_not: str
    spot: Spot


_VICTIM_KINDS = re.compile(
    r"(?:^|\.)(?:DistBackendError|DistNetworkError|DistStoreError|SignalException|ChildFailedError|CalledProcessError|ProcessExitedException|KeyboardInterrupt|SystemExit|ActorDiedError|RayTaskError)$"
)
_VICTIM_TEXT = re.compile(
    r"(?i)NCCL communicator was aborted|NCCL error|Connection (?:closed|reset|refused)|Broken pipe|timed? ?out"
    r"|Socket Timeout|terminated|process group|process \d+ terminated with"
)
_JOB_COMM = re.compile(r"(?i)^(?:python|pt_|torchrun|ray::|train|accelerate|deepspeed)")


@dataclass
class Case:
    """An incident with the derived facts that several judges need. Computed once, on demand."""

    incident: Incident
    rejected: list[Rejected] = field(default_factory=list)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Events of this job and of no other job."""
        mine = []
        for event in self.incident.events:
            if event.job and self.incident.job and event.job.split(".")[0] != self.incident.job:
                if event.role == "root":
                    self.reject(event, f"belongs to job {event.job}, not to {self.incident.job}")
            else:
                mine.append(event)
        return tuple(mine)

    def reject(self, event: Event, why: str) -> None:
        """Notes a look-alike once a signature and host."""
        if not any(r.spot == event.spot for r in self.rejected) and event.cause:
            self.rejected.append(Rejected(event.cause, why, event.spot))

    def of(self, *signatures: str) -> list[Event]:
        """Events of these signatures."""
        return [e for e in self.events if e.signature in signatures]

    @cached_property
    def own(self) -> list[Raised]:
        """Exceptions that are a rank's own: not a follow-on of a peer's end, not handled."""
        return [r for r in self.incident.raised if not self.victim(r) and not self._survived(r)]

    @staticmethod
    def victim(raised: Raised) -> bool:
        """True for exceptions that say no more than that somebody else ended, or that a wait was long."""
        if raised.role == "cascade" or raised.signature in ("pg-timeout", "gloo-timeout", "store-wait", "nccl-refused"):
            return True
        if raised.role in ("root", "symptom") and raised.signature:
            return False
        return bool(_VICTIM_KINDS.search(raised.kind) or _VICTIM_TEXT.search(raised.message))

    def _survived(self, raised: Raised) -> bool:
        """True when the rank went on training after the exception, and nothing says that it ended by it.

        Order in a file proves little (stderr and stdout are buffered apart), so a failed exit or a later stamp decides.
        """
        if raised.thread is not None or (raised.rank is None and not self.incident.finished):
            return False
        if self.incident.finished is not None and self.incident.finished.file == raised.spot.file:
            return self.incident.finished.line > raised.spot.line and not self.failed_exits
        rank = self.incident.ranks.get(raised.rank if raised.rank is not None else -1)
        if rank is not None and rank.exit_code not in (None, 0, -15):
            return False
        later = [
            s
            for s in self.incident.steps
            if s.spot.file == raised.spot.file and s.rank == raised.rank and s.spot.line > raised.spot.line
        ]
        return len(later) > 3

    @cached_property
    def failed_exits(self) -> dict[int, int]:
        """rank -> exit code, for ranks that ended badly."""
        return {r.rank: r.exit_code for r in self.incident.ranks.values() if r.exit_code}

    @cached_property
    def timeouts(self) -> dict[int, Collective]:
        """The first collective that each rank timed out in."""
        found: dict[int, Collective] = {}
        for item in self.incident.collectives:
            if item.state == "timeout":
                found.setdefault(item.rank, item)
        return found

    @cached_property
    def hung(self) -> bool:
        """Something waited its limit, or stacks were taken."""
        waits = ("gloo-timeout", "pg-monitored", "pg-desync", "pg-stuck", "nccl-ras-counts", "store-wait")
        dumped = any(c.state in ("started", "scheduled") for c in self.incident.collectives)
        pids = {r.pid for r in self.incident.ranks.values() if r.pid is not None}
        stuck = any(p.pid in pids and p.state[:1] in "TtD" for p in self.incident.processes)
        return bool(self.timeouts or self.of(*waits) or self.incident.stacks or dumped or stuck)

    @cached_property
    def trained(self) -> bool:
        """At least two steps were logged: start-up was over."""
        return len(self.incident.steps) >= 2

    @cached_property
    def blind(self) -> bool:
        """Nothing of the job itself is in the bundle: only hosts speak."""
        mine = (
            self.incident.steps
            or self.incident.ranks
            or self.incident.raised
            or self.incident.jobs
            or self.incident.collectives
        )
        return not mine and not any(e.role == "cascade" and not e.kernel for e in self.events)

    @cached_property
    def latest_s(self) -> float | None:
        """The newest kernel event that may be a root, by the hosts' clock."""
        return max((e.stamp.time_s for e in self.events if e.kernel and e.role == "root" and e.stamp), default=None)

    @cached_property
    def failed(self) -> bool:
        """Something ended or stopped that should not have."""
        cascades = [
            e
            for e in self.events
            if e.role == "cascade" and e.signature not in ("store-recv", "el-closing", "xid-45", "xid-43")
        ]
        bad_jobs = [
            j
            for j in self.main_jobs
            if re.match(r"FAILED|TIMEOUT|NODE_FAIL|OUT_OF_ME|CANCELLED|PREEMPTED|BOOT_FAIL|DEADLINE", j.state)
        ]
        fatal = [e for e in self.events if e.role == "root" and not e.handled and not e.kernel and e.layer != "nvml"]
        return bool(
            self.blind
            or self.failed_exits
            or self.own
            or self.timeouts
            or cascades
            or bad_jobs
            or fatal
            or self.of("sl-exitcode", "el-exit")
        )

    @cached_property
    def main_jobs(self) -> list[SchedulerJob]:
        """Scheduler rows of the job itself (not its steps, not nodes)."""
        job = self.incident.job
        rows = [j for j in self.incident.jobs if not j.job.startswith("node:") and (job is None or j.job == job)]
        # A requeued job has a row for each run (sacct --duplicates): the last one counts.
        return list({(j.job, j.spot.file): j for j in rows}.values())

    @cached_property
    def completed(self) -> Spot | None:
        """The line that says that the job ended well, if one does and nothing says otherwise."""
        for row in self.main_jobs:
            if row.state.startswith("COMPLETED") and row.exit_code in ("0:0", "", "None", "0"):
                return row.spot
        if self.incident.finished is not None and not self.failed_exits and not self.timeouts:
            return self.incident.finished
        return None

    # --- who is where ---

    def ranks_on(self, host: str | None) -> list[int]:
        """Ranks known to run on a host."""
        return [r.rank for r in self.incident.ranks.values() if host is not None and r.host == host]

    def host_of(self, rank: int | None) -> str | None:
        """Host of a rank."""
        known = self.incident.ranks.get(rank) if rank is not None else None
        return known.host if known is not None else None

    def only_rank(self, host: str | None) -> int | None:
        """The rank on a host when there is exactly one."""
        ranks = self.ranks_on(host)
        return ranks[0] if len(ranks) == 1 else None

    def other_process(self, event: Event) -> bool:
        """True when a kernel event is about a process that is not the job's."""
        task = event.fields.get("task", "").strip("'\" ")
        if task and task != "<unknown>" and not _JOB_COMM.match(task):
            return True
        memcg = event.fields.get("memcg", "")
        named = re.search(r"job[_-](\d+)", memcg)
        return bool(named and self.incident.job and named[1] != self.incident.job)

    def foreign_pid(self, event: Event) -> bool:
        """True when the job's pids on that host are known and this is none of them (a hint: containers renumber)."""
        pids = {r.pid for r in self.incident.ranks.values() if r.pid and r.host in (None, event.host)}
        return event.pid is not None and bool(pids) and event.pid not in pids

    def when(self, event: Event) -> Literal["in", "maybe", "out", "unknown"]:
        """Whether the event lies in the job's window; a stamp counted from boot is compared with its file's end."""
        if event.stamp is None and (uptime := event.fields.get("uptime")):
            ends = [
                float(s.note.split()[1])
                for s in self.incident.sources
                if s.path == event.spot.file and s.note.startswith("uptime")
            ]
            span = self.incident.window[1] - self.incident.window[0] if self.incident.window else 0.0
            return "unknown" if not ends or ends[0] - float(uptime) <= span + 6 * 3600 else "out"
        if self.blind and event.stamp is not None and self.latest_s is not None:
            return "in" if self.latest_s - event.stamp.time_s < BLIND_S else "out"
        return placed(self.incident, event.stamp)

    def job_time(self, event: Event) -> float | None:
        """The event's moment on the job's clock."""
        if event.stamp is None:
            return None
        return event.stamp.time_s - (self.incident.shift_s or 0.0 if event.kernel else 0.0)

    def minority(self, values: dict[int, object]) -> list[int]:
        """Ranks whose value is not the commonest, when fewer than half; empty on a tie."""
        counts = Counter(values.values())
        if len(counts) < 2:
            return []
        (common, most), (_, second) = counts.most_common(2)
        if most == second:
            return []
        odd = sorted(r for r, v in values.items() if v != common)
        return odd if 2 * len(odd) < len(values) else []


def cite(*groups: Iterable[Spot | None], limit: int = 10) -> tuple[Spot, ...]:
    """The first ``limit`` different lines, in the order of the groups."""
    seen: dict[tuple[str, int], Spot] = {}
    for group in groups:
        for item in group:
            if item is not None:
                seen.setdefault((item.file, item.line), item)
    return tuple(list(seen.values())[:limit])
