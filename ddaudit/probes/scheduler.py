"""The ``scheduler`` probe: how long this job waited, where its nodes lie and what restarts cost, as Slurm tells."""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.evidence.events import read_stream
from ddaudit.evidence.scheduler import JobPlacement, LaunchLedger, SchedulerFacts
from ddaudit.probes._placement import HISTORY, Answer, epoch, field_of, placement
from ddaudit.probes._program import run_program
from ddaudit.redact import redact_text
from ddaudit.registry import probe

__all__ = ["SchedulerParams", "read_job", "scheduler"]

#: What Slurm prints for a time that it does not have.
NO_TIME = frozenset({"Unknown", "N/A", "None", "(null)"})
FIELDS = ("JobId", "JobState", "Reason", "Restarts", "SubmitTime", "EligibleTime", "StartTime")
LOOKED_FOR = "SLURM_JOB_ID and KUBERNETES_SERVICE_PORT in the environment"
TIMEOUT_S = 10.0
JOURNAL_BYTES = 64 << 20
#: States in which StartTime is a forecast, not a fact.
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})


class SchedulerParams(BaseModel):
    """``job``: a Slurm job id; the one this process runs in where unset. ``record``: what ``scontrol -o show job``
    printed elsewhere, to be read instead of asking; with it ``topology``, from ``scontrol -o show topology``,
    ``history``, from ``sacct --duplicates -X -P -o JobID,State,Start,End,ElapsedRaw``, and ``began``, when the run
    began there, as Slurm writes times."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    job: str = Field("", pattern=r"^[0-9_+]*$")
    record: str = Field("", max_length=1 << 20)
    topology: str = Field("", max_length=1 << 22)
    history: str = Field("", max_length=1 << 22)
    began: str = Field("", max_length=64)


@probe("scheduler", produces=(SchedulerFacts, JobPlacement, LaunchLedger), params=SchedulerParams)
def scheduler(context: ProbeContext, params: SchedulerParams) -> None:
    """Asks Slurm for the job's submit, eligible and start times, the switches of its nodes and its earlier tries.
    Without a scheduler the waits are 0, and say so.

    A pod's conditions are not visible from inside it, so under Kubernetes the wait is not measured.
    """
    known: dict[str, Any] = {"host": context.host, "looked_for": LOOKED_FOR}
    job = params.job or os.environ.get("SLURM_JOB_ID", "")
    if params.record:
        known |= {"scheduler": "slurm", "looked_for": "the record given", **read_job(params.record)}
        _place(context, params, params.record)
    elif job:
        record, absent = _ask(context, "scontrol", "-o", "show", "job", job)
        known |= {"scheduler": "slurm", "job_id": job, **({"absent": absent} if absent else read_job(record))}
        _place(context, params, record)
    elif "KUBERNETES_SERVICE_PORT" in os.environ:
        absent = "a pod cannot see its own conditions; compare creationTimestamp and PodScheduled of `kubectl get pod`"
        known |= {"scheduler": "kubernetes", "absent": absent}
    else:
        known |= {"scheduler": "none", "queue_s": 0.0, "held_s": 0.0}
    context.events.emit_evidence(SchedulerFacts(**known))


def _place(context: ProbeContext, params: SchedulerParams, record: str) -> None:
    """Records where the job's nodes lie and what its earlier tries took."""

    def topology() -> Answer:
        if params.record:
            return params.topology, None if params.topology else "no topology was given"
        return _ask(context, "scontrol", "-o", "show", "topology")

    def history(job: str) -> Answer:
        if params.record:
            return params.history, None if params.history else "no accounting was given"
        return _ask(context, "sacct", "-j", job, "--duplicates", "-X", "-P", "-o", ",".join(HISTORY))

    began = epoch(params.began) if params.record else _began(context, epoch(field_of(record, "StartTime")))
    found = placement(record, context.host, topology=topology, history=history, began=began)
    if found is not None:
        context.events.emit_evidence(found)


def _began(context: ProbeContext, start: float | None) -> float | None:
    """When this run did something in this allocation for the first time; earlier tries wrote into the same folder."""
    path = context.run_dir / "events" / "run.jsonl"
    if start is None or not path.is_file() or path.stat().st_size > JOURNAL_BYTES:
        return None
    return min((e["t"] for e in read_stream(path).events if e["t"] >= start - 1), default=None)


def _ask(context: ProbeContext, *argv: str) -> Answer:
    """What one of Slurm's programs prints, or why it says nothing."""
    passed = {k: v for k in ("PATH", "SLURM_CONF", "HOME", "LANG") if (v := os.environ.get(k)) is not None}
    ended = run_program(
        list(argv),
        env=passed,
        cwd=context.scratch,
        timeout_s=min(TIMEOUT_S, max(0.1, context.remaining_s() - 1)),
        max_bytes=1 << 22,
        merge=False,
    )
    if ended.exit_code != 0:
        said = (ended.stderr.strip().splitlines() or ["no answer"])[0]
        return "", ended.not_started or f"{' '.join(w for w in argv if w != '-o')}: {redact_text(said)}"
    return ended.stdout, None


def read_job(record: str) -> dict[str, Any]:
    """Fields of :class:`SchedulerFacts` from the output of ``scontrol -o show job``.

    Job names and comments are free text and may hold anything: a field that occurs with two values is not believed.
    A job with several records (an array, components) is read by its first one.
    """
    line = record.strip().partition("\n")[0]
    found = {name: set(re.findall(rf"(?:^|\s){name}=(\S+)", line)) for name in FIELDS}
    plain = {name: values.pop() for name, values in found.items() if len(values) == 1}
    restarts = plain.get("Restarts", "")
    facts: dict[str, Any] = {
        "job_id": plain.get("JobId"),
        "state": plain.get("JobState"),
        "reason": plain.get("Reason"),
        "restarts": int(restarts) if restarts.isascii() and restarts.isdigit() else None,
        "submit": _clean(plain.get("SubmitTime")),
        "eligible": _clean(plain.get("EligibleTime")),
        "start": _clean(plain.get("StartTime")),
    }
    waits = {"held_s": ("submit", "eligible"), "queue_s": ("eligible", "start")}
    reasons = []
    for field, (earlier, later) in waits.items():
        if field == "queue_s" and facts["state"] in WAITING:
            reasons.append(f"the job has not started (state {facts['state']}, reason {facts['reason']})")
            continue
        facts[field], why = _between(earlier, facts[earlier], later, facts[later])
        reasons += [why] if why else []
    return {**facts, "absent": "; ".join(reasons) or None}


def _clean(text: str | None) -> str | None:
    return None if text is None or text in NO_TIME else text


def _between(earlier: str, begin: str | None, later: str, end: str | None) -> tuple[float | None, str | None]:
    """Seconds between two of Slurm's local times, or None and the reason."""
    for name, text in ((earlier, begin), (later, end)):
        if text is None:
            return None, f"Slurm has no {name} time"
    try:
        seconds = (datetime.fromisoformat(end or "") - datetime.fromisoformat(begin or "")).total_seconds()
    except (ValueError, TypeError):
        return None, f"{earlier} {begin!r} or {later} {end!r} is not a time"
    return (seconds, None) if seconds >= 0 else (None, f"the {later} time lies before the {earlier} time")
