"""Waivers: findings that somebody answers for, until a day. What is waived is still measured and still shown.

A waiver names a check, a place, a reason, an owner and the day it expires, at most 90 days ahead. It turns WARN and
FAIL into WAIVED. ERROR cannot be waived, since nobody can answer for what was not measured. A waiver that has expired,
or that fits nothing although its check was asked, is a finding of its own.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from ddaudit.errors import UsageProblem
from ddaudit.findings import Finding, Remedy, Severity, Status, Where
from ddaudit.registry import Registry, suggest

__all__ = ["MAX_DAYS", "Waiver", "Waivers", "load_waivers"]

MAX_DAYS = 90
SOON_DAYS = 14
MAX_BYTES = 1 << 20
#: Words that ``where`` may begin with; ``step`` is the runbook's step.
FIELDS = ("host", "rank", "device", "file", "key", "tensor", "step")
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]


class Waiver(BaseModel):
    """One entry. ``check`` is the id of a check or of a finding, or a glob of either. ``where`` is ``*`` for
    everywhere, a glob that some part of the finding's place must match, or ``field=glob`` words that all must."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    check: Words
    where: Words
    reason: Words
    owner: Words
    expires: date
    ticket: Words | None = None

    def covers(self, finding: Finding) -> bool:
        """True when the finding's check (or id) and place are those of this waiver."""
        named = any(fnmatch.fnmatchcase(id, self.check) for id in (finding.check, finding.id))
        return named and self._placed(finding)

    def _placed(self, finding: Finding) -> bool:
        if self.where == "*":
            return True
        where = finding.where
        known = {name: getattr(where, name) for name in FIELDS if name != "step"} | {"step": finding.step}
        place = {name: str(value) for name, value in known.items() if value is not None}
        pairs = [word.partition("=") for word in self.where.split()]
        if all(equals and name in FIELDS for name, equals, _ in pairs):
            return all(name in place and fnmatch.fnmatchcase(place[name], glob) for name, _, glob in pairs)
        return any(fnmatch.fnmatchcase(value, self.where) for value in place.values())

    def __str__(self) -> str:
        ticket = f", {self.ticket}" if self.ticket else ""
        return f"{self.check} at {self.where} ({self.reason}; owner {self.owner}{ticket}, until {self.expires})"


class Waivers(BaseModel):
    """The waivers of a run, and the day on which they are read: judging again concludes as on that day."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    day: date | None = None
    file: str = ""
    entries: tuple[Waiver, ...] = Field(default=(), max_length=1000)

    def apply(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings, those that a living waiver covers as WAIVED; texts say who answers for it, and until when."""
        return tuple(map(self._applied, findings)) if self.entries else tuple(findings)

    def _alive(self, waiver: Waiver) -> bool:
        return self.day is None or waiver.expires >= self.day

    def _applied(self, finding: Finding) -> Finding:
        mine = [w for w in self.entries if w.covers(finding)]
        if not mine or finding.status not in (Status.WARN, Status.FAIL, Status.ERROR):
            return finding
        if finding.status is Status.ERROR:
            return finding.model_copy(update={"text": f"{finding.text} (waived, but an ERROR cannot be: not measured)"})
        alive = [w for w in mine if self._alive(w)]
        if not alive:
            last = max(mine, key=lambda w: w.expires)
            told = f"{finding.text} (the waiver of {last.owner} lapsed on {last.expires})"
            return finding.model_copy(update={"text": told})
        waiver = max(alive, key=lambda w: w.expires)
        told = f"{finding.text} (waived {finding.status}: {waiver.reason}; {waiver.owner}, until {waiver.expires})"
        return finding.model_copy(update={"status": Status.WAIVED, "text": told})

    def report(self, findings: Sequence[Finding]) -> Iterator[Finding]:
        """Findings about the waivers themselves. ``findings`` are those of the whole run, :meth:`apply` done."""
        asked = [id for f in findings for id in (f.check, f.id)]
        for waiver in self.entries:
            bad = [f for f in findings if waiver.covers(f) and f.status not in (Status.PASS, Status.SKIP)]
            if not self._alive(waiver):
                yield self._finding(
                    "waiver.expired", f"expired: {waiver}", "Mend its cause, or renew it with its owner."
                )
            elif not bad and fnmatch.filter(asked, waiver.check):
                told = f"unused: {waiver} fits no finding that did not pass"
                yield self._finding("waiver.unused", told, "Remove it: what it answered for is gone.")
            elif self.day is not None and (left := (waiver.expires - self.day).days) <= SOON_DAYS:
                told = f"expires in {left} days: {waiver}"
                yield self._finding("waiver.expires-soon", told, "Mend its cause in time.", Severity.INFO)

    def _finding(self, id: str, text: str, remedy: str, severity: Severity = Severity.MINOR) -> Finding:
        return Finding(
            check="waivers",
            id=id,
            status=Status.PASS if severity is Severity.INFO else Status.WARN,
            severity=severity,
            text=text,
            where=Where(file=self.file or None),
            limit_source=f"at most {MAX_DAYS} days",
            remedy=Remedy(text=remedy),
        )


def load_waivers(path: Path, registry: Registry, today: date) -> Waivers:
    """Reads ``waivers.toml``: a list ``[[waiver]]``.

    Raises:
        UsageProblem: unreadable, not TOML, a field is missing, unknown or of the wrong type, a check is not known, or a
            waiver would run longer than 90 days.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageProblem("too large", where=str(path), expected=f"at most {MAX_BYTES} bytes")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageProblem(f"cannot be read ({error.strerror})", where=str(path)) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageProblem(f"is not TOML: {error}", where=str(path)) from None
    if set(table) - {"waiver"} or not isinstance(table.get("waiver", []), list):
        raise UsageProblem("holds something else than waivers", where=str(path), expected="only [[waiver]] entries")
    try:
        waivers = Waivers(day=today, file=path.name, entries=table.get("waiver", []))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"][1:])
        raise UsageProblem(f"waiver {place}: {first['msg']}", where=str(path), expected=EXPECTED) from None
    for number, waiver in enumerate(waivers.entries, 1):
        _sound(waiver, f"{path}: waiver {number}", registry, today)
    return waivers


EXPECTED = "check, where, reason, owner and expires (a date such as 2027-01-31, without quotes)"


def _sound(waiver: Waiver, where: str, registry: Registry, today: date) -> None:
    if waiver.expires > today + timedelta(days=MAX_DAYS):
        latest = today + timedelta(days=MAX_DAYS)
        raise UsageProblem(
            f"expires {waiver.expires}", where=where, expected=f"at most {MAX_DAYS} days, until {latest}"
        )
    known = _known(registry)
    if not fnmatch.filter(known, waiver.check) and not _spelled(waiver.check, registry):
        raise UsageProblem(
            f"no check or finding is called {waiver.check!r}", where=where, fix=suggest(waiver.check, known)
        )


def _known(registry: Registry) -> list[str]:
    """Ids of checks, of the findings that their plants provoke, and of the engine's own findings."""
    planted = [id for spec in registry.checks.values() for plant in spec.plants for id in plant.expected]
    engine = [
        "step",
        "step.failed",
        "step.manual",
        "evidence",
        "evidence.damaged",
        "check.broken",
        "pack",
        "pack.import",
    ]
    return [*registry.checks, *dict.fromkeys(planted), *engine]


def _spelled(id: str, registry: Registry) -> bool:
    """True for the id of a finding that no plant provokes, but that the file of some check spells out."""
    files = {spec.source.file for spec in registry.checks.values()}
    return any(f'"{id}"' in Path(file).read_text(encoding="utf-8", errors="replace") for file in files)
