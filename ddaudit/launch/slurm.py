"""Slurm from the outside: submitting a job, following it through the queue, and what became of it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddaudit.errors import LaunchProblem, Problem, UsageProblem
from ddaudit.evidence.jobend import JobEnd
from ddaudit.probes._placement import epoch
from ddaudit.probes.scheduler import read_job
from ddaudit.redact import redact_text

__all__ = ["ENDED", "Look", "follow", "limit_seconds", "past", "present", "submit"]

ANSWER_S = 30.0
#: What a job may still write after its end: Slurm's KillWait is half a minute, and admins lengthen it.
GRACE_S = 300.0
#: For a job that is being ended: its grace is for the report.
QUICK_S = 5.0
POLL_S = 2.0
#: States that a job does not leave again by itself.
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED"}
)
#: How often Slurm may fail to answer before it is given up; a controller takes a minute to fail over.
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Look:
    """A job as Slurm tells it. ``position`` is its place among the pending jobs of its partition, 1 the next to run."""

    state: str
    reason: str | None = None
    nodes: str | None = None
    position: int | None = None
    restarts: int = 0

    def __str__(self) -> str:
        if self.state == "PENDING":
            place = f", position {self.position} in the queue" if self.position else ""
            reason = "not looked at yet" if self.reason in (None, "None") else self.reason
            return f"waiting ({reason}{place})"
        again = f", restarted {self.restarts} time(s)" if self.restarts else ""
        return f"{self.state.lower()} on {self.nodes}{again}" if self.nodes else f"{self.state.lower()}{again}"


def submit(script: str, *, extra: Sequence[str] = ()) -> str:
    """Submits a script by standard input; returns the job's id.

    Raises:
        LaunchProblem: there is no sbatch, or Slurm refuses.
    """
    told = _ask(["sbatch", "--parsable", *extra], script)
    job = told.strip().partition(";")[0]
    if not re.fullmatch(r"\d+", job):
        raise LaunchProblem(f"sbatch answered {redact_text(told.strip()[:200])!r}", expected="a job id")
    return job


def follow(job: str, on_change: Callable[[Look], None], *, poll_s: float = POLL_S) -> JobEnd:
    """Looks at the job until it has ended; ``on_change`` is told whenever it looks different.

    Raises:
        LaunchProblem: Slurm does not answer for two minutes, or does not know the job.
    """
    seen: Look | None = None
    waits, due = _Waits(), None
    for record in _records(job, poll_s):
        look = _look(job, record)
        if seen is not None and look.restarts != seen.restarts:
            waits, due = _Waits(), None  # Slurm's times are those of the last try as well
        waits.note(look.reason if look.state == "PENDING" else None, time.monotonic())
        due = epoch(_field(record, "EndTime")) if look.state == "RUNNING" else due
        if look != seen:
            on_change(look)
            seen = look
        if look.state in ENDED and not _completing(job):
            return _ended(job, record, due, waits.seconds)
    raise AssertionError("the records of a job do not end before it has")


class _Waits:
    """Seconds by the reason that Slurm gave for them. A look counts from the one before it, for that one's reason; a
    job that Slurm has not looked at yet has none, so its next reason stands for both."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last: tuple[float, str | None] | None = None

    def note(self, reason: str | None, now: float) -> None:
        reason = None if reason == "None" else reason
        if self._last is not None and (known := self._last[1] or reason) is not None:
            self.seconds[known] = self.seconds.get(known, 0.0) + now - self._last[0]
        self._last = (now, reason)


def _record_of(job: str) -> str | None:
    """What scontrol says of a job; None without Slurm, an answer of it, or a job's number."""
    if not re.fullmatch(r"\d+", job):
        return None
    try:
        return _ask(["scontrol", "-o", "show", "job", job], limit_s=QUICK_S).strip()
    except Problem:
        return None


def present(environment: Mapping[str, str], number: int) -> JobEnd | None:
    """The job around this process, which was just told to end by the signal ``number``; None without Slurm or an
    answer of it."""
    job = environment.get("SLURM_JOB_ID", "")
    record = _record_of(job)
    if record is None:
        return None
    end, now = _ended(job, record, None, {}), time.time()
    due = epoch(_field(record, "EndTime")) if end.state == "RUNNING" else None
    told: dict[str, object] = {"signal": number, "exit_code": None, "left_s": None if due is None else due - now}
    if end.state == "COMPLETING":  # the start is moved while a job goes back to the queue
        told |= {"queue_s": None, "held_s": None, "absent": "the job was being ended"}
    return end.model_copy(update=told)


