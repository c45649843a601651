"""The first ten lines: the same words in a terminal, in a chat and at the top of the page.

In the order an on-call engineer asks: what broke, why it is believed, what to type, what was not looked at. A line
whose content is unknown is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddaudit.findings import Status, Verdict
from ddaudit.record import Record
from ddaudit.report.model import Headline, Missing, Row
from ddaudit.report.safe import visible

__all__ = ["headlines"]

LIMIT = 400
BAD = (Status.FAIL, Status.ERROR, Status.WARN)


def headlines(
    record: Record, problems: Sequence[Row], missing: Sequence[Missing], advice: str, report: str
) -> tuple[Headline, ...]:
    """Lines two to ten. ``problems`` are worst first; ``advice`` is the scaling line; ``report`` a path or empty."""
    worst = [row for row in problems if row.mark.word in BAD]
    incident = record.extra.get("incident")
    lines = list(_incident(incident)) if isinstance(incident, Mapping) else []
    if not lines:
        lines = list(_found(record, worst))
    if not record.complete:
        lines.append(Headline("Partial", "the run did not come to its end; what finished is below"))
    if record.plan and record.plan.mode == "triage" and record.steps:
        lines.append(Headline("Path", visible(" → ".join(f"{s.id} {s.state}" for s in record.steps), LIMIT)))
    if advice:
        lines.append(Headline("Scale", advice))
    if unsure := _unsure(missing):
        lines.append(Headline("Unsure", unsure))
    if report:
        lines.append(Headline("Report", report))
    return tuple(lines[:9])


def _found(record: Record, worst: Sequence[Row]) -> Iterator[Headline]:
    """What made the verdict: what failed, or for an inconclusive run first what could not be measured."""
    errors, measured = ([r for r in worst if (r.mark.word == Status.ERROR) is is_error] for is_error in (True, False))
    rows = [*errors, *measured] if record.verdict is Verdict.INCONCLUSIVE else measured
    if not rows:
        yield from _nothing_bad(record)
        return
    row = rows[0]
    yield Headline("Cause", visible(f"{row.where}: {row.text}" if row.where else row.text, LIMIT))
    named = f"{row.id} in step {row.step}" if row.step else row.id
    reason = row.compared or ("could not be measured" if row in errors else "")
    yield Headline("Why", visible("; ".join(part for part in (named, reason) if part), LIMIT))
    if row.since_step:
        yield Headline("Since", f"training step {row.since_step}")
    if len(rows) > 1:
        others = list(dict.fromkeys(r.id for r in rows[1:] if r.id != row.id))
        listed = f": {', '.join(others[:3])}{' …' if len(others) > 3 else ''}" if others else ""
        yield Headline("Also", visible(f"{len(rows) - 1} more did not pass{listed}", LIMIT))
    yield from _actions(rows)


def _actions(rows: Sequence[Row]) -> Iterator[Headline]:
    """The worst row's remedy, then the next different one."""
    told: dict[tuple[str, tuple[str, ...]], Row] = {}
    for row in rows:
        if row.remedy or row.commands:
            told.setdefault((row.remedy, row.commands), row)
    for label, ((text, commands), row) in zip(("Do now", "Then"), told.items(), strict=False):
        # A remedy of a lesser fault must not read as the cure of the worst one.
        other = "" if row.id == rows[0].id else f"for {row.id}: "
        yield Headline(label, visible(other + text, LIMIT), commands[:3])


def _nothing_bad(record: Record) -> Iterator[Headline]:
    passed = [f for f in record.findings if f.status is Status.PASS]
    if passed:
        checks = len({f.check for f in passed})
        steps = len({f.step for f in passed if f.step})
        span = f" in {steps} step{'' if steps == 1 else 's'}" if steps else ""
        waived = sum(f.status is Status.WAIVED for f in record.findings)
        aside = f"; {waived} finding{' is' if waived == 1 else 's are'} waived" if waived else ""
        yield Headline("Passed", f"{checks} check{'' if checks == 1 else 's'}{span}{aside}")
    elif not record.findings:
        yield Headline("Why", "nothing was judged, so nothing is known")


def _incident(incident: Mapping[str, Any]) -> Iterator[Headline]:
    """A triage's own attribution (DESIGN of the JSON object: cause, confidence, guilty, evidence, first_action)."""
    if incident.get("cause"):
        title = f"{incident['title']} ({incident['cause']})" if incident.get("title") else incident["cause"]
        yield Headline("Cause", visible(title, LIMIT))
    if evidence := incident.get("evidence"):
        first = evidence[0] if isinstance(evidence, list | tuple) else evidence
        words = first.get("text", "") if isinstance(first, Mapping) else first
        sure = incident.get("confidence")
        yield Headline("Why", visible(words, LIMIT) + (f"  confidence: {visible(sure, 40)}" if sure else ""))
    if guilty := incident.get("guilty"):
        named = guilty.items() if isinstance(guilty, Mapping) else [("", guilty)]
        yield Headline("Who", visible(", ".join(f"{k} {v}".strip() for k, v in named if v is not None), LIMIT))
    if action := incident.get("first_action"):
        words = action.get("text", "") if isinstance(action, Mapping) else action
        commands = action.get("commands", ()) if isinstance(action, Mapping) else incident.get("commands", ())
        yield Headline("Do now", visible(words, LIMIT), tuple(visible(c, LIMIT) for c in commands[:3]))


def _unsure(missing: Sequence[Missing]) -> str:
    gaps = [m for m in missing if m.mark is not None]
    if not gaps:
        return ""
    word = gaps[0].mark.word if gaps[0].mark else ""
    kind = f" ({word})" if word in Status.__members__ else ""
    more = f"; and {len(gaps) - 1} more not measured" if len(gaps) > 1 else ""
    return visible(f"{gaps[0].what}: {gaps[0].why}", LIMIT) + kind + more
