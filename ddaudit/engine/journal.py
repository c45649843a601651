"""The engine's own event file, ``events/run.jsonl``: with the plan and the ranks' events it is the whole run.

``build`` turns those three into a record. A run that ended, one that was killed, and one that was copied elsewhere are
read by the same function, so their records agree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ddaudit import __version__
from ddaudit.engine.outcome import Outcome, evidence_kinds, step_findings, step_record
from ddaudit.errors import EvidenceProblem, Exit
from ddaudit.evidence.events import Stream, read_stream
from ddaudit.evidence.store import load_events, write_h5
from ddaudit.findings import QUESTIONS, Finding, Severity, Status, Verdict, conclude, draft
from ddaudit.packs import Failure, Packs
from ddaudit.record import Record, answers
from ddaudit.registry import Registry
from ddaudit.runbook.model import Plan

__all__ = ["Judged", "build_record", "file_digest", "outcomes_from_disk", "read_plan", "rebuild", "write_evidence"]

JOURNAL = "events/run.jsonl"

#: What answers a question that no check of this run measured.
ASKED_BY: dict[str, str] = {
    "loss": "the step `single` of the runbook scale-out answers it",
    "batch": "the check batch.effective answers it on any training trace",
    "lr": "needs a known-good baseline (job file) to compare schedule and warm-up with",
    "accumulation": "the checks accumulation.* answer it on a trace of two or more ranks",
    "sync": "the check sync.frequency answers it on a data-parallel trace",
    "checkpoint": "needs a step that writes or audits a checkpoint",
    "bottleneck": "the check bottleneck.split answers it on a trace with timers",
}


@dataclass(frozen=True)
class Judged:
    """A step's outcome with its findings."""

    outcome: Outcome
    findings: tuple[Finding, ...]


def read_plan(run_dir: Path) -> Plan:
    """Reads ``plan.json``; EvidenceProblem when it is missing or not one."""
    path = run_dir / "plan.json"
    try:
        return Plan.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise EvidenceProblem(
            "no plan.json", where=str(run_dir), expected="a run folder that `ddaudit run` wrote"
        ) from None
    except (ValueError, ValidationError, OSError) as error:
        first = str(error).splitlines()[0]
        raise EvidenceProblem(f"not a plan ({first})", where=str(path)) from None


def outcomes_from_disk(run_dir: Path, plan: Plan, registry: Registry) -> list[Outcome]:
    """What became of each planned step, by the journal; steps it does not mention were never reached."""
    journal = _journal(run_dir)
    ended = {e["id"]: e for e in journal.of("step")}
    kinds = evidence_kinds(registry)
    found = []
    for step in plan.steps:
        event = ended.get(step.id)
        if event is None:
            state, reason = "interrupted", "the run ended before this step did"
            found.append(Outcome(step, state, reason))  # type: ignore[arg-type]
            continue
        evidence = load_events(run_dir, event["folder"], kinds) if event.get("folder") else {}
        kept = {k: event.get(k) for k in ("reason", "started", "seconds", "folder", "answer")}
        found.append(Outcome(step, event["state"], evidence=evidence, **kept))
    order = {e["id"]: i for i, e in enumerate(journal.of("step"))}
    return sorted(found, key=lambda o: order.get(o.step.id, len(order)))


def _journal(run_dir: Path) -> Stream:
    path = run_dir / JOURNAL
    if not path.is_file():
        raise EvidenceProblem(
            "no events/run.jsonl", where=str(run_dir), expected="a run folder that `ddaudit run` wrote"
        )
    return read_stream(path)


def rebuild(run_dir: Path, packs: Packs) -> Record:
    """Makes the record anew from plan, journal and events, judging every step again."""
    plan = read_plan(run_dir)
    judged: list[Judged] = []
    for outcome in outcomes_from_disk(run_dir, plan, packs.registry):
        others = [j.outcome for j in judged]
        judged.append(Judged(outcome, tuple(step_findings(outcome, packs.registry, others))))
    digest = write_evidence(run_dir, judged)
    return build_record(_journal(run_dir), plan, judged, digest)


def write_evidence(run_dir: Path, judged: Sequence[Judged]) -> str:
    """Writes ``evidence.h5`` from the outcomes and returns its digest."""
    return file_digest(write_h5(run_dir, {j.outcome.step.id: dict(j.outcome.evidence) for j in judged}))


def file_digest(path: Path) -> str:
    """SHA-256 of a file, so that a report can tell a damaged copy without opening it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build_record(journal: Stream, plan: Plan, judged: Sequence[Judged], evidence_sha256: str | None) -> Record:
    """Joins everything into the record. The journal's last ``end`` event says whether the run is complete."""
    head = journal.first("run")
    if head is None:
        raise EvidenceProblem("the journal has no head line", where=JOURNAL, expected="an event `run` first")
    end = (journal.of("end") or [{}])[-1]
    findings = (*_pack_failures(journal), *(f for j in judged for f in j.findings))
    options = head.get("options", {})
    verdict, code = conclude(
        findings,
        fail_on=Severity(options.get("fail_on", "major")),
        required={s.id: s.required for s in plan.steps},
        strict=bool(options.get("strict")),
        warn_as_fail=bool(options.get("warn_as_fail")),
    )
    if end.get("signal") is not None:
        verdict, code = Verdict.INTERRUPTED, Exit(128 + int(end["signal"]))
    elif not end:
        verdict = Verdict.INTERRUPTED
    return Record(
        ddaudit_version=__version__,
        command=head["command"],
        run_id=plan.run_id,
        created=head["created"],
        seconds=end.get("seconds"),
        plan=plan,
        facts=head["facts"] | {"evidence_sha256": evidence_sha256},
        steps=tuple(step_record(j.outcome) for j in judged),
        findings=findings,
        questions=answers(findings, ASKED_BY, {s.id: s.nproc for s in plan.steps}),
        verdict=verdict,
        exit_code=int(code),
        fail_on=Severity(options.get("fail_on", "major")),
        complete=bool(end) and end.get("signal") is None,
    )


def _pack_failures(journal: Stream) -> list[Finding]:
    return [_pack_finding(Failure(**e["failure"])) for e in journal.of("pack-failure")]


def _pack_finding(failure: Failure) -> Finding:
    text = f"pack {failure.pack}: {failure.file} did not import: {failure.error}"
    finding = draft(Status.ERROR, "pack.import", text, where={"file": failure.file})
    return finding.model_copy(update={"check": "pack"})


assert set(ASKED_BY) == set(QUESTIONS)
