"""The answer: one incident as JSON, as the ten lines of the terminal, and as a post for the channel."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddaudit.evidence.incident import Incident, Spot
from ddaudit.redact import redact_text
from ddaudit.triage.attempts import newer
from ddaudit.triage.catalogue import Catalogue, load_catalogue
from ddaudit.triage.moments import timeline
from ddaudit.triage.readers.bundle import read_bundle
from ddaudit.triage.readers.sections import real_name
from ddaudit.triage.reasoning.case import Candidate
from ddaudit.triage.reasoning.decide import Verdict, decide
from ddaudit.triage.resolve import resolve
from ddaudit.triage.unpack import unpacked

__all__ = ["Answer", "investigate", "judge"]

MAX_EVIDENCE = 10
MAX_ALTERNATIVES = 12


@dataclass(frozen=True)
class Answer:
    """A judged incident with the words for it."""

    incident: Incident
    verdict: Verdict
    catalogue: Catalogue
    gaps: tuple[str, ...] = ()
    before: Verdict | None = None

    @property
    def chosen(self) -> Candidate:
        return self.verdict.chosen

    @property
    def undetermined(self) -> bool:
        """True when the evidence names no cause: an answer that asks for more evidence."""
        return self.chosen.cause.startswith("unknown.")

    @property
    def healthy(self) -> bool:
        """True when no incident was found."""
        return self.chosen.cause == "none"

    def guilty(self) -> dict[str, Any]:
        """Who: only what is known. Empty when nobody is to blame or nobody can be named."""
        if self.healthy or self.undetermined or self.chosen.cause.startswith("sched."):
            return {}
        fields = ("rank", "host", "gpu", "device", "path", "pid")
        return {f: v for f in fields if (v := getattr(self.chosen, f)) is not None}

    def do_now(self) -> str:
        """The first action, with the names filled in."""
        return str(_fill(self.catalogue.causes[self.chosen.cause].do_now, self.chosen))

    def commands(self) -> list[str]:
        """Commands to copy; those whose names are unknown are left out."""
        filled = [_fill(c, self.chosen, None) for c in self.catalogue.causes[self.chosen.cause].commands]
        return [c for c in filled if c is not None]

    def missing(self) -> list[str]:
        """What evidence would decide it, or strengthen it."""
        wanted = [*self.chosen.missing, *self.gaps]
        if not self.healthy and not self.undetermined and self.chosen.confidence != "high":
            wanted += (
                [f"kernel log of {self.chosen.host}"]
                if self.chosen.host and not _has_kernel(self.incident, self.chosen.host)
                else []
            )
        return wanted

    def to_json(self) -> dict[str, Any]:
        """The ``incident`` object of ``ddaudit triage --json``."""
        return {
            "cause": self.chosen.cause,
            "title": self.catalogue.causes[self.chosen.cause].title,
            "confidence": self.chosen.confidence,
            "guilty": self.guilty(),
            "why": redact_text(self.chosen.why),
            "evidence": [_spot(s) for s in self.chosen.evidence[:MAX_EVIDENCE]],
            "first_action": self.do_now(),
            "commands": self.commands(),
            "since": self.since(),
            "alternatives": self.alternatives(),
            "missing_evidence": self.missing(),
            "timeline": timeline(self.incident, self.verdict),
            "notes": [*self.attempts(), *self.clocks(), *self.incident.notes[:20]],
        }

    def alternatives(self) -> list[dict[str, Any]]:
        """Every other cause that was argued for or looked alike, and why it lost."""
        rows = [
            {"cause": c.cause, "why_not": why, "evidence": [_spot(s) for s in c.evidence[:1]]}
            for c, why in self.verdict.others
        ]
        rows += [{"cause": r.cause, "why_not": r.why_not, "evidence": [_spot(r.spot)]} for r in self.verdict.rejected]
        return rows[:MAX_ALTERNATIVES]

    def since(self) -> str | None:
        """When it began, on the job's clock."""
        moment = self.chosen.time_s if self.chosen.time_s is not None else self.incident.failure_s
        if moment is None or self.healthy or moment < 86400:
            return None
        when = datetime.fromtimestamp(moment, UTC)
        # 2000 is the calendar's word for a year that no line names.
        return when.strftime("%m-%d %H:%M:%S" if when.year == 2000 else "%Y-%m-%d %H:%M:%S") + " (job clock)"

    def attempts(self) -> list[str]:
        """What an earlier attempt of a restarted job broke of, and whether it is the same again."""
        if self.before is None:
            return []
        chosen, where = self.before.chosen, self.incident.restarted
        same = chosen.cause == self.chosen.cause and chosen.rank == self.chosen.rank and chosen.host == self.chosen.host
        like = "the same again" if same else "not what ended the last one"
        at = f" (it ended at {real_name(where.file)}:{where.line})" if where else ""
        return [f"this is the last attempt of a restarted job; the one before it{at} broke of {chosen.cause}: {like}"]

    def clocks(self) -> list[str]:
        """How the clocks of the sources relate."""
        shift = self.incident.shift_s
        if shift is None or not shift:
            return []
        return [f"the job's clock is {abs(shift) / 3600:g} h {'behind' if shift > 0 else 'ahead of'} the hosts'"]

    def lines(self, source: str, seconds: float) -> list[str]:
        """The ten lines: verdict, cause, why, since, blast radius, do now, then, path, unsure, report."""
        cause = self.catalogue.causes[self.chosen.cause]
        glyph, word = (
            ("✔", "NO INCIDENT") if self.healthy else ("▲", "UNDETERMINED") if self.undetermined else ("✖", "INCIDENT")
        )
        first = self.chosen.evidence[0] if self.chosen.evidence else None
        rows = [
            f"{glyph} {word}  {self.chosen.cause}  in {source}  read in {seconds:.1f}s",
            f"Cause    {cause.title}{self._who()}",
            f"Why      {redact_text(self.chosen.why)}   confidence: {self.chosen.confidence}",
            f"Proof    {real_name(first.file)}:{first.line}: {redact_text(first.text)[:160]}"
            if first
            else "Proof    -",
            f"Since    {self.since() or 'not dated'}",
            f"Blast    {self._blast()}",
            f"Do now   {self.do_now()}",
            f"Then     {cause.then or (self.commands() or ['restart from the last complete checkpoint'])[0]}",
            f"Not it   {self._not_it()}",
            f"Unsure   {'; '.join(self.missing()) or 'nothing that the answer hangs on'}",
        ]
        return rows[:1] + [
            r for r in rows[1:] if not self.healthy or r.startswith(("Cause", "Proof", "Not it", "Unsure"))
        ]

    def _who(self) -> str:
        guilty = self.guilty()
        words = [f"{k} {v}" for k, v in guilty.items() if k in ("rank", "host", "gpu", "device", "path")]
        return f": {', '.join(words)}" if words else ""

    def _blast(self) -> str:
        world = self.incident.world_size or len(self.incident.ranks)
        job = f"job {self.incident.job}" if self.incident.job else "this job"
        ranks = f", all {world} ranks" if world else ""
        shared = self.chosen.cause.split(".")[0] in ("gpu", "net", "node", "storage", "env")
        wider = f"; any job on {self.chosen.host}" if shared and self.chosen.host else ""
        return f"{job}{ranks}{wider}"

    def _not_it(self) -> str:
        rows = [f"{a['cause']} ({a['why_not']})" for a in self.alternatives()[:3]]
        return "; ".join(rows) or "no other cause came up"


