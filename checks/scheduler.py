"""Question 7, the part before the first step: the wait in the queue, where the nodes lie, and what restarts cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddaudit.api import (
    Finding,
    JobPlacement,
    Limit,
    Limits,
    Plant,
    Remedy,
    SchedulerFacts,
    Severity,
    Where,
    check,
    ok,
    skip,
    warn,
)


class SchedulerLimits(Limits):
    """Limits on the time before a job starts."""

    family = "scheduler"

    queue_s: Limit = Limit(warn_above=3600.0, source="default: an hour in the queue outweighs most gains in speed")
    leaf_factor: Limit = Limit(
        warn_above=1.9, source="default: at twice the switches that suffice most pairs of nodes meet over the spine"
    )
    lost_s: Limit = Limit(warn_above=3600.0, source="default: as an hour in the queue")
    idle_s: Limit = Limit(warn_above=600.0, source="default: containers and imports take minutes, not ten")


RECORD = (
    "JobId=4711 JobName=train UserId=ml(1000) JobState=RUNNING Reason=None Dependency=(null) Restarts=0"
    " SubmitTime=2026-03-02T08:00:00 EligibleTime=2026-03-02T08:00:00 AccrueTime=2026-03-02T08:00:00"
    " StartTime={start} EndTime=2026-03-03T08:00:00 Partition=gpu"
)


@check(
    "scheduler.queue",
    question="bottleneck",
    asks="How long did the job wait for its resources before it ran?",
    plant=Plant(
        "the job waited six hours for nodes",
        "scheduler.queue",
        probe="scheduler",
        params={"record": RECORD.format(start="2026-03-02T08:00:07")},
        planted={"record": RECORD.format(start="2026-03-02T14:00:00")},
        types="Slurm record",
    ),
)
def queue(facts: SchedulerFacts, limits: SchedulerLimits) -> Iterator[Finding]:
    """Waiting from eligible to start is the scheduler's; from submit to eligible (a hold, a begin time, a dependency)
    it is the user's own and is only told. No speed-up of the step gives this time back."""
    here = Where(host=facts.host, key=facts.job_id)
    if facts.scheduler == "none":
        text = f"no scheduler: queue time is 0 s (looked for {facts.looked_for})"
        yield ok(text, where=here, measured=0.0, unit="s", limit=limits.queue_s.warn_above)
        return
    if facts.queue_s is None:
        yield skip(f"not measured: {facts.absent or 'no times were read'}", where=here)
        return
    limit = limits.queue_s
    held = f"; held {facts.held_s:.0f} s before that" if facts.held_s else ""
    again = f"; restarted {facts.restarts} time(s)" if facts.restarts else ""
    text = f"job {facts.job_id} waited {facts.queue_s:.0f} s from eligible to start{held}{again}"
    kept = {"measured": facts.queue_s, "unit": "s", "limit": limit.bound(facts.queue_s), "limit_source": limit.source}
    if limit.judge(facts.queue_s).value == "PASS":
        yield ok(text, where=here, **kept)
        return
    yield warn(
        "scheduler.queue",
        text,
        severity=Severity.MINOR,
        where=here,
        remedy=Remedy(
            text="Ask for fewer nodes or a shorter time limit, so that the job fits a gap; see what it waited for.",
            commands=("sprio -l", "squeue --start"),
        ),
        **kept,
    )


ALLOCATED = (
    "JobId=4711 JobName=train JobState=RUNNING Restarts={restarts} StartTime=2026-03-02T14:00:00 NumNodes=4"
    " NodeList=n[1-4] TRES=cpu=64,mem=64G,node=4,billing=64,gres/gpu=32"
)
TOPOLOGY = (
    "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes={first}\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes={second}\n"
    "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]\n"
)
HISTORY = (
    "JobID|State|Start|End|ElapsedRaw\n4711|{state}|2026-03-02T08:00:00|2026-03-02T13:00:00|18000\n"
    "4711|RUNNING|2026-03-02T14:00:00|Unknown|60\n"
)
GOOD = {
    "record": ALLOCATED.format(restarts=0),
    "topology": TOPOLOGY.format(first="n[1-4]", second="n[5-8]"),
    "began": "2026-03-02T14:00:20",
}
RESTARTED = {"record": ALLOCATED.format(restarts=1), "history": HISTORY.format(state="PREEMPTED")}


