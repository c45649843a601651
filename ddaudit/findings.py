"""What a check says: findings, their statuses, and how many of them add up to one verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_serializer

from ddaudit.errors import Exit
from ddaudit.jsonio import decode_number, encode

__all__ = [
    "QUESTIONS",
    "Finding",
    "Number",
    "Remedy",
    "Severity",
    "Status",
    "Verdict",
    "Where",
    "conclude",
    "fail",
    "ok",
    "skip",
    "warn",
]

#: The seven questions, in the order in which every report answers them. Keys are stable ids.
QUESTIONS: dict[str, str] = {
    "loss": "Does single-device training give a sensible loss curve before scaling out?",
    "batch": "Is the effective batch B_eff = N * B_local * A reported, with accumulation and world size?",
    "lr": "Are learning-rate schedule and warm-up adjusted for the effective batch?",
    "accumulation": "Are gradient-accumulation steps counted consistently on all workers?",
    "sync": "Are gradients synchronised at the intended frequency?",
    "checkpoint": "Does checkpoint state include the distributed sampler, every optimizer shard and the global step?",
    "bottleneck": "Is the bottleneck compute, communication, input pipeline, memory or scheduler queue time?",
}

Number = Annotated[float | int | str | None, BeforeValidator(decode_number)]


class Status(StrEnum):
    """Outcome of one finding. SKIP and ERROR both mean "not measured"; neither is ever a pass."""

    PASS = "PASS"  # noqa: S105 - a status word
    WAIVED = "WAIVED"
    SKIP = "SKIP"
    WARN = "WARN"
    ERROR = "ERROR"
    FAIL = "FAIL"

    @property
    def rank(self) -> int:
        """Position from harmless (0) to worst, for ``max(..., key=...)``."""
        return list(Status).index(self)

    @property
    def glyph(self) -> str:
        """One character that tells the status without colour."""
        return {"PASS": "✔", "WAIVED": "⊘", "SKIP": "◌", "WARN": "▲", "ERROR": "‼", "FAIL": "✖"}[self.value]


class Severity(StrEnum):
    """How much a finding matters when it is bad."""

    INFO = "info"
    MINOR = "minor"
    MAJOR = "major"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


class Verdict(StrEnum):
    """The one word a command ends with."""

    PASS = "PASS"  # noqa: S105 - a verdict word
    WARN = "WARN"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    USAGE = "USAGE"
    INTERNAL = "INTERNAL"
    INTERRUPTED = "INTERRUPTED"


class Where(BaseModel):
    """The place a finding points at; only what is known is set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str | None = None
    rank: int | None = None
    device: str | None = None
    file: str | None = None
    key: str | None = None
    tensor: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self if value is not None)


class Remedy(BaseModel):
    """What to do: a sentence, and commands a reader may copy. Commands are shown, never run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    commands: tuple[str, ...] = ()


class Finding(BaseModel):
    """One judged fact.

    ``id`` names the fault (``sync.missing-on-step``), ``check`` the question that was asked; a passing finding's id is
    its check's. ``measured`` and ``limit`` share ``unit``; ``limit_source`` says who set the limit (a physical bound, a
    published measurement, a runbook line, a default). ``evidence`` points into the run folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    check: str
    id: str
    status: Status
    severity: Severity = Severity.MAJOR
    text: str
    step: str | None = None
    question: str | None = None
    where: Where = Field(default_factory=Where)
    measured: Number = None
    unit: str | None = None
    limit: Number = None
    limit_source: str | None = None
    evidence: str | None = None
    remedy: Remedy | None = None
    first_seen_step: int | None = None

    @field_serializer("measured", "limit")
    def _plain(self, value: Any) -> Any:
        return encode(value)

    @property
    def bad(self) -> bool:
        """True for WARN and FAIL: measured, and not as it should be."""
        return self.status in (Status.WARN, Status.FAIL)


def conclude(
    findings: Iterable[Finding],
    *,
    fail_on: Severity = Severity.MAJOR,
    required: Mapping[str, bool | None] | None = None,
    strict: bool = False,
    warn_as_fail: bool = False,
) -> tuple[Verdict, Exit]:
    """Reduces findings to a verdict and its exit code.

    ``required`` maps a step id to the runbook's word for it: True (any SKIP or ERROR in it is inconclusive), None (the
    default: an ERROR is), False (neither is). ``strict`` treats every step as required. FAIL outranks INCONCLUSIVE,
    which outranks WARN. Nothing judged at all is inconclusive, never a pass.
    """
    seen = list(findings)
    measured = [f for f in seen if f.status in (Status.PASS, Status.WARN, Status.FAIL, Status.WAIVED)]
    failed = [f for f in seen if f.status is Status.FAIL and f.severity.rank >= fail_on.rank]
    if failed or (warn_as_fail and any(f.bad for f in seen)):
        return Verdict.FAIL, Exit.FAIL
    steps = required or {}
    if not measured or any(_unmeasured(f, True if strict else steps.get(f.step or "")) for f in seen):
        return Verdict.INCONCLUSIVE, Exit.INCONCLUSIVE
    return (Verdict.WARN, Exit.PASS) if any(f.bad for f in seen) else (Verdict.PASS, Exit.PASS)


def _unmeasured(finding: Finding, required: bool | None) -> bool:
    if required is False:
        return False
    return finding.status is Status.ERROR or (required is True and finding.status is Status.SKIP)


def draft(status: Status, id: str, text: str, **fields: Any) -> Finding:
    """A finding as a check writes it: the engine adds the check's id, the step, the question and the severity."""
    return Finding(check="", id=id, status=status, text=text, **fields)


def ok(text: str, **fields: Any) -> Finding:
    """Measured, and as it should be. Give ``measured``, ``unit`` and the limit all the same: reports print them."""
    return draft(Status.PASS, "", text, **fields)


def warn(id: str, text: str, **fields: Any) -> Finding:
    """Measured, and wasteful or suspicious."""
    return draft(Status.WARN, id, text, **fields)


def fail(id: str, text: str, **fields: Any) -> Finding:
    """Measured, and wrong: the result cannot be trusted."""
    return draft(Status.FAIL, id, text, **fields)


def skip(text: str, **fields: Any) -> Finding:
    """Not measured; ``text`` says what would be needed."""
    return draft(Status.SKIP, "", text, **fields)
