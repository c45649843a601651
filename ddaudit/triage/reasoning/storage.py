"""A file system that does not answer: the kernel's word, or processes asleep in it."""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.evidence.incident import Event
from ddaudit.triage.reasoning.case import Candidate, Case, Tier, cite
from ddaudit.triage.reasoning.waiting import absent

__all__ = ["came_back", "judge"]


def judge(case: Case) -> Iterator[Candidate]:
    """Candidate ``storage.fs-hang`` where no single rank's stack shows it: whole hosts or the whole job wait."""
    events = [e for e in case.events if e.cause == "storage.fs-hang" and e.kernel and _now(case, e)]
    sure = [e for e in events if e.role == "root"]
    asleep = [p for p in case.incident.processes if p.state.startswith("D")]
    mounts = [e for e in case.of("fuse-endpoint", "fs-wait-log", "sl-signals", "sl-killtask") if not e.handled]
    blocked = [e for e in events if e.signature == "hung-task" and (e.rank is not None or not case.other_process(e))]
    if not (sure or (blocked and (asleep or mounts))):
        return
    if case.own and not any(r.cause.startswith(("storage.", "data.loader")) for r in case.own):
        return
    if not (case.hung or case.failed or asleep or blocked or mounts):
        return
    hosts = {e.host for e in (*sure, *blocked) if e.host}
    missing = absent(case)
    rank = missing.ranks[0] if missing is not None and len(missing.ranks) == 1 else None
    named = {e.rank for e in blocked if e.rank is not None}
    rank = rank if rank is not None else next(iter(named)) if len(named) == 1 else None
    host = next(iter(hosts)) if len(hosts) == 1 else case.host_of(rank)
    if rank is not None and host is not None and case.host_of(rank) not in (None, host):
        return  # the rank that did not come runs elsewhere: the file system is not its reason
    rank = rank if rank is not None else case.only_rank(host)
    server = next((e.fields["server"] for e in sure if e.fields.get("server")), None)
    what = f"server {server}" if server else "a file system"
    why = f"{what} does not answer {host or 'several hosts'}; processes sleep in it"
    spots = cite(
        (e.spot for e in sure[:3]),
        (e.spot for e in blocked[:2]),
        (p.spot for p in asleep[:2]),
        (e.spot for e in mounts[:1]),
    )
    yield Candidate("storage.fs-hang", Tier.HANG, why, spots, rank, host, confidence="medium")


def _now(case: Case, event: Event) -> bool:
    when = case.when(event)
    if when == "out" or (when == "maybe" and event.rank is None):
        case.reject(event, "outside the job's time")
        return False
    if came_back(case, event):
        case.reject(event, "the server answered again")
        return False
    return True


def came_back(case: Case, event: Event) -> bool:
    """True when the same server was reported well later in the same log."""
    server = event.fields.get("server")
    if not server:
        return False
    return any(
        e.fields.get("server") == server and e.spot.file == event.spot.file and e.spot.line > event.spot.line
        for e in case.of("nfs-ok")
    )