def past(job: str, at: float) -> JobEnd | None:
    """A job that has ended; None without Slurm, while it goes on, or when it was not there at the time ``at``."""
    record = _record_of(job)
    if record is None:
        return None
    submitted, ended = epoch(_field(record, "SubmitTime")), epoch(_field(record, "EndTime"))
    if submitted is None or ended is None or not submitted - 1 <= at <= ended + GRACE_S:
        return None
    end = _ended(job, record, None, {})
    return end if end.state in ENDED else None


def _completing(job: str) -> bool:
    """True while processes of an ended job are still there: they write its report. A cancelled job is called that at
    once, so its record alone does not tell."""
    try:
        return "COMPLETING" in _ask(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).split()
    except LaunchProblem:
        return False  # squeue forgets jobs sooner than scontrol


def _records(job: str, poll_s: float) -> Iterator[str]:
    heard = time.monotonic()
    while True:
        try:
            yield _ask(["scontrol", "-o", "show", "job", job]).strip()
            heard = time.monotonic()
        except LaunchProblem:
            if time.monotonic() - heard > PATIENCE_S:
                raise
        time.sleep(poll_s)


def _look(job: str, record: str) -> Look:
    told = read_job(record)
    state = told["state"] or "UNKNOWN"
    position = _position(job, record) if state == "PENDING" else None
    nodes = _field(record, "NodeList") if state != "PENDING" else None
    return Look(state, told["reason"], nodes, position, told["restarts"] or 0)


def _position(job: str, record: str) -> int | None:
    """Jobs that are held or wait for others have no place in the queue."""
    if (_field(record, "Reason") or "") not in ("Resources", "Priority"):
        return None
    partition = _field(record, "Partition")
    try:
        listed = _ask(
            ["squeue", "-h", "-t", "PD", "-o", "%A|%r", "--sort=-p,i", *(["-p", partition] if partition else [])]
        )
    except LaunchProblem:
        return None
    queue = [line.partition("|")[0] for line in listed.split() if line.rpartition("|")[2] in ("Resources", "Priority")]
    return queue.index(job) + 1 if job in queue else None


def _ended(job: str, record: str, due: float | None, waits: Mapping[str, float]) -> JobEnd:
    """``due`` is when the time limit would have ended the job, as long as that was still ahead."""
    told = read_job(record)
    code, _, number = (_field(record, "ExitCode") or "").partition(":")
    signal = int(number) if number.isdigit() and int(number) else None
    start, end = epoch(_field(record, "StartTime")), epoch(_field(record, "EndTime"))
    preempted = epoch(_field(record, "PreemptTime"))
    limit_s = limit_seconds(_field(record, "TimeLimit") or "")
    if due is None and start is not None and limit_s is not None:
        due = start + limit_s
    return JobEnd(
        job=job,
        state=told["state"] or "UNKNOWN",
        reason=told["reason"],
        exit_code=int(code) if code.isdigit() and signal is None else None,
        signal=signal,
        restarts=told["restarts"] or 0,
        queue_s=told.get("queue_s"),
        held_s=told.get("held_s"),
        absent=told["absent"],
        nodes=_field(record, "NodeList"),
        waits={reason: round(seconds, 1) for reason, seconds in waits.items()},
        left_s=None if due is None or end is None else due - end,
        preempted=preempted is not None and start is not None and preempted >= start,
    )


def limit_seconds(text: str) -> int | None:
    """A time limit in one of Slurm's forms, such as 90, 1:30:00 or 2-12; None where it is none, or unlimited."""
    found = re.fullmatch(r"(?:(?P<days>\d{1,4})-)?(?P<clock>\d{1,6}(?::\d{1,2}){0,2})", text)
    if not found:
        return None
    parts = [int(part) for part in found["clock"].split(":")]
    # Behind days the first number counts hours; alone, or before one colon, minutes.
    scales = (3600, 60, 1) if found["days"] or len(parts) == 3 else (60, 1)
    return int(found["days"] or 0) * 86_400 + sum(n * s for n, s in zip(parts, scales, strict=False))


def _field(record: str, name: str) -> str | None:
    found = set(re.findall(rf"(?:^|\s){name}=(\S+)", record.partition("\n")[0]))
    value = found.pop() if len(found) == 1 else None
    return None if value in (None, "(null)", "None") else value


def _ask(argv: Sequence[str], text: str | None = None, *, limit_s: float = ANSWER_S) -> str:
    """Runs one of Slurm's programs; its standard output."""
    try:
        done = subprocess.run(
            list(argv), input=text, capture_output=True, text=True, timeout=limit_s, check=False, env=dict(os.environ)
        )
    except FileNotFoundError:
        raise UsageProblem(f"{argv[0]} is not on PATH", fix="submit from a host with Slurm's client programs") from None
    except subprocess.TimeoutExpired:
        raise LaunchProblem(f"{argv[0]} did not answer within {limit_s:.0f} s", fix="is slurmctld up?") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LaunchProblem(f"{argv[0]}: {redact_text(said)[:400]}")
    return done.stdout
