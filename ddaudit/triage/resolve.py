"""Joins what the files say: which host a file belongs to, which rank a label, a pid or a GPU means, whose job it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ddaudit.evidence.incident import Event, Incident, Raised, Rank, RankNote, SourceFile, Stack
from ddaudit.triage.attempts import last_attempt
from ddaudit.triage.catalogue import Catalogue
from ddaudit.triage.readers import names
from ddaudit.triage.readers.bundle import Bundle
from ddaudit.triage.readers.collect import Gathered, spot
from ddaudit.triage.readers.logs import LogReader
from ddaudit.triage.readers.nvidia import bdf
from ddaudit.triage.readers.slurm import expand_hosts
from ddaudit.triage.timeline import align

__all__ = ["resolve"]

#: Lines about batches and epochs that are kept; a rank says so once an epoch.
MAX_NOTES = 5000


def resolve(bundle: Bundle, catalogue: Catalogue, job: str | None = None) -> Incident:
    """The evidence of one bundle."""
    gathered = bundle.gathered
    main_job = job or _main_job(gathered, bundle)
    hosts = _hosts(gathered, main_job)
    sources = tuple(_with_host(s, hosts, gathered) for s in gathered.sources)
    host_of = {s.path: s.host for s in sources}
    for log in bundle.logs:
        _tasks(log, gathered, host_of)
    _numbered(bundle, gathered, host_of)
    _single_host(gathered, hosts)
    sources = tuple(_with_host(s, hosts, gathered) for s in gathered.sources)
    host_of = {s.path: s.host for s in sources}
    who = _Who(gathered, hosts, host_of)
    events = [who.event(e, t, log) for log in bundle.logs for e, t in log.events]
    raised = [_classify(who.raised(r, t, log), catalogue) for log in bundle.logs for r, t in log.raised]
    raised += [_classify(who.raised(r, None, None), catalogue) for r in gathered.raised]
    facts = _read_facts(gathered, host_of)
    incident = replace(
        facts,
        sources=sources,
        events=tuple(events),
        raised=tuple(raised),
        hosts=tuple(hosts),
        job=main_job,
        stacks=tuple(who.stack_hosts()),
        listed_hosts=tuple(_listed(gathered, main_job)),
        rank_notes=tuple(_notes(gathered, sources)),
        whole_logs=_whole_logs(bundle),
    )
    incident = last_attempt(incident, gathered.exits)
    if incident.earlier is not None:
        earlier = incident.earlier
        incident = replace(incident, earlier=replace(earlier, raised=tuple(_unique(earlier.raised))))
    incident = replace(incident, raised=tuple(_unique(incident.raised)))
    return align(incident, [(log.slurm_clock, log.log_clock) for log in bundle.logs])


def _read_facts(gathered: Gathered, host_of: Mapping[str, str | None]) -> Incident:
    """Facts that need no more than their file's host."""
    processes = tuple(replace(p, host=p.host or host_of.get(p.spot.file)) for p in gathered.processes)
    gpu_processes = tuple(replace(p, host=host_of.get(p.spot.file) or p.host) for p in gathered.gpu_processes)
    return Incident(
        ranks=dict(sorted(gathered.ranks.items())),
        world_size=_world(gathered),
        collectives=tuple(gathered.collectives),
        progress=tuple(gathered.progress),
        processes=processes,
        gpus=tuple(replace(g, host=_gpu_host(g.spots, host_of) or g.host) for g in gathered.gpus),
        gpu_processes=gpu_processes,
        jobs=tuple(gathered.jobs),
        steps=tuple(gathered.steps),
        rank_times=tuple(gathered.rank_times),
        mounts=tuple(replace(m, host=m.host or host_of.get(m.spot.file)) for m in gathered.mounts),
        finished=gathered.finished,
        versions={what: dict(values) for what, values in gathered.versions.items()},
        addresses=dict(gathered.addresses),
        adapters=frozenset(gathered.adapters),
        notes=tuple(gathered.notes),
    )


def _notes(gathered: Gathered, sources: Sequence[SourceFile]) -> Iterator[RankNote]:
    """What ranks say of their batches, in logs only: a stack or a table says nothing of the kind."""
    logs = {s.path for s in sources if s.kind == "log"}
    for note, number, file in gathered.rank_notes[:MAX_NOTES]:
        if file in logs:
            yield replace(note, rank=note.rank if note.rank is not None else number)


def _main_job(gathered: Gathered, bundle: Bundle) -> str | None:
    """The job in question: that of the newest job log (the largest where dates are missing), else the one that the
    scheduler's table names, else the one seen most."""
    named = [(s, job) for s in gathered.sources if s.kind == "log" and (job := names.job_in(s.path))]
    if named:
        dates = {
            job: s.last.time_s
            for s, job in sorted(named, key=lambda x: x[0].last.time_s if x[0].last else 0.0)
            if s.last
        }
        dated = set(dates) == {job for _, job in named}
        return max(named, key=lambda x: (dates[x[1]] if dated else 0.0, x[0].bytes_read))[1]
    listed = [j.job.split(".")[0].split("_")[0] for j in gathered.jobs if j.job[:1].isdigit()]
    if listed:
        return listed[0]
    seen = Counter(e.job for log in bundle.logs for e, _ in log.events if e.job)
    return seen.most_common(1)[0][0] if seen else None


