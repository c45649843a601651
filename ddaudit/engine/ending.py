"""What a scheduler says of a job, as findings: its waits, and an end that is not the run's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ddaudit.engine.folder import JOURNAL, RunFolder, in_use
from ddaudit.engine.journal import read_journal
from ddaudit.errors import Exit, Problem
from ddaudit.evidence.events import read_stream
from ddaudit.evidence.jobend import JobEnd
from ddaudit.findings import Finding, Remedy, Severity, Status, Verdict, Where, draft
from ddaudit.launch import slurm
from ddaudit.record import Record

__all__ = ["end_findings", "job_findings", "note_end", "settle"]

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
#: What a job was kept back for -> (finding id, in words).
KEPT_BACK = {
    "hold": ("job.hold", "was held"),
    "dependency": ("job.dependency", "waited for another job (Dependency)"),
    "begin": ("job.begin", "waited for its begin time (a requeue sets one)"),
    "unknown": ("job.kept-back", "was held, or waited for a begin time or another job"),
}
RESOLUTION = "Slurm's times have whole seconds"


def note_end(run_dir: Path, end: JobEnd) -> None:
    """Writes the scheduler's word into the run's journal, where every later report finds it. A folder that is still
    written by the run, or cannot be written, keeps what it has."""
    try:
        with RunFolder(run_dir).open(new=False) as folder:
            folder.emit("job", **end.model_dump(mode="json"))
    except Problem:
        return


def settle(run_dir: Path) -> None:
    """Asks Slurm, where it is at hand, what became of the job of a run that did not come to its end."""
    try:
        journal, events = read_journal(run_dir), read_stream(run_dir / JOURNAL).events
    except Problem:
        return  # no run of ours, or a damaged one: the report says so
    ran_out = journal.end is None or journal.end.signal is not None
    settled = journal.job is not None and journal.job.ended_by is not None
    environment = journal.head.facts.get("environment")
    if not ran_out or settled or not isinstance(environment, Mapping) or in_use(run_dir):
        return
    # Another cluster counts its jobs too: this one must have been there when the run last wrote.
    end = slurm.past(str(environment.get("SLURM_JOB_ID", "")), float(events[-1]["t"]))
    if end is not None:
        note_end(run_dir, end)


def job_findings(job: JobEnd, record: Record | None) -> tuple[list[Finding], str, int]:
    """Findings, verdict and exit code of a job that ended. ``record`` is the run's own, None where the job did not come
    so far."""
    told = list(record.findings) if record is not None else []
    whole = record is not None and record.complete
    # The run's own record says it already where its folder took the scheduler's word.
    end = [] if whole or any(f.check == "job" for f in told) else list(end_findings(job))
    if record is None and not end:
        end = [_no_run(job)]
    findings = [*_waits(job), *end, *told]
    if record is not None and record.complete:
        return findings, str(record.verdict), record.exit_code
    if record is not None and record.exit_code == Exit.FAIL:
        return findings, str(Verdict.FAIL), int(Exit.FAIL)
    return findings, str(Verdict.INCONCLUSIVE), int(Exit.INCONCLUSIVE)


def end_findings(job: JobEnd) -> Iterator[Finding]:
    """The end of a job that its own script did not bring about; nothing where it did, or where Slurm does not say."""
    if (ended_by := job.ended_by) not in ENDS:
        return
    id, what, advice = ENDS[ended_by or ""]
    nodes = f" on {job.nodes}" if job.nodes else ""
    if ended_by == "TIMEOUT" and job.state != "TIMEOUT" and (job.left_s or 0.0) > 0:
        what = f"was told to end {job.left_s:.0f} s before its time limit"
    remedy = Remedy(text=advice, commands=(f"scontrol show job {job.job}",))
    text = f"job {job.job} {what}{nodes}; finished steps are kept"
    yield _job(job, Status.ERROR, id, text, severity=Severity.MAJOR, remedy=remedy)


def _job(job: JobEnd, status: Status, id: str, text: str, **more: Any) -> Finding:
    found = draft(status, id, text, where=Where(key=f"job {job.job}"), **more)
    return found.model_copy(update={"check": "job"})


def _waits(job: JobEnd) -> Iterator[Finding]:
    """The wait for nodes, and apart from it each thing that the job was kept back for before."""
    if job.queue_s is None:
        yield _job(job, Status.SKIP, "job.queue", f"queue time not measured: {job.absent}")
    else:
        reason = f" ({job.queued_for})" if job.queued_for else ""
        again = f"; restarted {job.restarts} time(s)" if job.restarts else ""
        text = f"job {job.job} waited {job.queue_s:.0f} s from eligible to start{reason}{again}; {RESOLUTION}"
        yield _job(job, Status.PASS, "job.queue", text, measured=job.queue_s, unit="s")
    for kind, seconds in job.kept_back_s.items():
        id, what = KEPT_BACK[kind]
        text = f"job {job.job} {what} for {seconds:.0f} s before it was eligible"
        yield _job(job, Status.PASS, id, text, measured=seconds, unit="s")


def _no_run(job: JobEnd) -> Finding:
    how = f"exit code {job.exit_code}" if job.signal is None else f"signal {job.signal}"
    text = f"job {job.job} left no run folder that can be read from here ({job.state.lower()}, {how})"
    remedy = Remedy(text="Read the job's log; put --out on storage that this host sees.")
    return _job(job, Status.ERROR, "job.no-run", text, remedy=remedy)
