"""Judging: evidence and limits in, findings out. Pure, so that it can be repeated on a laptop from a copied run.

The engine owns everything around a check: what is missing becomes SKIP, an exception, nonsense, silence or endless
work becomes ERROR. A check that says nothing is broken, never passed.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ddaudit.evidence.base import Evidence
from ddaudit.findings import Finding, Status, draft, skip
from ddaudit.registry import CheckSpec
from ddaudit.runbook.model import PlannedStep
from ddaudit.runbook.remedy import remedy_of

__all__ = ["CHECK_TIMEOUT_S", "judge"]

#: A pure function over one step's evidence takes milliseconds; a minute means that it will not end.
CHECK_TIMEOUT_S = 60.0
MAX_FINDINGS = 1000
MAX_TEXT = 4000


class _TooLong(BaseException):
    """Raised inside a check that used up its time. No Exception, so that a check which catches those ends as well."""


def judge(
    spec: CheckSpec,
    evidence: Mapping[str, Evidence],
    *,
    step: PlannedStep,
    reference: Mapping[str, Evidence] | None = None,
    timeout_s: float = CHECK_TIMEOUT_S,
) -> list[Finding]:
    """Asks one check about one step. Returns at least one finding, in the order the check gave them.

    ``reference`` is the evidence of the step that a check's ``reference`` parameter is read from.
    """
    arguments: dict[str, Any] = {}
    for name, need in spec.needs.items():
        source = (reference or {}) if name == "reference" else evidence
        value = source.get(need.type.kind)
        if value is None and not need.optional:
            place = "the step it compares with" if name == "reference" else "this step"
            return [_complete(skip(f"not measured: {place} recorded no {need.type.kind} evidence"), spec, step)]
        arguments[name] = value
    if spec.limits:
        name, kind = spec.limits
        arguments[name] = kind.build({k: dict(v) for k, v in step.limits.items()}, step.source)
    return [_complete(finding, spec, step) for finding in _ask(spec, arguments, timeout_s)]


def _ask(spec: CheckSpec, arguments: Mapping[str, Any], timeout_s: float) -> list[Finding]:
    found: list[Finding] = []
    try:
        with _time_limit(timeout_s):
            for item in spec.function(**arguments):
                if not isinstance(item, Finding):
                    return [*found, _broken(spec, f"gave a {type(item).__name__} where a finding was due")]
                found.append(item)
                if len(found) >= MAX_FINDINGS:
                    return [*found, _broken(spec, f"gave more than {MAX_FINDINGS} findings; the rest is cut")]
    except _TooLong:
        return [*found, _broken(spec, f"did not end within {timeout_s:g} s")]
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return [*found, _broken(spec, f"raised {type(error).__name__}: {error} ({last.filename}:{last.lineno})")]
    return found or [_broken(spec, "said nothing: neither a finding nor a reason to skip")]


def _broken(spec: CheckSpec, what: str) -> Finding:
    return draft(Status.ERROR, "check.broken", f"check {spec.id} {what}; declared at {spec.source}")


def _complete(finding: Finding, spec: CheckSpec, step: PlannedStep) -> Finding:
    """Adds what the engine knows. A severity or remedy that the check did not set is the step's."""
    added: dict[str, Any] = {"check": spec.id, "step": step.id, "question": finding.question or spec.question}
    if not finding.id:
        added["id"] = spec.id
    if len(finding.text) > MAX_TEXT:
        added["text"] = finding.text[:MAX_TEXT] + " …"
    if "severity" not in finding.model_fields_set:
        added["severity"] = step.severity
    if finding.evidence is None:
        added["evidence"] = f"events/{step.id}/"
    if finding.remedy is None and finding.bad:
        added["remedy"] = remedy_of(step)
    return finding.model_copy(update=added)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises :class:`_TooLong` in the main thread when the time is up. Other threads have no alarm and no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
