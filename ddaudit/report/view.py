"""Turns a record into a :class:`~ddaudit.report.model.View`. Pure: no clock, no files, no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ddaudit.findings import QUESTIONS, Finding, Remedy, Status
from ddaudit.record import Answer, Record, StepRecord
from ddaudit.report.environment import differences, environment, repeat, repeat_command
from ddaudit.report.groups import Group, group, place
from ddaudit.report.headline import headlines
from ddaudit.report.incident_view import incident_of
from ddaudit.report.missing import measuring_cost, not_measured
from ddaudit.report.model import AnswerView, Mark, Row, StepView, View, mark
from ddaudit.report.numbers import duration, quantity
from ddaudit.report.path import walked
from ddaudit.report.ready import EQUALITY, matrix
from ddaudit.report.safe import visible
from ddaudit.report.scene import first_line, parallelism

__all__ = ["build_view", "seven"]

MAX_MEMBERS = 1024
MAX_NUMBERS = 4
MAX_EVIDENCE = 8


def build_view(record: Record, run_dir: Path | None = None) -> View:
    """Words everything a report says. ``run_dir`` is named in the Report line."""
    problems = tuple(map(_row, group(_having(record, Status.FAIL, Status.ERROR, Status.WARN, Status.WAIVED))))
    missing = not_measured(record)
    table = matrix(record, problems)
    report = visible(str(run_dir / "report.html")) if run_dir else ""
    line = first_line(record)
    return View(
        title=visible(f"{record.verdict} {record.plan.title if record.plan else record.command}", 200),
        verdict=mark(record.verdict),
        exit_code=record.exit_code,
        command=visible(record.command, 80),
        run_id=visible(record.run_id, 80),
        created=_date(record.created),
        complete=record.complete,
        first_line=line,
        headlines=headlines(record, problems, missing, table.advice if table else "", report),
        counts=_counts(record.findings),
        problems=problems,
        questions=tuple(_answer(record, answer) for answer in seven(record)),
        steps=tuple(_step(record, step) for step in record.steps),
        matrix=table,
        passed=tuple(map(_row, group(_having(record, Status.PASS)))),
        missing=missing,
        differences=differences(record),
        facts=environment(record),
        repeat=repeat(record),
        repeat_command=repeat_command(record),
        version=visible(record.ddaudit_version, 60),
        measuring_cost=measuring_cost(record),
        incident=incident_of(record),
        path=walked(record),
    )


def seven(record: Record) -> tuple[Answer, ...]:
    """The record's answers, in the fixed order; a question that it does not hold was not asked."""
    known = {answer.id: answer for answer in record.questions}
    blank = "this command does not ask it"
    return tuple(known.get(id) or Answer(id=id, status="not-asked", answer=blank) for id in QUESTIONS)


def _having(record: Record, *statuses: Status) -> list[tuple[int, Finding]]:
    return [(i, f) for i, f in enumerate(record.findings) if f.status in statuses]


def _counts(findings: Sequence[Finding]) -> tuple[tuple[Mark, int], ...]:
    counted = Counter(f.status for f in findings)
    return tuple((mark(s), counted[s]) for s in reversed(Status) if counted[s])


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "unknown date"


def _row(found: Group) -> Row:
    first = found.first
    remedy = next((f.remedy for f in found.findings if f.remedy), Remedy(text=""))
    members = ((place([f]), quantity(f.measured, f.unit), visible(f.text)) for f in found.findings[:MAX_MEMBERS])
    since = [f.first_seen_step for f in found.findings if f.first_seen_step is not None]
    return Row(
        mark=mark(first.status),
        check=visible(first.check, 120),
        id=visible(first.id or first.check, 120),
        step=visible(first.step or "", 80),
        severity=first.severity,
        question=visible(first.question or "", 40),
        text=found.text,
        where=found.where,
        measured=found.measured,
        limit=found.limit,
        limit_source=visible(first.limit_source or "", 300),
        evidence=visible(first.evidence or "", 300),
        remedy=visible(remedy.text),
        commands=tuple(visible(c) for c in remedy.commands),
        count=len(found.findings),
        members=tuple(members) if len(found.findings) > 1 else (),
        since_step=str(min(since)) if since else "",
    )


def _answer(record: Record, answer: Answer) -> AnswerView:
    mine = [(i, record.findings[i]) for i in answer.findings if 0 <= i < len(record.findings)]
    groups = group(mine)
    passed = [g.first.status is Status.PASS for g in groups]
    spoken = {g.first.check: i for i, g in reversed(list(enumerate(groups)))}
    # What did not pass is all shown; of the rest, the first of each check before the next of any.
    order = sorted(range(len(groups)), key=lambda i: (passed[i], spoken[groups[i].first.check] != i))
    shown = order[: max(MAX_EVIDENCE, passed.count(False))]
    return AnswerView(
        id=answer.id,
        name=QUESTIONS.get(answer.id, visible(answer.id)),
        mark=mark(visible(answer.status, 40)),
        answer=visible(answer.answer),
        rows=tuple(_row(groups[i]) for i in shown),
        more_rows=len(groups) - len(shown),
    )


def _step(record: Record, step: StepRecord) -> StepView:
    mine = [f for f in record.findings if f.step == step.id]
    measured = [g for g in group(enumerate(mine)) if g.first.measured is not None]
    measured.sort(key=lambda g: (-g.first.status.rank, g.first.check != EQUALITY))
    worst = max((f.status for f in mine), key=lambda s: s.rank, default=None)
    return StepView(
        id=visible(step.id, 80),
        title=visible(step.title, 200),
        state=mark(step.state),
        outcome=mark(worst) if worst else None,
        seconds=duration(step.seconds),
        did=_did(record, step),
        reason=visible(step.reason or ""),
        numbers=tuple(map(_row, measured[:MAX_NUMBERS])),
        more_numbers=max(0, len(measured) - MAX_NUMBERS),
    )


def _did(record: Record, step: StepRecord) -> str:
    """Probe, ranks and parallelism, as planned."""
    planned = next((p for p in (record.plan.steps if record.plan else ()) if p.id == step.id), None)
    if planned is None:
        return parallelism(record, step) or ""
    ranks = f"{planned.nproc} {'rank' if planned.nproc == 1 else 'ranks'}"
    parts = [planned.probe or "manual", parallelism(record, step), ranks]
    return visible(", ".join(p for p in parts if p), 200)
