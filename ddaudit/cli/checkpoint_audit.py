"""Collects, judges and sums up one checkpoint: what ``checkpoint audit`` prints, as an object."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddaudit.errors import Exit, Problem, UsageProblem
from ddaudit.findings import Finding, Status, Verdict

if TYPE_CHECKING:
    from ddaudit.checkpoint.collect import Options
    from ddaudit.checkpoint.passes import Progress
    from ddaudit.engine.waivers import Waivers
    from ddaudit.evidence.checkpoint import CheckpointFacts
    from ddaudit.record import Record

__all__ = ["AuditResult", "audit_path", "main", "make_manifest"]

#: Processes, tensor-parallel and pipeline-parallel size of a job.
Target = tuple[int | None, int | None, int | None]
_JOB_FACTS = {"micro_batch": "micro_batch", "accumulation": "accumulation", "global_batch": "global_batch",
              "dataset_samples": "dataset", "dp": "dp", "world_size": "ranks"}  # fmt: skip


@dataclass(frozen=True)
class AuditResult:
    """Facts, findings in the order of the checks, and the words they add up to."""

    facts: CheckpointFacts
    findings: tuple[Finding, ...]
    word: str
    areas: dict[str, str]
    seconds: float

    @property
    def exit(self) -> Exit:
        bad = ("NOT-RESUMABLE", "WRONG", "BROKEN", "SECURITY")
        return Exit.FAIL if self.word in bad else Exit.INCONCLUSIVE if self.word == "UNKNOWN" else Exit.PASS

    @property
    def verdict(self) -> Verdict:
        words = {"OK": Verdict.PASS, "DEGRADED": Verdict.WARN, "UNKNOWN": Verdict.INCONCLUSIVE}
        return words.get(self.word, Verdict.FAIL)

    @property
    def global_step(self) -> int | float | None:
        value = next((s.value for s in self.facts.steps if s.main), None)
        return int(value) if value is not None and value == int(value) else value

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        from ddaudit.report.envelope import envelope

        return envelope(self.record())

    def record(self) -> Record:
        """The record that reports are drawn from."""
        from ddaudit import __version__
        from ddaudit.record import Record, answers

        facts = self.facts
        checkpoint = {
            "verdict": self.word, "layout": facts.layout, "path": facts.path, "selected": facts.selected, "level":
            facts.level,
            "purpose": facts.purpose, "global_step": self.global_step, "world_size": facts.world.ranks,
            "completeness": facts.completion.model_dump(), "areas": self.areas, "files": facts.files, "bytes":
            facts.bytes,
            "tensors": facts.tensors, "bytes_read": facts.bytes_read, "crcs_checked": facts.crcs_checked,
            "world": facts.world.model_dump(), "steps": [s.model_dump() for s in facts.steps if not s.tensor_of][:100],
            "siblings": [s.model_dump() for s in facts.siblings], "pointers": [p.model_dump() for p in facts.pointers],
            "coverage": facts.coverage(),
        }  # fmt: skip
        return Record(
            ddaudit_version=__version__, command="checkpoint audit", run_id="", created=time.time(),
            seconds=self.seconds,
            findings=self.findings, questions=answers(self.findings, {}), verdict=self.verdict,
            exit_code=int(self.exit),
            complete=True, extra={"checkpoint": checkpoint},
        )  # fmt: skip


def audit_path(
    path: str, *, level: str = "full", job: str | None = None, target: Target = (None, None, None),
    jobs: int = 1, progress: Progress | None = None, waivers: Waivers | None = None, resume: str | None = None,
) -> AuditResult:  # fmt: skip
    """Audits the checkpoint at ``path``. ``target`` is (processes, tp, pp) of the job that will resume. What
    ``waivers`` cover counts as OK. ``resume`` is the journal of a full audit that was interrupted.

    Raises:
        CheckpointProblem: the path cannot be opened at all.
    """
    from ddaudit.checkpoint.collect import Options, collect

    begin = time.perf_counter()
    options = Options(level=level, jobs=jobs, progress=progress, target=_target(target), job=_job(job))  # type: ignore[arg-type]
    with _journal(path, resume if level == "full" else None, options):
        collected = collect(path, options)
    collected.folder.close()
    findings = tuple(judge_facts(collected.facts))
    if waivers is not None:
        findings = waivers.apply(findings)
    about = tuple(waivers.report(findings)) if waivers is not None else ()
    from ddaudit.evidence.checkpoint_words import overall

    told = (*findings, *about)
    return AuditResult(collected.facts, told, overall(findings), _areas(findings), time.perf_counter() - begin)


def judge_facts(facts: CheckpointFacts) -> list[Finding]:
    """Asks every built-in checkpoint check."""
    from ddaudit import packs
    from ddaudit.engine.judge import judge
    from ddaudit.runbook.model import PlannedStep

    loaded = packs.load(entries=False, environment=False, parts=("checks",), files="checkpoint*.py")
    if loaded.failures:
        raise Problem(f"the checkpoint checks do not load: {loaded.failures[0].error}", where=loaded.failures[0].file)
    step = PlannedStep(id="audit", title="audit", source="checkpoint audit", runbook="")
    specs = [s for s in loaded.registry.checks.values() if any(n.type.kind == facts.kind for n in s.needs.values())]
    found = [f for spec in specs for f in judge(spec, {facts.kind: facts}, step=step)]
    return [f.model_copy(update={"evidence": None, "step": None}) for f in found]


def _areas(findings: Sequence[Finding]) -> dict[str, str]:
    """The worst word of each check, by the check's last word ("optimizer", "sampler" ...)."""
    from ddaudit.evidence.checkpoint_words import WORDS, word_of

    areas: dict[str, str] = {}
    for finding in findings:
        area, word = finding.check.rpartition(".")[2], word_of(finding)
        if finding.status is Status.ERROR:
            word = "UNKNOWN"
        areas[area] = max(areas.get(area, "OK"), word, key=WORDS.index)
    return areas


