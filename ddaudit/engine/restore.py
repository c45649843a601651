"""Bringing a run folder back: read the record when it is whole, make it and ``evidence.h5`` again when it is not."""

from __future__ import annotations

from pathlib import Path

from ddaudit.engine.journal import Judged, file_digest, outcomes_from_disk, read_plan, rebuild, write_evidence
from ddaudit.errors import EvidenceProblem
from ddaudit.packs import Packs
from ddaudit.record import Record, load_record, save_record

__all__ = ["restore"]


def restore(run_dir: Path, packs: Packs, *, rejudge: bool = False) -> tuple[Record, list[str]]:
    """Returns the run's record and notes on what had to be mended.

    Raises:
        EvidenceProblem: neither the record nor plan and events can be read, or the record is of a newer version.
    """
    try:
        record = None if rejudge else load_record(run_dir)
    except EvidenceProblem as problem:
        if not (run_dir / "plan.json").is_file() or "schema 'ddaudit/" in problem.what:
            raise
        record, notes = None, [f"{problem}: rebuilt from the events"]
    else:
        notes = ["judged again"] if rejudge else []
    if record is None or not record.complete:
        record = rebuild(run_dir, packs)
        save_record(record, run_dir)
        return record, notes or ["the run was broken off: finished steps were judged from their events"]
    return record, notes + _mend_evidence(run_dir, record, packs)


def _mend_evidence(run_dir: Path, record: Record, packs: Packs) -> list[str]:
    """Rebuilds ``evidence.h5`` when its bytes are not those that the record noted. h5py is imported only then."""
    path = run_dir / "evidence.h5"
    noted = record.facts.get("evidence_sha256")
    if noted is None or (path.is_file() and file_digest(path) == noted):
        return []
    if record.plan is None or not (run_dir / "events" / "run.jsonl").is_file():
        return ["evidence.h5 is missing or damaged, and the events it came from are not here"]
    plan = read_plan(run_dir)
    write_evidence(run_dir, [Judged(o, ()) for o in outcomes_from_disk(run_dir, plan, packs.registry)])
    return ["evidence.h5 was missing or damaged: rebuilt from the events"]
