"""What the readers gather: one growing record of a bundle, frozen at the end into the evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ddaudit.evidence.incident import (
    Collective,
    Event,
    Gpu,
    GpuProcess,
    Mount,
    Process,
    Progress,
    Raised,
    Rank,
    RankNote,
    RankTimes,
    SchedulerJob,
    SourceFile,
    Spot,
    Stack,
    Step,
)

__all__ = ["Gathered", "spot"]

#: Characters of a cited line that are kept; NCCL and JSON lines can be longer, the news stands at the front.
CITE_CHARS = 600


def spot(file: str, line: int, text: str) -> Spot:
    """A pointer to a line, with control characters made harmless."""
    clean = text.strip()[:CITE_CHARS]
    if not clean.isprintable():
        clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in clean.replace("\t", " "))
    return Spot(file, line, clean)


@dataclass
class Gathered:
    """Facts of a bundle while it is read."""

    sources: list[SourceFile] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    ranks: dict[int, Rank] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    gpu_processes: list[GpuProcess] = field(default_factory=list)
    jobs: list[SchedulerJob] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    rank_times: list[RankTimes] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    hosts: Counter[str] = field(default_factory=Counter)
    addresses: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, tuple[str, Spot]]] = field(default_factory=dict)
    rank_notes: list[tuple[RankNote, int | None, str]] = field(default_factory=list)
    mentioned: set[str] = field(default_factory=set)
    node_lists: list[str] = field(default_factory=list)
    adapters: set[str] = field(default_factory=set)
    world_sizes: Counter[int] = field(default_factory=Counter)
    finished: Spot | None = None
    notes: list[str] = field(default_factory=list)
    pid_from: dict[int, str] = field(default_factory=dict)
    exits: dict[int, list[tuple[int, Spot]]] = field(default_factory=dict)

    def know(self, rank: int, **facts: object) -> None:
        """Adds facts about a rank; what is known already stays, unless it was unknown."""
        have = self.ranks.get(rank, Rank(rank))
        new = {k: v for k, v in facts.items() if v is not None and getattr(have, k) is None}
        self.ranks[rank] = replace(have, **new)  # type: ignore[arg-type]
        code, where = facts.get("exit_code"), facts.get("exit_spot")
        if isinstance(code, int) and isinstance(where, Spot):
            self.exits.setdefault(rank, []).append((code, where))
        if isinstance(host := facts.get("host"), str):
            self.see_host(host)

    def runs_as(self, rank: int, pid: int | None, file: str) -> None:
        """A rank's process id; of several that one file names, the last (a restart gives new ones) counts."""
        if pid is None:
            return
        self.know(rank, pid=pid)
        if self.pid_from.setdefault(rank, file) == file and self.ranks[rank].pid != pid:
            self.ranks[rank] = replace(self.ranks[rank], pid=pid)

    def see_host(self, host: str | None, weight: int = 1) -> None:
        """Counts a host name that content (not a file name) gave."""
        if host and not host.replace(".", "").isdigit() and host not in ("localhost", "kernel"):
            self.hosts[host] += weight

    def version(self, what: str, who: str, value: str, where: Spot) -> None:
        """Remembers the first version of ``what`` that a host or file named."""
        self.versions.setdefault(what, {}).setdefault(who, (value, where))

    def host_of(self, address: str) -> str | None:
        """The host behind an IP address or a longer name, if any source told."""
        return self.addresses.get(address) or (address if address in self.hosts else None)


def pids(ranks: Mapping[int, Rank]) -> dict[int, int]:
    """pid -> rank."""
    return {r.pid: r.rank for r in ranks.values() if r.pid is not None}
