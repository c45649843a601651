"""The record of a run: plan, facts, findings and verdict. Every report is drawn from it alone.

``record.json`` is rewritten atomically after each step, so whatever kills the run, what finished is on disk.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddaudit.errors import EvidenceProblem
from ddaudit.findings import QUESTIONS, Finding, Severity, Status, Verdict
from ddaudit.jsonio import dumps
from ddaudit.runbook.model import Plan

__all__ = [
    "SCHEMA",
    "Answer",
    "NewerRecord",
    "Record",
    "StepRecord",
    "answers",
    "load_record",
    "save_record",
    "write_atomically",
]

SCHEMA = "ddaudit/1"
MAX_RECORD_BYTES = 512 << 20


class NewerRecord(EvidenceProblem):
    """A record of another version of ddaudit: it must be neither read nor replaced."""


class _Frozen(BaseModel):
    """Fields are added over time and none is renamed within one schema, so those of a later version are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Answer(_Frozen):
    """One of the seven questions, answered. ``status`` is a :class:`Status` word, "not-measured" or "not-asked"."""

    id: str
    status: str
    answer: str
    findings: tuple[int, ...] = ()
    """Indices into the record's findings."""


class StepRecord(_Frozen):
    """What became of one planned step. ``state``: how it ended; ``reason`` says why it did not run or finish."""

    id: str
    title: str
    state: Literal["done", "failed", "skipped", "timed-out", "interrupted"]
    reason: str | None = None
    started: float | None = None
    seconds: float | None = None
    evidence: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Evidence kind -> its JSON facts (the arrays are in ``evidence.h5``)."""
    summary: Mapping[str, Any] = Field(default_factory=dict)
    """Small per-step numbers for tables: world size, tokens per second, launch seconds."""
    exhibits: Mapping[str, Any] = Field(default_factory=dict)
    """Exhibit name -> the small table that it made of the step's evidence, for pictures."""


class Record(_Frozen):
    """The whole run."""

    schema_: Literal["ddaudit/1"] = Field("ddaudit/1", alias="schema")
    ddaudit_version: str
    command: str
    run_id: str
    created: float
    seconds: float | None = None
    plan: Plan | None = None
    facts: Mapping[str, Any] = Field(default_factory=dict)
    steps: tuple[StepRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    questions: tuple[Answer, ...] = ()
    verdict: Verdict = Verdict.INCONCLUSIVE
    exit_code: int = 3
    fail_on: Severity = Severity.MAJOR
    complete: bool = False
    """False while the run is going on, and for ever after when it was killed."""
    extra: Mapping[str, Any] = Field(default_factory=dict)
    """What a command adds to its JSON object: ``checkpoint``, ``incident``, ``trace``, ``script`` ..."""


#: The checks that say most about a question; where all is well, their texts are the answer.
SPOKESMEN: dict[str, tuple[str, ...]] = {
    "loss": ("loss.descends",),
    "batch": ("batch.effective",),
    "lr": ("lr.matches-batch",),
    "accumulation": ("accumulation.consistent",),
    "sync": ("sync.frequency",),
    "checkpoint": ("checkpoint.sampler", "checkpoint.optimizer", "checkpoint.step"),
    "bottleneck": ("bottleneck.split",),
}
#: Questions whose PASS takes one check: ticks and warm-up can be right and the rate still not fit the batch.
DECISIVE: dict[str, str] = {"lr": "lr.matches-batch"}


def answers(
    findings: Sequence[Finding], asked: Mapping[str, str], world_sizes: Mapping[str, int] | None = None
) -> tuple[Answer, ...]:
    """Answers the seven questions from findings.

    ``asked`` maps a question id to the sentence used when no finding measured it: it is "not-measured" with that
    sentence. Questions missing from ``asked`` are "not-asked". The answer's text is that of the worst finding, or what
    the question's spokesmen say where all passed; of several steps, that with most ranks (``world_sizes`` by step id).
    """
    return tuple(_answer(id, findings, asked, world_sizes or {}) for id in QUESTIONS)


def _answer(id: str, findings: Sequence[Finding], asked: Mapping[str, str], world_sizes: Mapping[str, int]) -> Answer:
    mine = [(i, f) for i, f in enumerate(findings) if f.question == id]
    indices = tuple(i for i, _ in mine)
    measured = [f for _, f in mine if f.status is not Status.SKIP]
    if not measured:
        if id in asked or mine:
            return Answer(id=id, status="not-measured", answer=asked.get(id) or mine[0][1].text, findings=indices)
        return Answer(id=id, status="not-asked", answer="this command does not ask it")
    # Stable: of equals, the first finding of the step with most ranks speaks.
    ranked = sorted(measured, key=lambda f: (-f.status.rank, -world_sizes.get(f.step or "", 0)))
    status, text = str(ranked[0].status), ranked[0].text
    if ranked[0].status is Status.PASS:
        spoken = [next((f.text for f in ranked if f.check == check), None) for check in SPOKESMEN[id]]
        text = "; ".join(t for t in spoken if t) or text
        decisive = DECISIVE.get(id)
        if decisive and all(f.check != decisive for f in measured):
            status, text = "not-measured", f"{asked.get(id, decisive)}; right as far as measured: {text}"
    return Answer(id=id, status=status, answer=text, findings=indices)


def write_atomically(path: Path, text: str) -> None:
    """Replaces ``path`` in one step: a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_record(record: Record, run_dir: Path) -> Path:
    """Writes ``record.json`` and returns its path."""
    path = run_dir / "record.json"
    write_atomically(path, dumps(record.model_dump(by_alias=True), indent=1) + "\n")
    return path


def load_record(run_dir: Path) -> Record:
    """Reads ``record.json`` of a run folder.

    Raises:
        EvidenceProblem: missing, not JSON, of a newer schema, or not a record.
    """
    path = run_dir / "record.json"
    if not path.is_file():
        raise EvidenceProblem("no record.json", where=str(run_dir), expected="a run folder that `ddaudit run` wrote")
    if path.stat().st_size > MAX_RECORD_BYTES:
        raise EvidenceProblem(f"{path.stat().st_size} bytes", where=str(path), expected=f"at most {MAX_RECORD_BYTES}")
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise EvidenceProblem(f"not JSON ({error})", where=str(path), fix="`ddaudit report` rebuilds it") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA and re.fullmatch(r"ddaudit/\d{1,9}", str(schema)):
        fix = "update ddaudit: a newer version wrote it"
        raise NewerRecord(f"schema {schema!r}", where=str(path), expected=repr(SCHEMA), fix=fix)
    if schema != SCHEMA:
        raise EvidenceProblem(f"schema {str(schema)[:60]!r}", where=str(path), expected=repr(SCHEMA))
    try:
        return Record.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"])
        raise EvidenceProblem(f"{place}: {first['msg']}", where=str(path), fix="`ddaudit report` rebuilds it") from None