def _spot(spot: Spot) -> dict[str, Any]:
    return {"file": real_name(spot.file), "line": spot.line, "text": redact_text(spot.text)}


def _has_kernel(incident: Incident, host: str) -> bool:
    return any(s.kind == "kernel" and s.host == host for s in incident.sources)


def _fill(template: str, who: Candidate, unknown: str | None = "the node") -> Any:
    """Puts host, gpu and pid into a template; a command with an unknown name becomes None."""
    values = {"host": who.host, "gpu": (who.gpu or "").split(" ")[0] or None, "pid": who.pid, "peer": who.host}
    names = set(re.findall(r"\{(\w+)\}", template))
    if unknown is None and any(values.get(n) is None for n in names):
        return None
    return re.sub(r"\{(\w+)\}", lambda m: str(values[m[1]] if values.get(m[1]) is not None else unknown), template)


def investigate(
    paths: Iterable[Path], *, job: str | None = None, since_s: float | None = None, extra: Iterable[Path] = ()
) -> Answer:
    """Reads and judges a bundle. ``since_s``: what is older (seconds since the epoch, the hosts' clock) is left out.

    Raises:
        EvidenceProblem: nothing there to read.
        PackProblem: a catalogue table of an ``extra`` folder is wrong.
    """
    catalogue = load_catalogue(extra)
    with unpacked(list(paths)) as ready:
        incident = resolve(read_bundle(ready.roots, catalogue, ready.notes), catalogue, job)
    return judge(incident, catalogue, since_s)


def judge(incident: Incident, catalogue: Catalogue, since_s: float | None = None) -> Answer:
    """Judges facts that were read before."""
    if since_s is not None:
        incident = newer(incident, since_s)
    before = decide(incident.earlier) if incident.earlier is not None else None
    return Answer(incident, decide(incident), catalogue, before=before)
