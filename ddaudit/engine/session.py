"""Preparing a run: facts, plan and folder for a new one; plan and finished steps for one that goes on."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddaudit.engine.facts import collect, count_gpus, pick_device
from ddaudit.engine.folder import RunFolder, refuse_links
from ddaudit.engine.jobs import plan_job
from ddaudit.engine.journal import Journal, read_journal, read_plan
from ddaudit.engine.walk import Options, Quiet, Walk, Watcher
from ddaudit.errors import EvidenceProblem, UsageProblem
from ddaudit.evidence.events import read_streams
from ddaudit.evidence.launch import LaunchFacts
from ddaudit.launch import Fleet, Place
from ddaudit.packs import Packs
from ddaudit.record import NewerRecord, load_record
from ddaudit.redact import learn, secrets_of
from ddaudit.runbook import load_runbook, make_plan
from ddaudit.runbook.model import Plan, Runbook

__all__ = ["Session", "new_run_id", "prepare", "resume"]


def new_run_id() -> str:
    """A name for a new run folder that sorts by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Session:
    """A run that is ready to be walked. ``journal`` is that of a run which goes on, None for a new one."""

    plan: Plan
    packs: Packs
    run_dir: Path
    facts: dict[str, Any]
    journal: Journal | None = None

    @property
    def finished(self) -> bool:
        """True for a run that came to its end already, and met all its hosts: there is nothing to walk."""
        return self.journal is not None and self.journal.completes(self.plan) and not self._missed_a_host(self.journal)

    def _missed_a_host(self, journal: Journal) -> bool:
        """True when a host was lost within a step, or a step was not launched since one was not there."""
        for ended in journal.ended.values():
            if ended.folder is None:
                continue
            launch = LaunchFacts.assemble(read_streams(self.run_dir / "events" / ended.folder, "launcher.jsonl"))
            if launch.lost_hosts if launch is not None else ended.state == "failed":
                return True
        return False

    @contextmanager
    def walking(self, options: Options, watcher: Watcher | None = None, fleet: Fleet | None = None) -> Iterator[Walk]:
        """Locks the run folder, which a new run creates, and hands out the walk, ready to be executed once. A resumed
        run is concluded as it was begun, whatever ``options`` say. Ranks run on the hosts of ``fleet``, if given."""
        resumed = self.journal is not None
        if self.journal is not None:
            options = replace(options, settings=self.journal.head.options)
        options.check(self.plan)
        with RunFolder(self.run_dir).open(new=not resumed) as folder:
            told = (self.plan, self.packs, folder, self.facts, options, watcher or Quiet())
            yield Walk(*told, resumed=resumed, fleet=fleet)


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
    place: Place | None = None,
) -> Session:
    """Reads the runbook, and the job file ``job``, and plans both for this machine, or for all hosts of ``place``, with
    as many ranks as these make room for where the runbook leaves that open. Touches no device, writes nothing.

    Raises:
        Problem: the runbook, the job file, a parameter or the device do not fit.
    """
    learn(secrets_of(os.environ, argv, dict(params)))
    gpus = count_gpus()
    chosen, reason = pick_device(device, gpus)
    if chosen == "cuda" and not gpus:
        raise UsageProblem("--device cuda, and no /dev/nvidia device is visible", fix="use --device cpu")
    facts = collect(chosen, reason, list(argv))
    page = load_runbook(packs.runbook(runbook))
    if place is not None:
        params = {**_ranks(page, place), **params}
        facts |= {"hosts": place.nnodes, "ranks_per_node": place.ranks_per_node, "placed_by": place.source}
    plan = make_plan(page, packs, params, run_id=run_id, device=chosen, seed=seed, only=only, skip=skip, start=start)
    plan = plan_job(plan, packs, job, job_set or {})
    learn(secrets_of({}, (), [s.params for s in plan.steps]))
    _refuse_missing_gpus(plan, gpus * (place.nnodes if place else 1))
    known = facts | {"runbook": plan.runbook, "ranks": _most_ranks(plan)}
    return Session(plan, packs, (out / run_id).absolute(), known)


def _ranks(page: Runbook, place: Place) -> dict[str, str]:
    """The parameter ``ranks`` of a runbook that has one: every place of every node, as far as the page allows; and
    ``global_batch``, its default rounded up to two micro-batches for each of these ranks."""
    param, batch = page.params.get("ranks"), page.params.get("global_batch")
    if param is None or param.type != "int":
        return {}
    ranks = int(min(place.nnodes * place.ranks_per_node, param.max or float("inf")))
    told = {"ranks": str(ranks)}
    if batch is not None and isinstance(batch.default, int):
        told["global_batch"] = str(-(-batch.default // (2 * ranks)) * 2 * ranks)
    return told


def _refuse_missing_gpus(plan: Plan, gpus: int) -> None:
    too_many = next((s for s in plan.steps if plan.device == "cuda" and s.nproc > gpus and s.probe), None)
    if too_many is not None:
        raise UsageProblem(
            f"step {too_many.id} needs {too_many.nproc} GPUs",
            where=too_many.source,
            expected=f"at most {gpus}",
            fix=f"-P ranks={gpus}",
        )


def _most_ranks(plan: Plan) -> int:
    return max((s.nproc for s in plan.steps), default=1)


def resume(run_dir: Path, packs: Packs) -> Session:
    """The run of a folder that was broken off, with its own plan, facts and settings. The runbook is not read again.

    Raises:
        EvidenceProblem: plan or journal cannot be read, or a newer ddaudit wrote the record.
    """
    refuse_links(run_dir)
    plan = read_plan(run_dir)
    journal = read_journal(run_dir)
    refuse_newer(run_dir)
    learn(secrets_of(os.environ))
    return Session(plan, packs, run_dir.absolute(), dict(journal.head.facts), journal)


def refuse_newer(run_dir: Path) -> None:
    """Raises NewerRecord for such; any other damage to a record is no matter, since it is made again."""
    try:
        load_record(run_dir)
    except NewerRecord:
        raise
    except EvidenceProblem:
        return
