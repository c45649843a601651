"""Slurm from the outside: submitting a job, following it through the queue, and what became of it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddaudit.errors import LaunchProblem, UsageProblem
from ddaudit.probes.scheduler import read_job
from ddaudit.redact import redact_text

__all__ = ["ENDED", "Ended", "Look", "follow", "submit"]

ANSWER_S = 30.0
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
            return f"waiting ({self.reason}{place})"
        again = f", restarted {self.restarts} time(s)" if self.restarts else ""
        return f"{self.state.lower()} on {self.nodes}{again}" if self.nodes else f"{self.state.lower()}{again}"


@dataclass(frozen=True)
class Ended:
    """How a job ended. ``exit_code`` is its script's, None where a signal ended that. ``queue_s`` is Start - Eligible,
    ``held_s`` Eligible - Submit: a hold, a begin time or a dependency."""

    job: str
    state: str
    reason: str | None
    exit_code: int | None
    signal: int | None
    restarts: int
    queue_s: float | None
    held_s: float | None
    absent: str | None
    nodes: str | None
    record: str

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "record"}


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


def follow(job: str, on_change: Callable[[Look], None], *, poll_s: float = POLL_S) -> Ended:
    """Looks at the job until it has ended; ``on_change`` is told whenever it looks different.

    Raises:
        LaunchProblem: Slurm does not answer for two minutes, or does not know the job.
    """
    seen: Look | None = None
    for record in _records(job, poll_s):
        look = _look(job, record)
        if look != seen:
            on_change(look)
            seen = look
        if look.state in ENDED and not _completing(job):
            return _ended(job, record)
    raise AssertionError("the records of a job do not end before it has")


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


def _ended(job: str, record: str) -> Ended:
    told = read_job(record)
    code, _, number = (_field(record, "ExitCode") or "").partition(":")
    signal = int(number) if number.isdigit() and int(number) else None
    return Ended(
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
        record=record,
    )


def _field(record: str, name: str) -> str | None:
    found = set(re.findall(rf"(?:^|\s){name}=(\S+)", record.partition("\n")[0]))
    value = found.pop() if len(found) == 1 else None
    return None if value in (None, "(null)", "None") else value


def _ask(argv: Sequence[str], text: str | None = None) -> str:
    """Runs one of Slurm's programs; its standard output."""
    try:
        done = subprocess.run(
            list(argv), input=text, capture_output=True, text=True, timeout=ANSWER_S, check=False, env=dict(os.environ)
        )
    except FileNotFoundError:
        raise UsageProblem(f"{argv[0]} is not on PATH", fix="submit from a host with Slurm's client programs") from None
    except subprocess.TimeoutExpired:
        raise LaunchProblem(f"{argv[0]} did not answer within {ANSWER_S:.0f} s", fix="is slurmctld up?") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LaunchProblem(f"{argv[0]}: {redact_text(said)[:400]}")
    return done.stdout
