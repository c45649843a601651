"""Preparing a run: facts, plan and folder for a new one; plan and finished steps for one that goes on."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddaudit.engine.facts import collect, count_gpus, pick_device
from ddaudit.engine.jobs import plan_job
from ddaudit.engine.journal import Judged, outcomes_from_disk, read_plan
from ddaudit.engine.outcome import step_findings
from ddaudit.engine.walk import Options, Walk, Watcher
from ddaudit.errors import UsageProblem
from ddaudit.evidence.events import read_stream
from ddaudit.packs import Packs
from ddaudit.runbook import load_runbook, make_plan
from ddaudit.runbook.model import Plan

__all__ = ["Session", "prepare", "resume"]


@dataclass(frozen=True)
class Session:
    """A run that is ready to be walked."""

    plan: Plan
    packs: Packs
    run_dir: Path
    facts: dict[str, Any]
    resumed: tuple[Judged, ...] = ()

    def walk(self, options: Options, watcher: Watcher) -> Walk:
        """Creates the run folder, takes its lock for the life of the process, and returns the walk."""
        make_folder(self.run_dir)
        return Walk(self.plan, self.packs, self.run_dir, self.facts, options, watcher)


def prepare(
    packs: Packs,
    runbook: str,
    *,
    params: Mapping[str, str],
    out: Path,
    run_id: str,
    device: str = "auto",
    seed: int = 0,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    start: str | None = None,
    argv: Sequence[str] = (),
    job: str | None = None,
    job_set: Mapping[str, str] | None = None,
) -> Session:
    """Reads the runbook, and the job file ``job``, and plans both for this machine. Touches no device, writes nothing.

    Raises:
        Problem: the runbook, the job file, a parameter or the device do not fit.
    """
    gpus = count_gpus()
    chosen, reason = pick_device(device, gpus)
    if chosen == "cuda" and not gpus:
        raise UsageProblem("--device cuda, and no /dev/nvidia device is visible", fix="use --device cpu")
    facts = collect(chosen, reason, list(argv))
    page = load_runbook(packs.runbook(runbook))
    plan = make_plan(page, packs, params, run_id=run_id, device=chosen, seed=seed, only=only, skip=skip, start=start)
    plan = plan_job(plan, packs, job, job_set or {})
    too_many = next((s for s in plan.steps if chosen == "cuda" and s.nproc > gpus and s.probe), None)
    if too_many is not None:
        raise UsageProblem(
            f"step {too_many.id} needs {too_many.nproc} GPUs",
            where=too_many.source,
            expected=f"at most {gpus}",
            fix=f"-P ranks={gpus}",
        )
    return Session(
        plan, packs, (out / run_id).absolute(), facts | {"runbook": plan.runbook, "ranks": _most_ranks(plan)}
    )


def _most_ranks(plan: Plan) -> int:
    return max((s.nproc for s in plan.steps), default=1)


def resume(run_dir: Path, packs: Packs) -> Session:
    """Plan and finished steps of a run folder whose run was broken off. Only steps that ended by themselves count."""
    plan = read_plan(run_dir)
    head = read_stream(run_dir / "events" / "run.jsonl").first("run") or {"facts": {}}
    judged: list[Judged] = []
    for outcome in outcomes_from_disk(run_dir, plan, packs.registry):
        if outcome.state in ("done", "failed", "timed-out"):
            found = step_findings(outcome, packs.registry, [j.outcome for j in judged])
            judged.append(Judged(outcome, tuple(found)))
    return Session(plan, packs, run_dir.absolute(), dict(head["facts"]), tuple(judged))


def make_folder(run_dir: Path) -> None:
    """Creates the run folder and locks it, so that two runs never share one. The lock ends with the process."""
    try:
        (run_dir / "events").mkdir(parents=True, exist_ok=True)
        handle = os.open(run_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageProblem(
            "another ddaudit works in this run folder", where=str(run_dir), fix="wait, or use another --out"
        ) from None
    except OSError as error:
        raise UsageProblem(
            f"cannot write here ({error.strerror})", where=str(run_dir), fix="choose another --out"
        ) from error