def _hosts(gathered: Gathered, job: str | None) -> list[str]:
    """Hosts of the bundle, most seen first; short and long forms of one name are joined."""
    counts = Counter(gathered.hosts)
    for row in gathered.jobs:
        if job is None or row.job.split(".")[0] == job:
            for host in expand_hosts(row.nodes) if not row.job.startswith("node:") else [row.nodes]:
                counts[host] += 0
    for text in gathered.node_lists:
        counts.update(dict.fromkeys((h for h in expand_hosts(text) if any(c.isdigit() for c in h)), 0))
    for host in sorted(gathered.mentioned):
        if any(names.host_in(s.path, [host]) for s in gathered.sources):
            counts[host] += 0
    counts.update(dict.fromkeys(names.like_named([s.path for s in gathered.sources], list(counts)), 0))
    known = [h for h, _ in counts.most_common()]
    for source in gathered.sources:
        if source.host and not names.host_in(source.path, known):
            counts[source.host] += 0
            known.append(source.host)
    merged: list[str] = []
    for host in known:
        if not any(host.split(".")[0] == other.split(".")[0] for other in merged):
            merged.append(host)
    return merged


def _listed(gathered: Gathered, job: str | None) -> list[str]:
    """Hosts that the scheduler or the launcher listed for the job."""
    texts = [
        r.nodes for r in gathered.jobs if not r.job.startswith("node:") and (job is None or r.job.split(".")[0] == job)
    ]
    return list(
        dict.fromkeys(
            h for text in [*texts, *gathered.node_lists] for h in expand_hosts(text) if any(c.isdigit() for c in h)
        )
    )


def _with_host(source: SourceFile, hosts: list[str], gathered: Gathered) -> SourceFile:
    host = names.host_in(source.path, hosts)
    if host is None and source.rank is not None and source.rank in gathered.ranks:
        host = gathered.ranks[source.rank].host
    if host is None and len(hosts) == 1:
        host = hosts[0]
    return replace(source, host=host)


def _tasks(log: LogReader, gathered: Gathered, host_of: dict[str, str | None]) -> None:
    """Decides what srun's labels count: ranks (one task a rank) or nodes (one launcher a node), and learns from it."""
    named = {task: ranks for task, ranks in log.tasks.items() if ranks}
    log.task_is_rank = all(ranks == {task} for task, ranks in named.items())
    for task, host, code, line in log.task_exits:
        if log.task_is_rank:
            where = spot(log.name, line.number, line.text)
            gathered.know(task, host=host, exit_code=code, exit_spot=where)
        gathered.see_host(host)
    for task, host in log.task_hosts.items():
        if log.task_is_rank and (task in log.tasks or task in gathered.ranks):
            gathered.know(task, host=host)


def _numbered(bundle: Bundle, gathered: Gathered, host_of: dict[str, str | None]) -> None:
    """Files numbered 0..n-1 are ranks when nothing inside says otherwise."""
    for log in bundle.logs:
        number = bundle.numbered.get(log.name)
        local = names.local_rank_in(log.name)
        if (
            log.rank is None
            and number is not None
            and (not log.ranks_seen or log.ranks_seen == {number})
            and host_of.get(log.name) is None
        ):
            log.rank = number
        elif log.rank is None and len(log.ranks_seen) == 1 and local is not None:
            log.rank = next(iter(log.ranks_seen))
        elif log.rank is None and local is not None and len(_hosts(gathered, None)) <= 1:
            log.rank = local
        if log.rank is not None:
            gathered.know(log.rank)
    ranks = {log.name: log.rank for log in bundle.logs}
    gathered.sources[:] = [
        replace(s, rank=s.rank if s.rank is not None else ranks.get(s.path)) for s in gathered.sources
    ]


def _single_host(gathered: Gathered, hosts: list[str]) -> None:
    if len(hosts) == 1:
        for rank in list(gathered.ranks):
            gathered.know(rank, host=hosts[0])


def _world(gathered: Gathered) -> int | None:
    if gathered.world_sizes:
        return max(gathered.world_sizes, key=lambda n: (gathered.world_sizes[n], n))
    return None


