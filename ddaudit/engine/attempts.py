"""Running one step's probe: repeats, retries, and the launcher that serves the whole run."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddaudit.engine.gather import gather, gather_others
from ddaudit.engine.outcome import Judged, Outcome, State, evidence_kinds, judge_step
from ddaudit.errors import LaunchProblem
from ddaudit.evidence.launch import LaunchFacts
from ddaudit.launch import TRAINING, Fleet, FleetLauncher, LocalLauncher, Progress
from ddaudit.launch.stall import answering, knock
from ddaudit.redact import HIDDEN
from ddaudit.registry import Registry
from ddaudit.runbook.model import Plan, PlannedStep

__all__ = ["Attempts"]

#: Probes that need more of torch than its collectives; importing that is worth it for them alone.
TRAINERS = ("train", "watch")


class Attempts:
    """Starts steps in one run folder. :meth:`interrupt` may come from a signal handler at any time. With a ``fleet``
    the ranks are spread over its hosts."""

    def __init__(
        self, run_dir: Path, plan: Plan, registry: Registry, facts: Mapping[str, Any], fleet: Fleet | None = None
    ) -> None:
        self._run_dir, self._plan, self._registry, self._facts = run_dir, plan, registry, facts
        self._fleet = fleet
        self._launcher: LocalLauncher | None = None
        self._interrupted = False

    def interrupt(self) -> None:
        """Ends the step that is running; further ones end as soon as they start."""
        self._interrupted = True
        if self._launcher is not None:
            self._launcher.interrupt()

    def close(self) -> None:
        """Ends the launcher and every rank."""
        if self._launcher is not None:
            self._launcher.close()
        self._launcher = None

    def run(self, step: PlannedStep, before: Sequence[Judged], on_progress: Callable[[Progress], None]) -> Outcome:
        """All repeats of a step whose parameters are filled in; ``before`` are the steps that ended before it."""
        if _hidden(step.params):
            reason = "a secret that this step was told is not kept in plan.json: start a new run for it"
            return Outcome(step, "failed", reason)
        tries = [self._try(step, number, on_progress) for number in range(1, step.repeat + 1)]
        if len(tries) == 1:
            return tries[0]
        # The one whose worst status is the median: one noisy repeat does not decide.
        ranks = [self._badness(outcome, before) for outcome in tries]
        chosen = tries[ranks.index(statistics.median_low(ranks))]
        note = f"repeat {tries.index(chosen) + 1} of {len(tries)}, the median by outcome"
        return Outcome(**{**vars(chosen), "reason": chosen.reason or note})

    def _badness(self, outcome: Outcome, before: Sequence[Judged]) -> int:
        return max((f.status.rank for f in judge_step(outcome, self._registry, before).findings), default=0)

    def _try(self, step: PlannedStep, repeat: int, on_progress: Callable[[Progress], None]) -> Outcome:
        """One repeat, with retries while ranks are lost. A retry's folder keeps the evidence of the failure apart."""
        outcome = Outcome(step, "failed", "never started")
        for attempt in range(step.retries + 1):
            suffix = (f".repeat{repeat}" if repeat > 1 else "") + (f".retry{attempt}" if attempt else "")
            outcome = self._launch(step, step.id + suffix, on_progress)
            if outcome.state in ("done", "interrupted"):
                break
        return outcome

    def _launch(self, step: PlannedStep, folder: str, on_progress: Callable[[Progress], None]) -> Outcome:
        started, clock = time.time(), time.monotonic()
        everywhere = self._registry.probe(step.probe or "").where == "hosts"
        try:
            with answering(self._run_dir):
                self._set_aside(folder)
            plan = self._run_dir / "plan.json"
            facts = self._ready().run_step(
                step, plan, folder=folder, on_progress=on_progress, facts=self._facts, everywhere=everywhere
            )
        except LaunchProblem as problem:
            if self._interrupted:  # a scheduler's TERM goes to every process of ours at once
                why = "the run was interrupted during this step"
                return Outcome(step, "interrupted", why, started, round(time.monotonic() - clock, 3), folder)
            return Outcome(step, "failed", str(problem), started, round(time.monotonic() - clock, 3), folder)
        seconds = round(time.monotonic() - clock, 3)
        kinds = evidence_kinds(self._registry)
        knock(self._run_dir, self._run_dir / "events" / folder)
        evidence, damage = gather(self._run_dir, folder, kinds)
        others = gather_others(self._run_dir, folder, kinds) if everywhere else {}
        state, reason = _state(facts)
        ended = Outcome(step, state, reason, started, seconds, folder, evidence=evidence, damage=damage)
        return replace(ended, other_hosts=others)

    def _set_aside(self, folder: str) -> None:
        """Events and logs of an earlier, broken try of this step keep their place under another name."""
        both = [self._run_dir / part / folder for part in ("events", "logs")]
        taken = (n for n in itertools.count(1) if not any(p.with_name(f"{folder}.broken{n}").exists() for p in both))
        number = next(taken)
        for old in both:
            if old.exists():
                old.rename(old.with_name(f"{folder}.broken{number}"))

    def _ready(self) -> LocalLauncher:
        """One launcher serves the run. It imports torch only where some step of the plan runs on ranks."""
        if self._launcher is None:
            probes = [self._registry.probe(s.probe) for s in self._plan.steps if s.probe]
            on_ranks = any(probe.where == "ranks" for probe in probes)
            trains = any(probe.name in TRAINERS for probe in probes)
            told: dict[str, Any] = {"torch": on_ranks, "device": self._plan.device}
            told["preload"] = TRAINING if trains else ("torch.distributed",)
            if self._fleet is None:
                self._launcher = LocalLauncher(self._run_dir, **told)
            else:
                self._launcher = FleetLauncher(self._run_dir, self._fleet, **told)
            if self._interrupted:
                self._launcher.interrupt()
        return self._launcher


def _hidden(value: Any) -> bool:
    if isinstance(value, str):
        return HIDDEN in value
    if isinstance(value, Mapping):
        return any(_hidden(item) for item in value.values())
    return isinstance(value, list | tuple) and any(_hidden(item) for item in value)


def _state(facts: LaunchFacts) -> tuple[State, str | None]:
    if facts.interrupted:
        return "interrupted", "the run was interrupted during this step"
    if facts.timed_out:
        return "timed-out", f"did not end within {facts.timeout_s:g} s"
    return ("done", None) if facts.ok else ("failed", "a rank did not end well")
