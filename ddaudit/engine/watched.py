"""One watched run: the user's command in the place of a probe, then judged and recorded like any other step."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddaudit.engine.facts import collect
from ddaudit.engine.folder import RunFolder
from ddaudit.engine.gather import gather
from ddaudit.engine.journal import Settings, read_journal
from ddaudit.engine.outcome import Judged, Outcome, evidence_kinds, judge_step
from ddaudit.engine.rebuild import build_record, write_evidence
from ddaudit.errors import RunbookProblem
from ddaudit.evidence.events import EventWriter, read_streams
from ddaudit.findings import Verdict
from ddaudit.packs import Packs
from ddaudit.record import Record
from ddaudit.redact import learn, redact_argv, secrets_of
from ddaudit.runbook import load_runbook, make_plan
from ddaudit.runbook.model import Plan, PlannedStep
from ddaudit.watch.companion import other_run
from ddaudit.watch.join import join
from ddaudit.watch.launch import Ended, environment, run_command

__all__ = ["NO_RANK", "Watched", "watch_command", "watch_plan"]

NO_RANK = (
    "no rank reported: no process imported torch with ddaudit's hook, or none trained (python -I, a container, and "
    "an environment that drops PYTHONPATH keep the hook out; `import ddaudit.watch.auto` in the script gets it in)"
)


@dataclass(frozen=True)
class Watched:
    """What to watch and how. ``argv`` is the user's command."""

    argv: Sequence[str]
    out: Path
    run_id: str
    runbook: str = "pre-merge"
    every: int = 1
    hang_s: float = 150.0
    expected: Mapping[str, int] = field(default_factory=dict)
    continues: Path | None = None
    through: Path | None = None
    """A run of the same command that was not interrupted, to compare with after the checkpoint."""
    tested: bool = False
    baseline: Path | None = None
    """A watched run of the code as it was before the change."""
    single: Path | None = None
    """A watched run of the same command on one rank."""
    settings: Settings = field(default_factory=Settings)
    to_stderr: bool = False
    device: str = "cpu"


def watch_command(asked: Watched, packs: Packs) -> tuple[Record, Path]:
    """Runs and judges; the record's ``extra`` holds ``script`` and ``trace``, and its exit code minds the script's.

    Raises:
        Problem: the runbook does not fit, the folder cannot be written, or the program cannot be started.
    """
    learn(secrets_of(os.environ, asked.argv, {}))
    plan, step = watch_plan(packs, asked.runbook, run_id=asked.run_id, argv=asked.argv, device=asked.device)
    run_dir = (asked.out / asked.run_id).absolute()
    facts = collect(asked.device, "the command decides", ["ddaudit", "watch", "--", *asked.argv])
    with closing(RunFolder(run_dir).open(new=True)) as folder:
        folder.write_plan(plan)
        head = {"command": "watch", "created": time.time(), "facts": facts | {"runbook": plan.runbook}}
        folder.emit("run", **head, options=asked.settings.model_dump(mode="json"))
        for failure in packs.failures:
            folder.emit("pack-failure", failure=vars(failure))
        ended, outcome = _run(asked, run_dir, step, packs)
        judged = judge_step(outcome, packs.registry, [], asked.settings.standards(facts))
        told = {name: getattr(outcome, name) for name in ("state", "reason", "started", "seconds", "folder")}
        folder.emit("step", id=step.id, **told, params=dict(step.params))
        digest = write_evidence(run_dir, [judged])
        folder.emit("end", seconds=round(ended.seconds, 3), signal=None)
        record = _concluded(run_dir, plan, judged, digest, ended)
        folder.save(record)
    return record, run_dir


def watch_plan(
    packs: Packs, runbook: str, *, run_id: str, argv: Sequence[str] = (), device: str = "cpu"
) -> tuple[Plan, PlannedStep]:
    """The plan of a watched run: the one step of a runbook that watches.

    Raises:
        RunbookProblem: none or several of its steps do.
    """
    page = load_runbook(packs.runbook(runbook))
    plan = make_plan(page, packs, {}, run_id=run_id, device=device, seed=0)
    steps = [s for s in plan.steps if s.probe == "watch"]
    if len(steps) != 1:
        what = f"runbook {runbook!r} has {len(steps)} steps with the probe `watch`"
        raise RunbookProblem(what, expected="one")
    step = steps[0].model_copy(update={"params": {"argv": redact_argv(argv)}})
    return plan.model_copy(update={"steps": (step,)}), step


def _run(asked: Watched, run_dir: Path, step: PlannedStep, packs: Packs) -> tuple[Ended, Outcome]:
    folder = run_dir / "events" / step.id
    folder.mkdir(parents=True, exist_ok=True)
    started = time.time()
    env = environment(folder, asked.every, os.environ)
    ended = run_command(asked.argv, env, folder, to_stderr=asked.to_stderr, hang_s=asked.hang_s)
    streams = read_streams(folder)
    resume = join(asked.out.absolute(), run_dir, streams, asked.continues, asked.through)
    if resume is not None and asked.tested:
        resume = resume.model_copy(update={"tested": True})
    with EventWriter(folder / "watch.jsonl") as writer:
        script = {
            "argv": redact_argv(asked.argv),
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "hang_s": ended.hang_s,
            "stacks": ended.stacks,
            "guards": ended.guards,
            "cores": len(os.sched_getaffinity(0)),
            "expected": dict(asked.expected),
            "baseline": _other(asked.baseline),
            "single": _other(asked.single),
            "resume": None if resume is None else resume.model_dump(mode="json"),
        }
        writer.emit("script", script=script)
    reported = any(stream.first("rank") for stream in streams)
    evidence, damage = gather(run_dir, step.id, evidence_kinds(packs.registry))
    kept: dict[str, Any] = {"started": started, "seconds": round(ended.seconds, 3), "folder": step.id}
    stuck = NO_RANK if ended.hang_s is None else f"no progress for {ended.hang_s:.0f} s before any rank's first update"
    state, reason = ("done", None) if reported else ("failed", stuck)
    return ended, Outcome(step, state, reason, **kept, evidence=evidence, damage=damage)  # type: ignore[arg-type]


def _other(folder: Path | None) -> dict[str, Any] | None:
    found = None if folder is None else other_run(read_streams(folder / "events" / "script"), folder.name)
    return None if found is None else found.model_dump(mode="json")


def _concluded(run_dir: Path, plan: Plan, judged: Judged, digest: str, ended: Ended) -> Record:
    """The record with the script's end in it: a failed gate is 1, else the script's own exit code, else ours."""
    record = build_record(read_journal(run_dir), plan, [judged], digest)
    argv = list(judged.outcome.step.params["argv"])
    script = {"argv": argv, "exit_code": ended.exit_code, "signal": ended.signal}
    extra = {"script": script, "trace": str(run_dir / "events" / judged.outcome.step.id)}
    code, verdict = record.exit_code, record.verdict
    if judged.outcome.state == "failed":
        code, verdict = 3, Verdict.INCONCLUSIVE
    if code != 1 and ended.exit_code:
        code = ended.exit_code
        verdict = Verdict.INCONCLUSIVE if verdict in (Verdict.PASS, Verdict.WARN) else verdict
    return record.model_copy(update={"extra": extra, "exit_code": int(code), "verdict": verdict})