class _Who:
    """Finds rank and host of an event from whatever it carries."""

    def __init__(self, gathered: Gathered, hosts: list[str], host_of: dict[str, str | None]) -> None:
        self.gathered, self.hosts, self.host_of = gathered, hosts, host_of
        self.single = hosts[0] if len(hosts) == 1 else None

    def _rank(
        self, rank: int | None, local: int | None, task: int | None, log: LogReader | None, host: str | None
    ) -> int | None:
        if rank is not None:
            return rank
        if task is not None and log is not None and log.task_is_rank:
            return task
        if log is not None and log.rank is not None:
            return log.rank
        if local is not None:
            matches = [r.rank for r in self.gathered.ranks.values() if r.local_rank == local and host in (None, r.host)]
            if len(matches) == 1:
                return matches[0]
            if len(self.hosts) <= 1:
                return local
        return None

    def _host(
        self, host: str | None, rank: int | None, file: str, task: int | None, log: LogReader | None
    ) -> str | None:
        known = self.gathered.ranks.get(rank) if rank is not None else None
        full = names.host_in(host, self.hosts) if host else None
        by_task = log.task_hosts.get(task) if log is not None and task is not None else None
        return full or host or by_task or (known.host if known else None) or self.host_of.get(file) or self.single

    def event(self, event: Event, task: int | None, log: LogReader) -> Event:
        if event.kernel:
            host = self._host(event.host, None, event.spot.file, None, None)
            return replace(event, host=host, rank=self._kernel_rank(event, host))
        host = self._host(event.host, event.rank, event.spot.file, task, log)
        rank = self._rank(event.rank, event.local_rank, task, log, host)
        if rank is None and event.pid is not None:
            rank = self._by_pid(event.pid, host)
        return replace(event, rank=rank, host=self._host(event.host, rank, event.spot.file, task, log))

    def raised(self, raised: Raised, task: int | None, log: LogReader | None) -> Raised:
        local = names.local_rank_in(raised.spot.file) if log is None else None
        host = self._host(raised.host, raised.rank, raised.spot.file, task, log)
        rank = self._rank(raised.rank if log is not None else None, local, task, log, host)
        return replace(raised, rank=rank, host=self._host(raised.host, rank, raised.spot.file, task, log))

    def _kernel_rank(self, event: Event, host: str | None) -> int | None:
        if event.pid is not None and (rank := self._by_pid(event.pid, host)) is not None:
            return rank
        address = bdf(event.fields.get("bdf"))
        places = [r for r in self.gathered.ranks.values() if address and r.gpu == address and host in (None, r.host)]
        return places[0].rank if len(places) == 1 else None

    def _by_pid(self, pid: int, host: str | None) -> int | None:
        found = [
            r.rank for r in self.gathered.ranks.values() if r.pid == pid and (host is None or r.host in (None, host))
        ]
        return found[0] if len(found) == 1 else None

    def stack_hosts(self) -> list[Stack]:
        stacks = []
        for stack in self.gathered.stacks:
            known: Rank | None = self.gathered.ranks.get(stack.rank) if stack.rank is not None else None
            rank = stack.rank if stack.rank is not None or stack.pid is None else self._by_pid(stack.pid, stack.host)
            host = (
                names.host_in(stack.spots[0].file, self.hosts)
                or stack.host
                or (known.host if known else None)
                or self.single
            )
            stacks.append(replace(stack, host=host, rank=rank))
        return stacks


def _gpu_host(spots: object, host_of: Mapping[str, str | None]) -> str | None:
    first = next(iter(spots.values()), None) if isinstance(spots, dict) else None
    return host_of.get(first.file) if first is not None else None


def _classify(raised: Raised, catalogue: Catalogue) -> Raised:
    """Gives an exception the signature its text matches; roots first."""
    text = f"{raised.kind}: {raised.message}"
    order = {"root": 0, "cascade": 1, "symptom": 2, "info": 3}
    matches = sorted(catalogue.match(text), key=lambda m: order[m[0].role])
    if not matches:
        return raised
    best = matches[0][0]
    return replace(raised, cause=best.cause, signature=best.id, role=best.role)


def _unique(raised: Sequence[Raised]) -> list[Raised]:
    """Joins repeats of one exception by one rank (banner, error file and log); keeps where else it stands."""
    kept: dict[tuple[object, ...], Raised] = {}
    for item in sorted(raised, key=lambda r: (r.spot.file.endswith("error.json"), r.spot.file, r.spot.line)):
        key = (item.kind.split(".")[-1], item.message[:200], item.rank, item.host if item.rank is None else None)
        if (first := kept.get(key)) is not None:
            kept[key] = replace(
                first,
                also=(*first.also[:3], item.spot),
                frames=first.frames or item.frames,
                stamp=first.stamp or item.stamp,
            )
        else:
            kept[key] = item
    return list(kept.values())


def _whole_logs(bundle: Bundle) -> frozenset[int]:
    """Ranks whose output would be in the bundle: those with a file of their own, and all of a merged log's."""
    own = {log.rank for log in bundle.logs if log.rank is not None}
    merged = [log for log in bundle.logs if len(log.ranks_seen) > 2 and log.rank is None]
    for log in merged:
        own |= log.ranks_seen
    return frozenset(r for r in own if r is not None)
