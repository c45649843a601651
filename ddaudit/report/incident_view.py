"""The part of a view that a triage fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddaudit.record import Record
from ddaudit.report.model import IncidentView, ProofLine
from ddaudit.report.safe import visible

__all__ = ["incident_of"]


def incident_of(record: Record) -> IncidentView | None:
    """What a triage found, worded for a page; None where no incident was judged."""
    found = record.extra.get("incident")
    if not isinstance(found, Mapping) or not found.get("cause"):
        return None
    return IncidentView(
        cause=visible(found["cause"], 120),
        title=visible(found.get("title", ""), 300),
        confidence=visible(found.get("confidence", ""), 40),
        since=visible(found.get("since") or "", 80),
        why=visible(found.get("why", "")),
        proof=tuple(_proof(e) for e in _listed(found, "evidence") if isinstance(e, Mapping)),
        alternatives=tuple(
            (visible(a.get("cause", ""), 120), visible(a.get("why_not", "")))
            for a in _listed(found, "alternatives")
            if isinstance(a, Mapping)
        ),
        missing=tuple(visible(m) for m in _listed(found, "missing_evidence")),
    )


def _proof(evidence: Mapping[str, Any]) -> ProofLine:
    return ProofLine(
        file=visible(evidence.get("file", ""), 300),
        line=visible(evidence.get("line", ""), 20),
        text=visible(evidence.get("text", ""), 1000),
    )


def _listed(found: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = found.get(key, ())
    return value if isinstance(value, list | tuple) else ()