def _target(target: Target) -> Any:
    """Data-parallel ranks are what is left of the processes after tensor and pipeline parallelism."""
    from ddaudit.evidence.checkpoint import World

    ranks, tp, pp = target
    if ranks is None:
        return None
    group = (tp or 1) * (pp or 1)
    if ranks % group:
        raise UsageProblem(f"{ranks} processes do not divide by tp {tp or 1} x pp {pp or 1}", expected="a multiple")
    return World(ranks=ranks, dp=ranks // group, tp=tp, pp=pp)


def _job(path: str | None) -> dict[str, tuple[int, str]]:
    if path is None:
        return {}
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageProblem(f"is no job file: {error}", where=path) from None
    flat = {**table, **{k: v for part in table.values() if isinstance(part, dict) for k, v in part.items()}}
    return {fact: (flat[key], f"{key} in {path}") for key, fact in _JOB_FACTS.items() if type(flat.get(key)) is int}


@contextmanager
def _journal(path: str, file: str | None, options: Options) -> Iterator[None]:
    """Takes what an interrupted pass over these very files (names, sizes, times) left in ``file``, and notes there what
    this one finishes; without a file, nothing."""
    if file is None:
        yield
        return
    from ddaudit.checkpoint.folder import open_folder
    from ddaudit.checkpoint.manifest import Journal

    listing = open_folder(path)[0].listing
    stamp = "|".join(f"{n}:{s}:{listing.mtimes.get(n, 0)}" for n, s in sorted(listing.sizes.items()))
    journal = Journal(Path(file), stamp)
    options.known, options.done = journal.known, journal.add
    finished = False
    try:
        yield
        finished = True
    finally:
        journal.close(finished=finished)


def make_manifest(
    path: str, jobs: int, resume: str | None, progress: Progress | None
) -> tuple[dict[str, Any], list[str]]:
    """The manifest of a checkpoint, and what in it could not be read."""
    from ddaudit.checkpoint.collect import Options, collect
    from ddaudit.checkpoint.manifest import manifest_of

    options = Options(level="full", jobs=jobs, digest=True, progress=progress)
    with _journal(path, resume, options):
        collected = collect(path, options)
    collected.folder.close()
    made = manifest_of(collected)
    unread = [n for n, t in made["tensors"].items() if t["digest"] is None and t["dtype"] != "?"]
    faults = [
        f.text
        for f in collected.facts.faults
        if f.kind.startswith(("file.", "container.", "complete.", "shard.")) and unread
    ]
    return made, faults


def main(argv: Sequence[str]) -> int:
    """``python -m ddaudit.cli.checkpoint``: the same group, with the front door's exit codes."""
    from ddaudit.cli.main import COMMANDS
    from ddaudit.cli.main import main as front

    COMMANDS.setdefault("checkpoint", ("ddaudit.cli.checkpoint", "Audit, show, compare and verify checkpoints."))
    words = list(argv)
    return front(words if words[:1] == ["checkpoint"] else ["checkpoint", *words])
