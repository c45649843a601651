"""Walking a plan: start each step, collect its evidence, judge it, write down what happened, decide what comes next."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ddaudit.engine.journal import Judged, build_record, write_evidence
from ddaudit.engine.outcome import Outcome, State, blocks, edge, evidence_kinds, step_findings
from ddaudit.engine.summary import summarise
from ddaudit.errors import LaunchProblem, Problem
from ddaudit.evidence.events import EventWriter, read_stream
from ddaudit.evidence.launch import LaunchFacts
from ddaudit.evidence.store import load_events
from ddaudit.findings import Finding
from ddaudit.jsonio import dumps
from ddaudit.launch import LocalLauncher, Progress
from ddaudit.packs import Packs
from ddaudit.record import Record, save_record, write_atomically
from ddaudit.runbook import resolve, resolve_text
from ddaudit.runbook.model import Plan, PlannedStep
from ddaudit.runbook.when import parse

__all__ = ["Options", "Quiet", "Walk", "Watcher"]


class Watcher(Protocol):
    """Who is told how the run goes; the terminal implements it. Nothing depends on what it does."""

    def step_started(self, step: PlannedStep, index: int, total: int) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def step_ended(self, outcome: Outcome, findings: Sequence[Finding]) -> None: ...


class Quiet:
    """A watcher that says nothing."""

    def step_started(self, step: PlannedStep, index: int, total: int) -> None:
        """Ignored."""

    def progress(self, progress: Progress) -> None:
        """Ignored."""

    def step_ended(self, outcome: Outcome, findings: Sequence[Finding]) -> None:
        """Ignored."""


@dataclass(frozen=True)
class Options:
    """How to conclude, and who answers manual steps (step id -> "pass", "warn" or "fail")."""

    fail_on: str = "major"
    strict: bool = False
    warn_as_fail: bool = False
    answers: dict[str, str] = field(default_factory=dict)
    ask: Callable[[str], str | None] | None = None

    def recorded(self) -> dict[str, Any]:
        return {"fail_on": self.fail_on, "strict": self.strict, "warn_as_fail": self.warn_as_fail}


class Walk:
    """One run of one plan in one run folder. Call :meth:`execute` once; :meth:`interrupt` may come from a signal
    handler at any time and makes ``execute`` return early with everything that finished."""

    def __init__(
        self, plan: Plan, packs: Packs, run_dir: Path, facts: dict[str, Any], options: Options, watcher: Watcher
    ) -> None:
        self.plan, self.packs, self.run_dir = plan, packs, run_dir
        self.facts, self.options, self.watcher = facts, options, watcher
        self.judged: list[Judged] = []
        self.signal: int | None = None
        self._launcher: LocalLauncher | None = None
        self._began = time.monotonic()

    def interrupt(self, signal_number: int) -> None:
        """Ends the step that is running and starts no other."""
        self.signal = signal_number
        if self._launcher is not None:
            self._launcher.interrupt()

    def execute(self, command: str, *, resumed: Sequence[Judged] = ()) -> Record:
        """Runs every step that the plan and the outcomes so far call for.

        ``resumed`` are outcomes of an earlier, broken run of the same folder; their steps are not run again.
        """
        self._write_plan()
        self.judged = list(resumed)
        with EventWriter(self.run_dir / "events" / "run.jsonl") as journal:
            if not resumed:
                head = {"command": command, "created": time.time(), "facts": self.facts}
                journal.emit("run", **head, options=self.options.recorded())
                for failure in self.packs.failures:
                    journal.emit("pack-failure", failure=vars(failure))
            try:
                for step in self._order():
                    self._do(step, journal)
            finally:
                if self._launcher is not None:
                    self._launcher.close()
            digest = write_evidence(self.run_dir, self.judged)
            journal.emit("end", seconds=round(time.monotonic() - self._began, 3), signal=self.signal)
        return self._save(digest)

    def _order(self) -> Iterator[PlannedStep]:
        """Sweep: page order. Triage: along the edges. Steps marked ``always`` come last, whatever happened."""
        done = {j.outcome.step.id for j in self.judged}
        if self.plan.mode == "triage":
            yield from self._path(done)
        else:
            yield from (s for s in self.plan.steps if not s.always and s.id not in done)
        ended = {j.outcome.step.id for j in self.judged}
        yield from (s for s in self.plan.steps if s.always and s.id not in ended)

    def _path(self, done: set[str]) -> Iterator[PlannedStep]:
        steps = [s for s in self.plan.steps if not s.always]
        ids = [s.id for s in steps]
        current = self.plan.start or (ids[0] if ids else None)
        while current is not None and current in ids:
            step = steps[ids.index(current)]
            if step.id not in done:
                yield step
            last = next(j for j in self.judged if j.outcome.step.id == step.id)
            target = edge(step, last.findings)
            at = ids.index(step.id) + 1
            current = (ids[at] if at < len(ids) else None) if target == "next" else target

    def _do(self, step: PlannedStep, journal: EventWriter) -> None:
        ids = [s.id for s in self.plan.steps]
        self.watcher.step_started(step, ids.index(step.id), len(ids))
        outcome = self._outcome(step)
        findings = step_findings(outcome, self.packs.registry, [j.outcome for j in self.judged])
        self.judged.append(Judged(outcome, tuple(findings)))
        journal.emit(
            "step",
            id=step.id,
            state=outcome.state,
            reason=outcome.reason,
            started=outcome.started,
            seconds=outcome.seconds,
            folder=outcome.folder,
            answer=outcome.answer,
        )
        self._save(None)
        self.watcher.step_ended(outcome, findings)

    def _outcome(self, step: PlannedStep) -> Outcome:
        if (reason := self._why_not(step)) is not None:
            return Outcome(step, "interrupted" if self.signal else "skipped", reason)
        if step.manual is not None:
            return Outcome(step, "done", answer=self._answer(step))
        if step.probe is None:
            return Outcome(step, "skipped", "the step names no probe")
        try:
            prepared = self._prepare(step)
        except Problem as problem:
            return Outcome(step, "failed", str(problem))
        tries = [self._try(prepared, number) for number in range(1, step.repeat + 1)]
        return tries[0] if len(tries) == 1 else self._median(tries)

    def _why_not(self, step: PlannedStep) -> str | None:
        if self.signal:
            return "the run was interrupted before this step"
        if step.when is not None:
            holds, reason = parse(step.when).decide(self.facts)
            if not holds:
                return f"its condition does not hold here: {reason}"
        if step.always or self.plan.mode == "triage":
            return None
        by_id = {j.outcome.step.id: j for j in self.judged}
        for need in step.needs:
            if need not in by_id:
                return f"needs {need}, which did not run"
            if (why := blocks(by_id[need].outcome, by_id[need].findings)) is not None:
                return f"needs {need}: {why}"
        if self.plan.budget_s is not None and time.monotonic() - self._began > self.plan.budget_s:
            return f"the run's budget of {self.plan.budget_s:g} s is used up"
        return None

    def _answer(self, step: PlannedStep) -> str | None:
        if step.id in self.options.answers:
            return self.options.answers[step.id]
        return self.options.ask(step.manual or "") if self.options.ask else None

    def _prepare(self, step: PlannedStep) -> PlannedStep:
        """Fills in ``$step.metric`` values from the steps that ended, and shows the ranks the result."""
        metrics = {j.outcome.step.id: summarise(j.outcome.evidence) for j in self.judged}
        remedy = resolve_text(step.remedy, metrics) if step.remedy else None
        prepared = step.model_copy(update={"params": resolve(step.params, metrics), "remedy": remedy})
        if prepared.params != step.params:
            steps = tuple(prepared if s.id == step.id else s for s in self.plan.steps)
            self.plan = self.plan.model_copy(update={"steps": steps})
            self._write_plan()
        return prepared

    def _try(self, step: PlannedStep, repeat: int) -> Outcome:
        """One repeat, with retries while ranks are lost. A retry's folder keeps the evidence of the failure apart."""
        outcome = Outcome(step, "failed", "never started")
        for attempt in range(step.retries + 1):
            suffix = (f".repeat{repeat}" if repeat > 1 else "") + (f".retry{attempt}" if attempt else "")
            outcome = self._launch(step, step.id + suffix)
            if outcome.state in ("done", "interrupted"):
                break
        return outcome

    def _launch(self, step: PlannedStep, folder: str) -> Outcome:
        self._set_aside(folder)
        started, clock = time.time(), time.monotonic()
        try:
            launcher = self._launcher_for(step)
            plan = self.run_dir / "plan.json"
            facts = launcher.run_step(step, plan, folder=folder, on_progress=self.watcher.progress, facts=self.facts)
        except LaunchProblem as problem:
            return Outcome(step, "failed", str(problem), started, round(time.monotonic() - clock, 3), folder)
        evidence = load_events(self.run_dir, folder, evidence_kinds(self.packs.registry))
        state, reason = _state(facts)
        return Outcome(step, state, reason, started, round(time.monotonic() - clock, 3), folder, evidence=evidence)

    def _set_aside(self, folder: str) -> None:
        """Events of an earlier, broken try of this step keep their place under another name."""
        old = self.run_dir / "events" / folder
        if old.exists():
            number = next(n for n in itertools.count(1) if not old.with_name(f"{folder}.broken{n}").exists())
            old.rename(old.with_name(f"{folder}.broken{number}"))

    def _launcher_for(self, step: PlannedStep) -> LocalLauncher:
        """One launcher serves the run. It imports torch only where some step of the plan runs on ranks."""
        if self._launcher is None:
            probes = [self.packs.registry.probe(s.probe) for s in self.plan.steps if s.probe]
            on_ranks = any(probe.where == "ranks" for probe in probes)
            self._launcher = LocalLauncher(self.run_dir, torch=on_ranks, device=self.plan.device)
            if self.signal is not None:
                self._launcher.interrupt()
        return self._launcher

    def _median(self, tries: Sequence[Outcome]) -> Outcome:
        """Of several repeats, the one whose worst status is the median: one noisy repeat does not decide."""

        def badness(outcome: Outcome) -> int:
            found = step_findings(outcome, self.packs.registry, [j.outcome for j in self.judged])
            return max((f.status.rank for f in found), default=0)

        ranks = [badness(t) for t in tries]
        chosen = tries[ranks.index(statistics.median_low(ranks))]
        note = f"repeat {tries.index(chosen) + 1} of {len(tries)}, the median by outcome"
        return Outcome(**{**vars(chosen), "reason": chosen.reason or note})

    def _write_plan(self) -> None:
        text = dumps(self.plan.model_dump(mode="json", by_alias=True), indent=1)
        write_atomically(self.run_dir / "plan.json", text + "\n")

    def _save(self, digest: str | None) -> Record:
        journal = read_stream(self.run_dir / "events" / "run.jsonl")
        record = build_record(journal, self.plan, self.judged, digest)
        save_record(record, self.run_dir)
        return record


def _state(facts: LaunchFacts) -> tuple[State, str | None]:
    if facts.interrupted:
        return "interrupted", "the run was interrupted during this step"
    if facts.timed_out:
        return "timed-out", f"did not end within {facts.timeout_s:g} s"
    return ("done", None) if facts.ok else ("failed", "a rank did not end well")
