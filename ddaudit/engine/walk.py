"""Walking a plan: start each step, collect its evidence, judge it, write down what happened, decide what comes next."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ddaudit.engine.attempts import Attempts
from ddaudit.engine.folder import RunFolder, writing
from ddaudit.engine.journal import Settings, read_journal
from ddaudit.engine.outcome import Judged, Outcome, blocks, edge, judge_step, prepared
from ddaudit.engine.rebuild import build_record, judged_from_disk, write_evidence
from ddaudit.errors import Problem, UsageProblem
from ddaudit.findings import Finding
from ddaudit.launch import Fleet, Progress, slurm
from ddaudit.launch.spool import recover
from ddaudit.launch.stall import answering, knock
from ddaudit.packs import Packs
from ddaudit.record import Record
from ddaudit.registry import suggest
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
    """How to conclude, and who answers manual steps: ``answers`` (step id -> "pass", "warn" or "fail"), else ``ask``,
    which may raise KeyboardInterrupt."""

    settings: Settings = field(default_factory=Settings)
    answers: Mapping[str, str] = field(default_factory=dict)
    ask: Callable[[str], str | None] | None = None

    def check(self, plan: Plan) -> None:
        """Raises UsageProblem when an answer names no manual step or is no answer."""
        manual = [s.id for s in plan.steps if s.manual is not None]
        for step, answer in self.answers.items():
            if step not in manual:
                fix = suggest(step, manual) if manual else "this runbook asks nobody; drop it"
                raise UsageProblem(f"--answers {step}={answer}: there is no manual step {step!r}", fix=fix)
            if answer not in ("pass", "warn", "fail"):
                raise UsageProblem(f"--answers {step}={answer}", expected="pass, warn or fail")


class Walk:
    """One run of one plan in one open run folder. Call :meth:`execute` once; :meth:`interrupt` may come from a signal
    handler at any time and makes ``execute`` return early with everything that finished."""

    def __init__(
        self,
        plan: Plan,
        packs: Packs,
        folder: RunFolder,
        facts: dict[str, Any],
        options: Options,
        watcher: Watcher,
        *,
        resumed: bool = False,
        fleet: Fleet | None = None,
    ) -> None:
        self.plan, self.packs, self.folder = plan, packs, folder
        self.facts, self.options, self.watcher, self.resumed = facts, options, watcher, resumed
        self.judged: list[Judged] = []
        self.signal: int | None = None
        self.asking = False
        self._attempts = Attempts(folder.path, plan, packs.registry, facts, fleet)
        self._began = time.monotonic()

    def interrupt(self, signal_number: int) -> None:
        """Ends the step that is running and starts no other."""
        self.signal = signal_number
        self._attempts.interrupt()

    def execute(self, command: str) -> Record:
        """Runs every step that the plan and the outcomes so far call for.

        Raises:
            LaunchProblem: the run folder is full or gone. What finished before is in it.
        """
        self._begin(command)
        try:
            for step in self._order():
                self._do(step)
            self._ask_why()
        finally:
            self._attempts.close()
        knock(self.folder.path)
        digest = write_evidence(self.folder.path, self.judged)
        self.folder.emit("end", seconds=round(time.monotonic() - self._began, 3), signal=self.signal)
        return self._save(digest)

    def _ask_why(self) -> None:
        """Asks the scheduler, while it gives grace, what it ends the job for; afterwards it calls the script failed."""
        if self.signal == signal.SIGTERM and (job := slurm.present(os.environ, self.signal)) is not None:
            self.folder.emit("job", **job.model_dump(mode="json"))

    def _begin(self, command: str) -> None:
        """Writes the plan and the head of a new run, or takes over the steps of an earlier one that stand. They are
        read under the folder's lock, so that no step of a living run is missed."""
        path = self.folder.path
        if self.resumed:
            recover(path, locked=True)
            judged = judged_from_disk(path, self.plan, read_journal(path), self.packs.registry)
            self.judged = [j for j in judged if _stands(j)]
            self.folder.emit("resume")
            return
        self.folder.write_plan(self.plan)
        head = {"command": command, "created": time.time(), "facts": self.facts}
        self.folder.emit("run", **head, options=self.options.settings.model_dump(mode="json"))
        for failure in self.packs.failures:
            self.folder.emit("pack-failure", failure=vars(failure))

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

    def _do(self, step: PlannedStep) -> None:
        ids = [s.id for s in self.plan.steps]
        self.watcher.step_started(step, ids.index(step.id), len(ids))
        outcome = self._outcome(step)
        standards = self.options.settings.standards(self.facts)
        self.judged.append(judge_step(outcome, self.packs.registry, self.judged, standards))
        told = {name: getattr(outcome, name) for name in ("state", "reason", "started", "seconds", "folder", "answer")}
        self.folder.emit("step", id=step.id, **told, params=dict(outcome.step.params))
        self._save(None)
        self.watcher.step_ended(outcome, self.judged[-1].findings)

    def _outcome(self, step: PlannedStep) -> Outcome:
        if (reason := self._why_not(step)) is not None:
            return Outcome(step, "interrupted" if self.signal else "skipped", reason)
        try:
            step = prepared(step, self.judged)
        except Problem as problem:
            return Outcome(step, "failed", str(problem))
        if step.manual is not None:
            answer = self._answer(step)
            asked = self.signal is None or answer is not None
            return Outcome(step, "done", answer=answer) if asked else Outcome(step, "interrupted", "nobody answered")
        if step.probe is None:
            return Outcome(step, "skipped", "the step names no probe")
        return self._attempts.run(step, self.judged, self.watcher.progress)

    def _why_not(self, step: PlannedStep) -> str | None:
        if self.signal:
            return "the run was interrupted before this step"
        if step.when is not None:
            holds, reason = parse(step.when).decide(self.facts)
            if not holds:
                return f"its condition does not hold here: {reason}"
        return None if step.always or self.plan.mode == "triage" else self._blocked(step)

    def _blocked(self, step: PlannedStep) -> str | None:
        """Why a sweep does not reach this step."""
        for judged in self.judged:
            if edge(judged.outcome.step, judged.findings) == "stop":
                return f"the runbook stops behind step {judged.outcome.step.id}, given how that ended"
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
        if self.options.ask is None:
            return None
        self.asking = True
        try:
            return self.options.ask(step.manual or "")
        except KeyboardInterrupt:
            self.interrupt(self.signal or signal.SIGINT)
            return None
        finally:
            self.asking = False

    def _save(self, digest: str | None) -> Record:
        with writing(self.folder.path), answering(self.folder.path):
            journal = read_journal(self.folder.path)
        record = build_record(journal, self.plan, self.judged, digest)
        self.folder.save(record)
        return record


def _stands(judged: Judged) -> bool:
    """True for a step that need not run again: it measured something, or a person answered it. One that lost a host
    says nothing about the hosts that are there now."""
    outcome = judged.outcome
    if outcome.state not in ("done", "failed", "timed-out") or (outcome.launch and outcome.launch.lost_hosts):
        return False
    return outcome.answer is not None if outcome.step.manual is not None else outcome.launch is not None
