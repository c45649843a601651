"""Reads the logs of a broken job and records what they argue for. The runbooks for incidents stand on it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.evidence.incident import IncidentFacts
from ddaudit.registry import probe

__all__ = ["TriageParams", "triage"]


class TriageParams(BaseModel):
    """Which files to read: a folder or a file, and the job in question when several left traces."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(min_length=1)
    job: str | None = None


@probe("triage", produces=[IncidentFacts], params=TriageParams, where="host")
def triage(context: ProbeContext, params: TriageParams) -> None:
    """Reads everything below ``path`` once and records the suspects of every family with the lines that speak for them.

    Raises:
        EvidenceProblem: nothing there to read.
    """
    from ddaudit.triage.answer import investigate
    from ddaudit.triage.facts import facts_of

    path = Path(params.path).expanduser()
    extra = [Path(folder) for folder in context.packs]
    context.events.emit_evidence(facts_of(investigate([path], job=params.job or None, extra=extra), str(path)))
