"""From a run folder to its record. A run that ended, one that was killed, and one that was copied elsewhere are read by
the same functions, so their records agree: plan, journal and the ranks' events are the whole run."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddaudit import __version__
from ddaudit.engine.baselines import compare, judge_baseline
from ddaudit.engine.ending import end_findings
from ddaudit.engine.folder import writing
from ddaudit.engine.gather import gather, gather_others
from ddaudit.engine.journal import Ended, Journal, read_journal, read_plan
from ddaudit.engine.outcome import Judged, Outcome, evidence_kinds, judge_step, prepared, step_record
from ddaudit.engine.waivers import Waivers
from ddaudit.errors import Exit, LaunchProblem, Problem
from ddaudit.evidence.store import write_h5
from ddaudit.findings import QUESTIONS, Finding, Status, Verdict, conclude, draft
from ddaudit.packs import Failure, Packs
from ddaudit.record import Record, answers
from ddaudit.redact import redact_value
from ddaudit.registry import Registry
from ddaudit.runbook.model import Plan, PlannedStep

__all__ = ["build_record", "file_digest", "judged_from_disk", "rebuild", "write_evidence"]

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


def judged_from_disk(run_dir: Path, plan: Plan, journal: Journal, registry: Registry) -> list[Judged]:
    """Every step that the journal tells of, judged from its events, in the order in which they ended."""
    steps = {step.id: step for step in plan.steps}
    judged: list[Judged] = []
    for ended in journal.ended.values():
        if ended.id in steps:
            outcome = _outcome(run_dir, _told(steps[ended.id], ended, judged), ended, registry)
            judged.append(judge_step(outcome, registry, judged, journal.head.standards))
    return judged


def _told(step: PlannedStep, ended: Ended, before: Sequence[Judged]) -> PlannedStep:
    try:
        return prepared(step, before).model_copy(update={"params": ended.params or step.params})
    except Problem:  # what the step asks for was not measured; the journal has the reason
        return step


def _outcome(run_dir: Path, step: PlannedStep, ended: Ended, registry: Registry) -> Outcome:
    kept = {name: getattr(ended, name) for name in ("state", "reason", "started", "seconds", "folder", "answer")}
    if ended.folder is None:
        return Outcome(step, **kept)
    kinds = evidence_kinds(registry)
    evidence, damage = gather(run_dir, ended.folder, kinds)
    everywhere = step.probe in registry.probes and registry.probes[step.probe].where == "hosts"
    others = gather_others(run_dir, ended.folder, kinds) if everywhere else {}
    return Outcome(step, **kept, evidence=evidence, damage=damage, other_hosts=others)


def _never_reached(plan: Plan, judged: Sequence[Judged], registry: Registry) -> list[Judged]:
    """Steps of a sweep that was broken off. A triage's further path is not known, so it has none."""
    ended = {j.outcome.step.id for j in judged}
    left = [s for s in plan.steps if s.id not in ended] if plan.mode == "sweep" else []
    reason = "the run ended before this step did"
    return [judge_step(Outcome(step, "interrupted", reason), registry, judged) for step in left]


def rebuild(run_dir: Path, packs: Packs, waivers: Waivers | None = None) -> Record:
    """Makes the record and ``evidence.h5`` anew, judging every step again. Where the folder cannot be written, as on a
    read-only medium, the record has no digest of arrays. ``waivers`` take the place of those that the run was given.

    Raises:
        EvidenceProblem: plan or journal cannot be read.
    """
    plan, journal = read_plan(run_dir), read_journal(run_dir)
    if waivers is not None:
        options = journal.head.options.model_copy(update={"waivers": waivers})
        journal = replace(journal, head=journal.head.model_copy(update={"options": options}))
    judged = judged_from_disk(run_dir, plan, journal, packs.registry)
    if not journal.completes(plan):
        judged += _never_reached(plan, judged, packs.registry)
    try:
        digest = write_evidence(run_dir, judged)
    except LaunchProblem:
        digest = None
    return build_record(journal, plan, judged, digest)


def write_evidence(run_dir: Path, judged: Sequence[Judged]) -> str:
    """Writes ``evidence.h5`` and returns its digest."""
    kept = {j.outcome.step.id: dict(j.outcome.evidence) for j in judged}
    for outcome in (j.outcome for j in judged):
        kept |= {f"{outcome.step.id}@{host}": dict(found) for host, found in outcome.other_hosts.items()}
    with writing(run_dir):
        return file_digest(write_h5(run_dir, kept))


def file_digest(path: Path) -> str:
    """SHA-256 of a file, so that a report can tell a damaged copy without opening it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build_record(journal: Journal, plan: Plan, judged: Sequence[Judged], evidence_sha256: str | None) -> Record:
    """Joins everything into the record; its plan shows what each step was told."""
    told = {j.outcome.step.id: j.outcome.step for j in judged}
    shown = plan.model_copy(update={"steps": tuple(told.get(s.id, s) for s in plan.steps)})
    record = Record(
        ddaudit_version=__version__,
        command=journal.head.command,
        run_id=plan.run_id,
        created=journal.head.created,
        seconds=journal.seconds if journal.end else None,
        plan=Plan.model_validate(redact_value(shown.model_dump(by_alias=True))),
        facts={**journal.head.facts, "evidence_sha256": evidence_sha256},
        steps=tuple(step_record(j) for j in judged),
        fail_on=journal.head.options.fail_on,
        complete=journal.completes(plan),
    )
    findings = (*map(_pack_finding, journal.failures), *(f for j in judged for f in j.findings))
    if journal.job is not None and not record.complete:
        findings = (*end_findings(journal.job), *findings)
    return _concluded(record, journal, plan, findings)


def _concluded(record: Record, journal: Journal, plan: Plan, findings: tuple[Finding, ...]) -> Record:
    """The record with what the baseline and the waivers say, its answers and its verdict."""
    options, extra = journal.head.options, dict(record.extra)
    if options.baseline is not None and journal.end is not None:
        findings = (*findings, *options.waivers.apply(list(judge_baseline(record, options.baseline))))
        extra["compared"] = [row.model_dump() for row in compare([record], options.baseline)]
    findings = (*findings, *options.waivers.report(findings))
    verdict, code = _conclude(journal, plan, findings)
    answered = answers(findings, ASKED_BY, {s.id: s.nproc for s in plan.steps})
    found = {"findings": findings, "questions": answered, "verdict": verdict, "exit_code": int(code)}
    return record.model_copy(update=found | {"extra": extra})


def _conclude(journal: Journal, plan: Plan, findings: Sequence[Finding]) -> tuple[Verdict, Exit]:
    """A signal's own code; of a run that was killed, FAIL where that was measured, else inconclusive."""
    options = journal.head.options
    required = {s.id: s.required for s in plan.steps}
    verdict, code = conclude(
        findings,
        fail_on=options.fail_on,
        required=required,
        strict=options.strict,
        warn_as_fail=options.warn_as_fail,
    )
    if journal.completes(plan):
        return verdict, code
    if journal.end is not None and journal.end.signal is not None:
        return Verdict.INTERRUPTED, Exit.INTERRUPTED if journal.end.signal == signal.SIGINT else Exit.TERMINATED
    return Verdict.INTERRUPTED, code if code is Exit.FAIL else Exit.INCONCLUSIVE


def _pack_finding(failure: Failure) -> Finding:
    text = f"pack {failure.pack}: {failure.file} did not import: {failure.error}"
    finding = draft(Status.ERROR, "pack.import", text, where={"file": failure.file})
    return finding.model_copy(update={"check": "pack"})


assert set(ASKED_BY) == set(QUESTIONS)
