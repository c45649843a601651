"""One watched run: the user's command in the place of a probe, then judged and recorded like any other step."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddaudit.engine.facts import collect
from ddaudit.engine.journal import Judged, build_record, write_evidence
from ddaudit.engine.outcome import Outcome, evidence_kinds, step_findings
from ddaudit.engine.session import make_folder
from ddaudit.errors import RunbookProblem
from ddaudit.evidence.events import EventWriter, read_stream, read_streams
from ddaudit.evidence.store import load_events
from ddaudit.findings import Status, Verdict
from ddaudit.jsonio import dumps
from ddaudit.packs import Packs
from ddaudit.record import Record, save_record, write_atomically
from ddaudit.redact import redact_argv
from ddaudit.runbook import load_runbook, make_plan
from ddaudit.runbook.model import Plan
from ddaudit.watch.join import join
from ddaudit.watch.launch import Ended, environment, run_command

__all__ = ["Watched", "watch_command"]

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
    options: Mapping[str, Any] = field(default_factory=dict)
    to_stderr: bool = False
    device: str = "cpu"


def watch_command(asked: Watched, packs: Packs) -> tuple[Record, Path]:
    """Runs and judges; the record's ``extra`` holds ``script`` and ``trace``, and its exit code minds the script's."""
    page = load_runbook(packs.runbook(asked.runbook))
    plan = make_plan(page, packs, {}, run_id=asked.run_id, device=asked.device, seed=0)
    steps = [s for s in plan.steps if s.probe == "watch"]
    if len(steps) != 1:
        raise RunbookProblem(f"runbook {asked.runbook!r} has {len(steps)} steps with the probe `watch`", expected="one")
    step = steps[0].model_copy(update={"params": {"argv": redact_argv(asked.argv)}})
    plan = plan.model_copy(update={"steps": (step,)})
    run_dir = (asked.out / asked.run_id).absolute()
    make_folder(run_dir)
    write_atomically(run_dir / "plan.json", dumps(plan.model_dump(mode="json", by_alias=True), indent=1) + "\n")
    with EventWriter(run_dir / "events" / "run.jsonl") as journal:
        facts = collect(asked.device, "the command decides", ["ddaudit", "watch", "--", *asked.argv])
        head = {"command": "watch", "created": time.time(), "facts": facts | {"runbook": plan.runbook}}
        journal.emit("run", **head, options=dict(asked.options))
        ended, outcome = _run(asked, run_dir, step, packs)
        judged = Judged(outcome, tuple(step_findings(outcome, packs.registry, [])))
        shown = {k: getattr(outcome, k) for k in ("state", "reason", "started", "seconds", "folder")}
        journal.emit("step", id=step.id, **shown)
        digest = write_evidence(run_dir, [judged])
        journal.emit("end", seconds=round(ended.seconds, 3), signal=None)
    record = _concluded(run_dir, plan, judged, digest, asked, ended)
    save_record(record, run_dir)
    return record, run_dir


def _run(asked: Watched, run_dir: Path, step: Any, packs: Packs) -> tuple[Ended, Outcome]:
    folder = run_dir / "events" / step.id
    folder.mkdir(parents=True, exist_ok=True)
    started = time.time()
    env = environment(folder, asked.every, os.environ)
    ended = run_command(asked.argv, env, folder, to_stderr=asked.to_stderr, hang_s=asked.hang_s)
    streams = read_streams(folder)
    resume = join(asked.out.absolute(), run_dir, streams, asked.continues)
    with EventWriter(folder / "watch.jsonl") as writer:
        script = {
            "argv": redact_argv(asked.argv),
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "hang_s": ended.hang_s,
            "stacks": ended.stacks,
            "cores": len(os.sched_getaffinity(0)),
            "expected": dict(asked.expected),
            "resume": None if resume is None else resume.model_dump(mode="json"),
        }
        writer.emit("script", script=script)
    reported = any(stream.first("rank") for stream in streams)
    evidence = load_events(run_dir, step.id, evidence_kinds(packs.registry))
    kept = {"started": started, "seconds": round(ended.seconds, 3), "folder": step.id, "evidence": evidence}
    return ended, Outcome(step, "done" if reported else "failed", None if reported else NO_RANK, **kept)


def _concluded(run_dir: Path, plan: Plan, judged: Judged, digest: str, asked: Watched, ended: Ended) -> Record:
    """The record with the script's end in it: a failed gate is 1, else the script's own exit code, else ours."""
    record = build_record(read_stream(run_dir / "events" / "run.jsonl"), plan, [judged], digest)
    script = {"argv": redact_argv(asked.argv), "exit_code": ended.exit_code, "signal": ended.signal}
    extra = {"script": script, "trace": str(run_dir / "events" / judged.outcome.step.id)}
    code = record.exit_code
    none_reported = judged.outcome.state == "failed"
    verdict = record.verdict
    if none_reported:
        code, verdict = 3, Verdict.INCONCLUSIVE
    if code != 1 and ended.exit_code:
        code = ended.exit_code
        verdict = Verdict.INCONCLUSIVE if verdict in (Verdict.PASS, Verdict.WARN) else verdict
    findings = [f for f in record.findings if f.status is not Status.PASS or f.text]
    return record.model_copy(
        update={"extra": extra, "exit_code": int(code), "verdict": verdict, "findings": tuple(findings)}
    )
