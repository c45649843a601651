"""The scheduler or a person ended the job, or a node died under it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ddaudit.evidence.incident import Event, SchedulerJob, Spot
from ddaudit.triage.reasoning.case import Candidate, Case, Tier, cite

__all__ = ["judge"]

_STATES = (
    (r"TIMEOUT|DEADLINE", "sched.time-limit"),
    (r"PREEMPTED", "sched.preempted"),
    (r"CANCELLED (?:by|\+)|CANCELLED\+", "sched.cancelled-by-user"),
    (r"NODE_FAIL|BOOT_FAIL", "node.failed"),
)
_CAUSES = ("sched.time-limit", "sched.preempted", "sched.cancelled-by-user", "node.failed")
#: A failure that came this much before the scheduler's word is not its consequence.
LEAD_S = 60.0


def judge(case: Case) -> Iterator[Candidate]:
    """Candidates ``sched.*`` and ``node.failed``."""
    for cause in _CAUSES:
        events = [
            e
            for e in case.events
            if e.cause == cause and e.role == "root" and not e.handled and not _only_a_step(e, case)
        ]
        events = [e for e in events if not _of_the_past(case, e)]
        rows = [j for j in case.main_jobs if any(c == cause and re.match(p, j.state) for p, c in _STATES)]
        if cause == "node.failed":
            yield from _node(case, events, rows)
        elif (events or rows) and not _earlier_failure(case, events, cause):
            yield _scheduler(case, cause, events, rows)


def _of_the_past(case: Case, event: Event) -> bool:
    """Words about an earlier job: too old for this one (any time zone granted)."""
    if event.kernel or case.when(event) != "out":
        return False
    case.reject(event, "outside the job's time: an earlier job")
    return True


def _only_a_step(event: Event, case: Case) -> bool:
    """A bare step cancel follows any failed task; a job's cancel, or one that no failure explains, is a person's."""
    if event.signature != "sl-cancel" or event.fields.get("what") == "JOB":
        return False
    return bool(case.own or case.failed_exits)


def _earlier_failure(case: Case, events: list[Event], cause: str) -> bool:
    """True when a rank failed or a collective timed out well before the scheduler acted."""
    first = min(events, key=lambda e: e.stamp.time_s if e.stamp else 0.0, default=None)
    if first is None:
        return bool(case.own) and cause == "sched.cancelled-by-user"
    for raised in case.own:
        if raised.spot.file == first.spot.file and raised.spot.line < first.spot.line:
            return True
        if (
            raised.stamp
            and first.stamp
            and first.stamp.time_s - raised.stamp.time_s > LEAD_S
            and raised.stamp.zoned == first.stamp.zoned
        ):
            return True
    for timeout in case.timeouts.values():
        if timeout.spot.file == first.spot.file and timeout.spot.line < first.spot.line:
            return True
    return False


def _scheduler(case: Case, cause: str, events: list[Event], rows: list[SchedulerJob]) -> Candidate:
    words = {
        "sched.time-limit": "the scheduler ended the job at its time limit",
        "sched.preempted": "the scheduler preempted the job",
        "sched.cancelled-by-user": "the job was cancelled by a person",
    }[cause]
    first = min((e.stamp.time_s for e in events if e.stamp), default=None)
    why = f"{words}; errors that follow within seconds are its consequence"
    return Candidate(cause, Tier.SCHEDULER, why, cite((e.spot for e in events), (r.spot for r in rows)), time_s=first)


def _node(case: Case, events: list[Event], rows: list[SchedulerJob]) -> Iterator[Candidate]:
    """A node that the scheduler, the cluster or its own console declared dead."""
    votes: Counter[str] = Counter()
    spots: list[tuple[str | None, Spot]] = []
    for event in events:
        if event.kernel and case.when(event) == "out":
            case.reject(event, "outside the job's time")
            continue
        # Slurm prints the batch host in "JOB n ON host", never the failed one.
        host = event.fields.get("peer") or (event.host if event.kernel or event.signature.startswith("k8s") else None)
        if host:
            votes[host] += 1
        if event.signature == "sl-notresp" and event.host and not event.fields.get("peer"):
            votes[event.host] += 1
        spots.append((host, event.spot))
    nodes = [
        j
        for j in case.incident.jobs
        if j.job.startswith("node:") and re.search(r"DOWN|NOT_RESPONDING|FAIL|\*", j.state)
    ]
    for node in nodes:
        votes[node.nodes] += 1
        spots.append((node.nodes, node.spot))
    strong = [e for e in events if e.signature not in ("sl-notresp", "sl-reboot") or case.failed]
    if not (strong or rows) or not (case.failed or rows):
        return
    known = {h for h in votes if h in case.incident.hosts or any(h == k.split(".")[0] for k in case.incident.hosts)}
    named = [h for h, _ in votes.most_common() if h in known] or [h for h, _ in votes.most_common()]
    host = named[0] if named else None
    traces = [e.spot for e in case.of("mce", "kernel-oops") if e.host == host]
    why = f"{host or 'a node'} was declared down or crashed; the other ranks only lost their connection to it"
    rank = case.only_rank(host) if host else None
    yield Candidate(
        "node.failed",
        Tier.SCHEDULER,
        why,
        cite((s for h, s in spots if h in (None, host)), (r.spot for r in rows), traces),
        rank or _lost_rank(case, host),
        host,
    )


def _lost_rank(case: Case, host: str | None) -> int | None:
    """The one rank of which the bundle holds no sign while all others speak."""
    if host is None:
        return None
    if (rank := case.only_rank(host)) is not None:
        return rank
    if case.ranks_on(host):
        return None
    speaking = {e.rank for e in case.events if e.rank is not None} | {
        s.rank for s in case.incident.steps if s.rank is not None
    }
    single = all(len(case.ranks_on(h)) <= 1 for h in case.incident.hosts)
    world = case.incident.world_size or (max(speaking) + 1 if speaking else 0)
    if case.incident.world_size is None and single:
        world = max(world, len(case.incident.listed_hosts), len(case.incident.hosts))
    lost = set(range(world)) - speaking
    return next(iter(lost)) if len(lost) == 1 else None
