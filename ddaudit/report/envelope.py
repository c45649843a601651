"""The object that ``--json`` prints, as models: the source of ``docs/report.schema.json``.

``python -m ddaudit.report.envelope`` prints that schema. A command adds keys of its own at the top level
(``checkpoint``, ``incident``, ``trace`` ...), so further keys are allowed there and nowhere else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.errors import EvidenceProblem
from ddaudit.findings import QUESTIONS, Severity, Status, Verdict, Where
from ddaudit.jsonio import encode
from ddaudit.record import Record
from ddaudit.report.view import seven

__all__ = ["Envelope", "envelope", "json_schema"]

JsonNumber = Annotated[
    float | int | str | None,
    Field(description='a number; non-finite ones are "NaN", "Infinity", "-Infinity"; a word where the measure is one'),
]
AnswerStatus = Literal["PASS", "WARN", "FAIL", "SKIP", "ERROR", "WAIVED", "not-measured", "not-asked"]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class RemedyOut(_Strict):
    """What to do. Commands are for copying; ddaudit never runs them."""

    text: str
    commands: list[str]


class FindingOut(_Strict):
    """One judged fact. ``id`` names the fault, ``check`` the question that was asked."""

    check: str
    id: str
    step: str | None
    status: Status
    severity: Severity
    question: str | None
    where: Where
    text: str
    measured: JsonNumber
    unit: str | None
    limit: JsonNumber
    limit_source: str | None
    evidence: str | None
    remedy: RemedyOut | None
    first_seen_step: int | None


class QuestionOut(_Strict):
    """One of the seven questions. ``findings`` are indices into the top-level ``findings``."""

    id: Literal["loss", "batch", "lr", "accumulation", "sync", "checkpoint", "bottleneck"]
    question: str
    status: AnswerStatus
    answer: str
    findings: list[int]


class StepOut(_Strict):
    """What became of one step. ``summary`` holds its small numbers, such as tokens_per_s."""

    id: str
    title: str
    state: Literal["done", "failed", "skipped", "timed-out", "interrupted"]
    reason: str | None
    seconds: JsonNumber
    summary: dict[str, Any]


class Envelope(BaseModel):
    """One object, common to every command."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True, title="ddaudit --json")

    schema_: Literal["ddaudit/1"] = Field(alias="schema")
    command: str
    verdict: Verdict
    exit_code: int
    run: str | None = Field(description="the run folder, or null when the command keeps none")
    run_id: str | None = Field(description="null when the command keeps no run")
    ddaudit_version: str
    created: JsonNumber = Field(description="seconds since 1970-01-01 UTC")
    seconds: JsonNumber
    complete: bool = Field(description="false when the run was killed or interrupted before its end")
    questions: list[QuestionOut] = Field(min_length=7, max_length=7)
    findings: list[FindingOut]
    steps: list[StepOut]
    facts: dict[str, Any] = Field(description="what was known about the environment")


def envelope(record: Record, run_dir: Path | None = None) -> dict[str, Any]:
    """The object for one record, with ``record.extra`` merged at the top level.

    Raises:
        EvidenceProblem: an extra key would hide a common one.
    """
    data = record.model_dump(by_alias=True)
    common = {
        **{key: data[key] for key in ("schema", "command", "verdict", "exit_code")},
        "run": str(run_dir) if run_dir else None,
        **{key: data[key] for key in ("run_id", "ddaudit_version", "created", "seconds", "complete")},
        "questions": [{"question": QUESTIONS.get(a.id, a.id), **a.model_dump()} for a in seven(record)],
        "findings": data["findings"],
        "steps": [{k: s[k] for k in StepOut.model_fields} for s in data["steps"]],
        "facts": data["facts"],
    }
    if clash := sorted(common.keys() & record.extra.keys()):
        raise EvidenceProblem(f"extra keys {', '.join(clash)} hide keys that every report has", where="record.json")
    result: dict[str, Any] = encode(common | data["extra"])
    return result


def json_schema() -> str:
    """The published JSON Schema, as text ending in a newline."""
    schema = Envelope.model_json_schema(mode="serialization", by_alias=True)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:ddaudit:report:1"}
    return json.dumps(head | schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema())
