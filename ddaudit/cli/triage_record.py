"""A triage as a record, so that every report can tell it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ddaudit import __version__
from ddaudit.errors import Exit
from ddaudit.findings import Finding, Remedy, Severity, Status, Verdict, Where
from ddaudit.record import Record, answers

if TYPE_CHECKING:
    from ddaudit.triage.answer import Answer

__all__ = ["record_of"]


def record_of(answer: Answer, source: str, seconds: float) -> Record:
    """The record of one answer: its incident, and one finding that says the same to formats without an incident."""
    outcomes = {
        Status.PASS: (Verdict.PASS, Exit.PASS),
        Status.SKIP: (Verdict.INCONCLUSIVE, Exit.INCONCLUSIVE),
        Status.FAIL: (Verdict.FAIL, Exit.FAIL),
    }
    finding = _finding(answer)
    verdict, code = outcomes[finding.status]
    return Record(
        ddaudit_version=__version__,
        command="triage",
        run_id=source,
        created=time.time(),
        seconds=seconds,
        findings=(finding,),
        questions=answers((), {}),
        verdict=verdict,
        exit_code=int(code),
        complete=True,
        extra={"incident": answer.to_json()},
    )


def _finding(answer: Answer) -> Finding:
    told, guilty = answer.to_json(), answer.guilty()
    status = Status.PASS if answer.healthy else Status.SKIP if answer.undetermined else Status.FAIL
    place = {name: guilty[name] for name in ("rank", "host") if guilty.get(name) is not None}
    device = guilty.get("gpu") or guilty.get("device")
    first = told["evidence"][0] if told["evidence"] else None
    return Finding(
        check="triage",
        id=told["cause"],
        status=status,
        severity=Severity.CRITICAL,
        text=f"{told['title']}: {told['why']}" if told["why"] else told["title"],
        where=Where(**place, device=None if device is None else str(device), file=first["file"] if first else None),
        evidence=f"{first['file']}:{first['line']}" if first else None,
        remedy=Remedy(text=told["first_action"], commands=tuple(told["commands"])),
    )
