"""What a scheduler says of a job, as findings: its wait, and an end that is not the run's own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddaudit.errors import Exit
from ddaudit.findings import Finding, Remedy, Severity, Status, Verdict, Where, draft
from ddaudit.record import Record

__all__ = ["job_findings"]

#: State of a job that ended otherwise than by its script -> (finding id, what happened, what to do).
ENDS = {
    "TIMEOUT": ("job.time-limit", "ran into its time limit", "Ask for more time, or for less work; then submit again."),
    "CANCELLED": ("job.cancelled", "was cancelled", "Submit it again; the finished steps of its run folder stand."),
    "NODE_FAIL": ("job.node-failed", "lost a node", "Submit it again with --exclude of that node."),
    "PREEMPTED": ("job.preempted", "was preempted", "Submit it again, or to a partition that is not preempted."),
    "OUT_OF_MEMORY": ("job.out-of-memory", "was ended for memory", "Ask for more memory a node."),
    "BOOT_FAIL": ("job.boot-failed", "got a node that did not boot", "Submit it again with --exclude of that node."),
    "DEADLINE": ("job.deadline", "passed its deadline", "Move the deadline."),
}


def job_findings(job: Mapping[str, Any], record: Record | None) -> tuple[list[Finding], str, int]:
    """Findings, verdict and exit code of a job that ended. ``job`` holds the fields of
    :class:`ddaudit.launch.slurm.Ended`; ``record`` is the run's own, None where the job did not come so far."""
    findings = [_wait(job), *_end(job, record), *(record.findings if record else ())]
    if record is not None and record.complete:
        return findings, str(record.verdict), record.exit_code
    if record is not None and record.exit_code == Exit.FAIL:
        return findings, str(Verdict.FAIL), int(Exit.FAIL)
    return findings, str(Verdict.INCONCLUSIVE), int(Exit.INCONCLUSIVE)


def _job(status: Status, id: str, text: str, **more: Any) -> Finding:
    return draft(status, id, text, **more).model_copy(update={"check": "job"})


def _wait(job: Mapping[str, Any]) -> Finding:
    where = Where(key=f"job {job['job']}")
    if job["queue_s"] is None:
        return _job(Status.SKIP, "job.queue", f"queue time not measured: {job['absent']}", where=where)
    held = job["held_s"]
    before = f", after {held:.0f} s in which it was held or waited for another job" if held else ""
    again = f"; restarted {job['restarts']} time(s)" if job["restarts"] else ""
    text = f"job {job['job']} waited {job['queue_s']:.0f} s from eligible to start{before}{again}"
    return _job(Status.PASS, "job.queue", text, where=where, measured=job["queue_s"], unit="s")


def _end(job: Mapping[str, Any], record: Record | None) -> list[Finding]:
    where = Where(key=f"job {job['job']}")
    if job["state"] in ENDS:
        id, what, advice = ENDS[job["state"]]
        nodes = f" on {job['nodes']}" if job["nodes"] else ""
        remedy = Remedy(text=advice, commands=(f"scontrol show job {job['job']}",))
        text = f"job {job['job']} {what}{nodes}; finished steps are kept"
        return [_job(Status.ERROR, id, text, where=where, severity=Severity.MAJOR, remedy=remedy)]
    if record is None:
        how = f"exit code {job['exit_code']}" if job["signal"] is None else f"signal {job['signal']}"
        text = f"job {job['job']} left no run folder that can be read from here ({job['state'].lower()}, {how})"
        remedy = Remedy(text="Read the job's log; put --out on storage that this host sees.")
        return [_job(Status.ERROR, "job.no-run", text, where=where, remedy=remedy)]
    return []
