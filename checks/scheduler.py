"""Question 7, the part before the first step: how long did the job wait in the queue?"""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.api import Finding, Limit, Limits, Plant, Remedy, SchedulerFacts, Severity, Where, check, ok, skip, warn


class SchedulerLimits(Limits):
    """Limits on the time before a job starts."""

    family = "scheduler"

    queue_s: Limit = Limit(warn_above=3600.0, source="default: an hour in the queue outweighs most gains in speed")


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