@check(
    "scheduler.placement",
    question="bottleneck",
    asks="Do the job's nodes lie close together in the network?",
    plant=Plant(
        "four nodes lie on two switches though one has room for all",
        "scheduler.spread",
        probe="scheduler",
        params=GOOD,
        planted={"topology": TOPOLOGY.format(first="n[1-2,5-6]", second="n[3-4,7-8]")},
        types="Slurm record",
    ),
)
def placement(facts: JobPlacement, limits: SchedulerLimits) -> Iterator[Finding]:
    """The leaf switches (or blocks) over which the allocation is spread, against the fewest with as many nodes. Nothing
    is said of how busy the switches between them are; the `links` probe measures what they deliver."""
    where = Where(host=facts.host, key=facts.job_id)
    if not facts.leaves:
        names = _counted(facts.names, " nodes named ", "*")
        yield skip(f"spread over switches not measured: {facts.leaves_absent}; {names}", where=where)
        return
    limit, used = limits.leaf_factor, len(facts.leaves)
    fewest = facts.fewest_leaves or used
    text = f"{facts.nodes} nodes lie on {used} leaf switches where {fewest} would hold as many: "
    text += _counted(facts.leaves, " on ", "")
    kept = {"measured": used / fewest, "unit": "times the fewest switches", "limit": limit.bound(used / fewest)}
    kept |= {"limit_source": limit.source}
    if limit.judge(used / fewest).value == "PASS":
        yield ok(text, where=where, **kept)
        return
    remedy = Remedy(
        text="Ask for switches rather than nodes anywhere, and for how long that is worth waiting.",
        commands=(f"sbatch --switches={fewest}@60:00 ...", "scontrol show topology"),
    )
    yield warn("scheduler.spread", text, severity=Severity.MINOR, where=where, remedy=remedy, **kept)


def _counted(counts: Mapping[str, int], of: str, after: str) -> str:
    """``3 on leaf1, 5 on leaf2``, the largest first, at most eight of them."""
    shown = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return ", ".join(f"{count}{of}{name}{after}" for name, count in shown[:8]) + more


@check(
    "scheduler.restarts",
    question="bottleneck",
    asks="What did preemption, requeues and idle devices cost the job so far?",
    plant=(
        Plant(
            "a try of five hours was preempted",
            "scheduler.lost-time",
            probe="scheduler",
            params=GOOD,
            planted=RESTARTED,
            types="Slurm record",
        ),
        Plant(
            "the run began half an hour after its allocation",
            "scheduler.idle-devices",
            probe="scheduler",
            params=GOOD,
            planted={"began": "2026-03-02T14:30:00"},
            types="Slurm record",
        ),
    ),
)
def restarts(facts: JobPlacement, limits: SchedulerLimits) -> Iterator[Finding]:
    """Time that earlier tries held their nodes for, with the time in the queue between them, and the time from the
    start of the allocation to the run's first event in it, both also in hours of all devices. What an earlier try
    finished may live on in a checkpoint: this is the most that was lost."""
    where = Where(host=facts.host, key=facts.job_id)
    if facts.lost_s is None:
        yield skip(
            f"{facts.restarts or 'unknown'} restart(s), their cost not measured: {facts.tries_absent}", where=where
        )
    else:
        yield _lost(facts, facts.lost_s, limits.lost_s, where)
    if facts.idle_s is None:
        yield skip("idle devices not measured: the run's beginning or the job's start is not known", where=where)
        return
    limit = limits.idle_s
    text = f"devices were idle for {facts.idle_s:.0f} s from the job's start to the run's"
    text += f" ({facts.device_hours(facts.idle_s)})"
    kept = {"where": where, "measured": facts.idle_s, "unit": "s", "limit": limit.bound(facts.idle_s)}
    kept |= {"limit_source": limit.source}
    if limit.judge(facts.idle_s).value == "PASS":
        yield ok(text, **kept)
        return
    remedy = Remedy(text="Look at what the job's script does first: container pulls, copies of data, compilation.")
    yield warn("scheduler.idle-devices", text, severity=Severity.MINOR, remedy=remedy, **kept)


def _lost(facts: JobPlacement, lost_s: float, limit: Limit, where: Where) -> Finding:
    tries = facts.tries or ()
    text = "the job was never restarted"
    if tries:
        ends = ", ".join(f"{t.state} after {t.seconds:.0f} s" for t in tries[-5:])
        text = f"{len(tries)} earlier tries held the nodes for {lost_s:.0f} s ({facts.device_hours(lost_s)}): {ends}"
        text += f"; {facts.requeued_s or 0.0:.0f} s in the queue between them"
    kept = {"where": where, "measured": lost_s, "unit": "s", "limit": limit.bound(lost_s), "limit_source": limit.source}
    if limit.judge(lost_s).value == "PASS":
        return ok(text, **kept)
    remedy = Remedy(
        text="Save checkpoints more often than tries end, and ask for a partition that is not preempted.",
        commands=(f"sacct -j {facts.job_id} --duplicates -X", "sinfo -o '%P %p'"),
    )
    return warn("scheduler.lost-time", text, severity=Severity.MINOR, remedy=remedy, **kept)
