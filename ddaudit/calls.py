"""The Python calls: what ``import ddaudit`` offers, over the same engine as the command line.

Nothing is printed and no signal handler is set; what the command line tells in one line is a
:class:`~ddaudit.errors.Problem` here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ddaudit.cli.checkpoint_audit import AuditResult
    from ddaudit.engine import Watcher
    from ddaudit.evidence.forecast import ForecastFacts
    from ddaudit.findings import Finding, Verdict
    from ddaudit.packs import Packs
    from ddaudit.record import Record

__all__ = ["Run", "audit", "forecast", "load_run", "resume", "run"]

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Run:
    """A run that ended: its record, and the folder that holds its evidence and reports."""

    record: Record
    folder: Path

    @property
    def verdict(self) -> Verdict:
        return self.record.verdict

    @property
    def exit_code(self) -> int:
        """What the command line would have exited with."""
        return self.record.exit_code

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.record.findings

    def render(self, format: str = "text") -> str:
        """The run in one of the formats: text, json, html, md, junit."""
        from ddaudit.report import render

        return render(self.record, format, run_dir=self.folder)


def run(
    runbook: PathLike = "scale-out",
    *,
    params: Mapping[str, Any] | None = None,
    out: PathLike = "ddaudit-runs",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    seed: int = 0,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    packs: Sequence[PathLike] = (),
    fail_on: Literal["minor", "major", "critical"] = "major",
    strict: bool = False,
    warn_as_fail: bool = False,
    answers: Mapping[str, str] | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Runs a runbook (an id or a file) in a new folder below ``out``, and writes its reports.

    Call it from the main thread: the ranks end with the thread that started them. The keywords mean what the options
    of ``ddaudit run`` do; ``watcher`` is told of progress.

    Raises:
        Problem: the call, runbook or pack is wrong (nothing was started), or the run folder cannot be written.
    """
    from ddaudit.engine import prepare
    from ddaudit.engine.session import new_run_id

    session = prepare(
        _packs(packs),
        str(runbook),
        params={name: str(value) for name, value in (params or {}).items()},
        out=Path(out),
        run_id=new_run_id(),
        device=device,
        seed=seed,
        only=only,
        skip=skip,
    )
    settings = {"fail_on": fail_on, "strict": strict, "warn_as_fail": warn_as_fail}
    return _walk(session, settings, answers or {}, watcher)


def resume(
    run_dir: PathLike,
    *,
    packs: Sequence[PathLike] = (),
    answers: Mapping[str, str] | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Goes on with a run that was broken off: its plan, packs and settings rule, and steps that ended stand.

    Raises:
        Problem: the folder cannot be read as a run, or a living run works in it.
    """
    from ddaudit.engine import resume as open_again
    from ddaudit.engine.journal import read_plan

    folder = Path(run_dir)
    session = open_again(folder, _packs([*read_plan(folder).packs, *packs]))
    return load_run(folder, packs=packs) if session.finished else _walk(session, {}, answers or {}, watcher)


def load_run(run_dir: PathLike, *, rejudge: bool = False, packs: Sequence[PathLike] = ()) -> Run:
    """Reads a run folder back, making anew what is missing or broken; ``rejudge`` judges its evidence again.

    Packs are code, so those that the run used are loaded only when they are named here.

    Raises:
        EvidenceProblem: the folder cannot be read as a run.
    """
    from ddaudit.engine.restore import restore

    folder = Path(run_dir).resolve()
    return Run(restore(folder, _packs(packs), rejudge=rejudge)[0], folder)


def audit(
    path: PathLike, *, level: Literal["names", "headers", "full"] = "full", job: PathLike | None = None
) -> AuditResult:
    """Audits a checkpoint (a file, a folder, a root of many steps, or an fsspec URL) without executing a byte of it.

    The result's ``word`` is OK, DEGRADED, NOT-RESUMABLE, WRONG, BROKEN, UNKNOWN or SECURITY.

    Raises:
        CheckpointProblem: the path cannot be opened at all.
    """
    from ddaudit.cli.checkpoint_audit import audit_path

    return audit_path(str(path), level=level, job=None if job is None else str(job))


def forecast(
    run_dir: PathLike | None = None,
    *,
    to: Sequence[int],
    job: PathLike | None = None,
    parallel: str | None = None,
    hardware: str | None = None,
    scaling: Literal["weak", "strong"] = "weak",
    critical_batch: float | None = None,
) -> ForecastFacts:
    """Predicts step time, speedup, limiter and memory for each number of devices in ``to``: of a job file, else of the
    training that the run measured. ``hardware`` is a description file or the name of one that ships with ddaudit.

    Raises:
        Problem: nothing to forecast or to calibrate from, or a size that makes no sense.
    """
    from ddaudit.forecast.outlook import Question, answer, read_facts
    from ddaudit.job import load_job

    question = Question(tuple(to), parallel, scaling, critical_batch)
    measured = None if run_dir is None else read_facts(Path(run_dir))
    return answer(question, measured, None if job is None else load_job(str(job)), hardware)


def _packs(folders: Sequence[PathLike]) -> Packs:
    from ddaudit.packs import load

    return load([Path(folder) for folder in dict.fromkeys(map(str, folders))])


def _walk(session: Any, settings: Mapping[str, Any], answers: Mapping[str, str], watcher: Watcher | None) -> Run:
    from ddaudit.engine import Options, Settings
    from ddaudit.engine.folder import writing
    from ddaudit.report import write_reports

    with session.walking(Options(Settings(**settings), answers), watcher) as walk:
        record = walk.execute("run")
        with writing(session.run_dir):
            write_reports(record, session.run_dir, ("html", "md"), session.packs.template_folders)
    return Run(record, session.run_dir)
