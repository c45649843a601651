"""The host gave out: memory, shared memory, files, processes; a native crash."""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.evidence.incident import Event, Spot
from ddaudit.triage.reasoning.case import Candidate, Case, Tier, cite

__all__ = ["judge"]

#: Ranks of the largest job whose members are counted one by one.
MAX_WORLD = 200_000


def judge(case: Case) -> Iterator[Candidate]:
    """Candidates ``host.oom-killed``, ``app.segfault`` and kernel-side limits."""
    yield from _oom(case)
    yield from _crash(case)
    for event in case.of("pids-cgroup", "file-max"):
        if case.when(event) in ("in", "unknown") and case.failed:
            yield Candidate(
                event.cause,
                Tier.HARDWARE,
                "the kernel refused it in the job's time",
                (event.spot,),
                None,
                event.host,
                confidence="medium",
            )


def _oom(case: Case) -> Iterator[Candidate]:
    kills = [e for e in case.events if e.cause == "host.oom-killed" and e.role == "root" and not e.handled]
    mine = [e for e in kills if _admissible(case, e)]
    killed_workers = [r for r in case.own if r.signature == "dl-killed"]
    rows = [j for j in case.main_jobs if j.state.startswith("OUT_OF_ME")]
    if not (mine or killed_workers or rows):
        return
    ranks = [e.rank for e in mine if e.rank is not None and e.kernel] or [
        r.rank for r in killed_workers if r.rank is not None
    ]
    ranks = ranks or _killed(case, mine) or _gone(case, mine) or [e.rank for e in mine if e.rank is not None]
    rank = ranks[0] if len(set(ranks)) == 1 else None
    hosts = [e.fields.get("peer") or e.host for e in mine if e.fields.get("peer") or e.host]
    host = case.host_of(rank) or (hosts[0] if hosts else None)
    pid = next((e.pid for e in mine if e.pid is not None and e.kernel), None)
    rank = rank if rank is not None else case.only_rank(host)
    place = case.incident.ranks.get(rank) if rank is not None else None
    exits = [place.exit_spot if place else None]
    who = (f"rank {rank}" if rank is not None else "a process of the job") + (f" (pid {pid})" if pid else "")
    why = f"the kernel killed {who} for memory; the others lost it"
    times = [t for e in mine if (t := case.job_time(e)) is not None]
    ordered = sorted(mine, key=lambda e: (not e.kernel, e.signature != "oom-killed"))
    spots = cite(
        (e.spot for e in ordered[:4]),
        (r.spot for r in killed_workers),
        (r.spot for r in rows),
        exits,
        _invoked(case, host),
    )
    yield Candidate("host.oom-killed", Tier.HARDWARE, why, spots, rank, host, pid=pid, time_s=min(times, default=None))


def _invoked(case: Case, host: str | None) -> list[Spot]:
    return [e.spot for e in case.of("oom-invoked") if e.host == host and case.when(e) != "out"][:1]


def _killed(case: Case, mine: list[Event]) -> list[int]:
    """Ranks that ended by SIGKILL, unless the launcher sent it after the fact."""
    forced = {e.rank for e in case.of("el-forced")} | {e.pid for e in case.of("el-forced")}
    hosts = {e.host for e in mine if e.host}
    return [
        r.rank
        for r in case.incident.ranks.values()
        if r.exit_code in (-9, 137)
        and r.rank not in forced
        and r.pid not in forced
        and (not hosts or r.host is None or r.host in hosts)
    ]


def _gone(case: Case, mine: list[Event]) -> list[int]:
    """The one rank that is not among the running ones, when the control group or the kernel counted a kill."""
    world = case.incident.world_size
    gone = sorted(set(range(world)) - set(case.incident.ranks)) if world and world <= MAX_WORLD else []
    running = {p.pid for p in case.incident.processes} & {r.pid for r in case.incident.ranks.values()}
    counted = any(e.signature == "cgroup-oom" or (e.kernel and running) for e in mine)
    return gone if len(gone) == 1 and counted else []


def _admissible(case: Case, event: Event) -> bool:
    if not event.kernel:
        return case.failed
    if case.other_process(event):
        case.reject(event, f"killed another process ({event.fields.get('task', '?')})")
        return False
    when = case.when(event)
    own_pid = event.rank is not None
    if when == "out" or (when == "maybe" and not own_pid):
        case.reject(event, "outside the job's time")
        return False
    memcg = event.fields.get("memcg", "")
    job = case.incident.job
    if own_pid or (job is not None and f"job_{job}" in memcg):
        return True
    # A loader worker or a renumbered container: somebody of the job must have been killed.
    killed = any(r.signature in ("dl-killed", "dl-exit") for r in case.incident.raised) or bool(_killed(case, [event]))
    if not killed and case.own:
        case.reject(event, "no process of the job was killed")
        return False
    return case.failed


def _crash(case: Case) -> Iterator[Candidate]:
    """Native crashes: the kernel's segfault line, a SIGSEGV exit, a heap that glibc found broken."""
    kernel = [e for e in case.of("kernel-segv", "kernel-trap") if _crash_of_job(case, e)]
    texts = [e for e in case.of("exit-segv", "exit-heap", "exit-sigill", "exit-terminate", "dl-segv") if not e.handled]
    exits = [r for r in case.incident.ranks.values() if r.exit_code in (-11, 139, -4, 132)]
    if not (kernel or texts or exits):
        return
    ranks = (
        {r.rank for r in exits}
        or {e.rank for e in texts if e.rank is not None}
        or {e.rank for e in kernel if e.rank is not None}
    )
    rank = next(iter(ranks)) if len(ranks) == 1 else None
    hosts = {e.host for e in kernel if e.host} or {r.host for r in exits if r.host} or {e.host for e in texts if e.host}
    host = case.host_of(rank) or (next(iter(hosts)) if len(hosts) == 1 else None)
    why = f"native code crashed in {'rank ' + str(rank) if rank is not None else 'a rank'}"
    if kernel and kernel[0].fields.get("lib"):
        why += f" (in {kernel[0].fields['lib']})"
    spots = cite(
        (e.spot for e in kernel[:2]), (e.spot for e in texts[:4]), (r.exit_spot for r in exits), _frames(case, rank)
    )
    times = [t for e in kernel if (t := case.job_time(e)) is not None]
    yield Candidate(
        "app.segfault",
        Tier.OWN_ERROR,
        why,
        spots,
        rank,
        host,
        pid=kernel[0].pid if kernel else None,
        time_s=min(times, default=None),
    )


def _frames(case: Case, rank: int | None) -> list[Spot]:
    return [s.spots[0] for s in case.incident.stacks if rank is not None and s.rank == rank and s.main]


def _crash_of_job(case: Case, event: Event) -> bool:
    if case.other_process(event):
        case.reject(event, f"another process ({event.fields.get('task', '?')})")
        return False
    when = case.when(event)
    if when == "out" or (when == "maybe" and event.rank is None):
        case.reject(event, "outside the job's time")
        return False
    return event.rank is not None or not case.foreign_pid(event) or bool(case.failed_exits)
