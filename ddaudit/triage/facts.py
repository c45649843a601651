"""An answer as evidence that checks judge and the record keeps."""

from __future__ import annotations

from dataclasses import replace

from ddaudit.evidence.incident import Cited, IncidentFacts, Moment, Suspect
from ddaudit.redact import redact_text
from ddaudit.triage.answer import Answer
from ddaudit.triage.moments import timeline
from ddaudit.triage.readers.sections import real_name
from ddaudit.triage.reasoning.case import Candidate
from ddaudit.triage.reasoning.decide import Verdict

__all__ = ["facts_of"]


def facts_of(answer: Answer, source: str) -> IncidentFacts:
    """The suspects of an answer, the chosen one first."""
    chosen = answer.chosen
    named = not (answer.healthy or answer.undetermined)
    suspects = [_suspect(answer, chosen, None)] if named else []
    suspects += [_suspect(answer, other, why) for other, why in answer.verdict.others]
    aside = tuple((r.cause, r.why_not, f"{real_name(r.spot.file)}:{r.spot.line}") for r in answer.verdict.rejected[:50])
    return IncidentFacts(
        source=source,
        cause=chosen.cause,
        files=len(answer.incident.sources),
        suspects=tuple(suspects),
        set_aside=aside,
        missing=tuple(answer.missing()),
        lines=tuple(answer.lines(source, 0.0)),
        timeline=tuple(Moment.model_validate(row) for row in timeline(answer.incident, answer.verdict)),
    )


def _suspect(answer: Answer, candidate: Candidate, why_not: str | None) -> Suspect:
    own = replace(answer, verdict=Verdict(candidate, (), ()))
    return Suspect(
        families=candidate.families,
        cause=candidate.cause,
        why=redact_text(candidate.why),
        why_not=why_not,
        confidence=candidate.confidence,
        rank=candidate.rank,
        host=candidate.host,
        gpu=candidate.gpu,
        evidence=tuple(
            Cited(file=real_name(s.file), line=s.line, text=redact_text(s.text)) for s in candidate.evidence[:10]
        ),
        do_now=own.do_now(),
        commands=tuple(own.commands()),
    )
