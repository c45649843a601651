"""Shared by the checkpoint checks: a fault becomes a finding by the table of words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from ddaudit.api import CheckpointFacts, Fault, Finding, Remedy, Where, draft, meaning_of, skip, status_of

SOURCE = "format"


Judgement = Callable[[CheckpointFacts], Iterator[Finding]]


def spoken(otherwise: str) -> Callable[[Judgement], Judgement]:
    """A judgement with nothing to say (an export has no optimizer to miss) says that, as a skip."""

    def wrap(judgement: Judgement) -> Judgement:
        @wraps(judgement)
        def asked(facts: CheckpointFacts) -> Iterator[Finding]:
            said = list(judgement(facts))
            yield from said or [skip(otherwise)]

        return asked

    return wrap


def home(facts: CheckpointFacts, area: str) -> str:
    """The file that should hold an area, as far as the layout knows; else the checkpoint's own name."""
    known = facts.area(area)
    return (known.home if known is not None else None) or facts.selected or facts.path.rstrip("/").rsplit("/", 1)[-1]


def finding(kind: str, text: str, **fields: Any) -> Finding:
    """A finding of a known kind, with the word's status, severity and remedy."""
    status, severity = status_of(kind)
    remedy = meaning_of(kind).remedy
    fields.setdefault("remedy", Remedy(text=remedy) if remedy else None)
    return draft(status, f"checkpoint.{kind}", text, severity=severity, **fields)


def from_fault(fault: Fault) -> Finding:
    """What a reader measured, judged."""
    where = Where(file=fault.file, key=fault.key, tensor=fault.tensor, rank=fault.rank)
    return finding(
        fault.kind, fault.text, where=where, measured=fault.measured, limit=fault.limit, unit=fault.unit,
        limit_source=SOURCE if fault.limit is not None else None,
    )  # fmt: skip


def faults(facts: CheckpointFacts, *areas: str) -> Iterator[Finding]:
    """Findings for every fault of these areas."""
    for fault in facts.faults:
        if meaning_of(fault.kind).area in areas:
            yield from_fault(fault)
