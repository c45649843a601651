"""Bringing a run folder back: read the record when it is whole, make it and ``evidence.h5`` again when it is not."""

from __future__ import annotations

import os
from pathlib import Path

from ddaudit.engine.adopted import is_adopted, judge_adopted
from ddaudit.engine.folder import in_use, refuse_links, writing
from ddaudit.engine.journal import read_journal
from ddaudit.engine.rebuild import file_digest, judged_from_disk, rebuild, write_evidence
from ddaudit.engine.waivers import Waivers
from ddaudit.errors import EvidenceProblem, LaunchProblem
from ddaudit.launch.spool import lock, recover
from ddaudit.packs import Packs
from ddaudit.record import NewerRecord, Record, load_record, save_record

__all__ = ["restore"]


def restore(
    run_dir: Path, packs: Packs, *, rejudge: bool = False, waivers: Waivers | None = None
) -> tuple[Record, list[str]]:
    """Returns the run's record and notes on what had to be mended. ``waivers`` mean judging again with them.

    Raises:
        EvidenceProblem: neither the record nor plan and events can be read, or the record is of a newer version.
    """
    refuse_links(run_dir)
    notes: list[str] = []
    _recover(run_dir)
    if is_adopted(run_dir):
        # Such a folder is judged anew each time, so there is nothing that --rejudge could add.
        notes.append("judged from what the ranks have recorded by now")
        return _kept(judge_adopted(run_dir, packs, waivers), run_dir, notes)
    try:
        record = load_record(run_dir)
    except NewerRecord:
        raise
    except EvidenceProblem as problem:
        if not (run_dir / "plan.json").is_file():
            raise
        return _rebuilt(run_dir, packs, [f"{problem.where}: {problem.what}: rebuilt from the events"])
    if rejudge or waivers is not None:
        return _rebuilt(run_dir, packs, ["judged again"], waivers)
    if not record.complete:
        going = in_use(run_dir)
        told = "the run goes on" if going else "the run was broken off"
        return _rebuilt(run_dir, packs, [f"{told}: finished steps were judged from their events"])
    return record, notes + _mend_evidence(run_dir, record, packs)


def _recover(run_dir: Path) -> None:
    """Takes in what dead processes of the run left on this host, unless the run goes on or its folder is a copy on a
    read-only medium."""
    try:
        handle = lock(run_dir)
    except OSError:
        return
    recover(run_dir, locked=True)
    os.close(handle)


def _rebuilt(run_dir: Path, packs: Packs, notes: list[str], waivers: Waivers | None = None) -> tuple[Record, list[str]]:
    return _kept(rebuild(run_dir, packs, waivers), run_dir, notes)


def _kept(record: Record, run_dir: Path, notes: list[str]) -> tuple[Record, list[str]]:
    try:
        with writing(run_dir):
            save_record(record, run_dir)
    except LaunchProblem as problem:  # a copy on a read-only medium can be read all the same
        notes.append(f"record.json was not written ({problem.what})")
    return record, notes


def _mend_evidence(run_dir: Path, record: Record, packs: Packs) -> list[str]:
    """Rebuilds ``evidence.h5`` when its bytes are not those that the record noted. h5py is imported only then."""
    path = run_dir / "evidence.h5"
    noted = record.facts.get("evidence_sha256")
    if record.plan is None or (noted is not None and path.is_file() and file_digest(path) == noted):
        return []
    try:
        write_evidence(run_dir, judged_from_disk(run_dir, record.plan, read_journal(run_dir), packs.registry))
    except EvidenceProblem:
        return ["evidence.h5 is missing or damaged, and the events it came from are not here"]
    except LaunchProblem as problem:
        return [f"evidence.h5 is missing or damaged, and cannot be made again here ({problem.what})"]
    return ["evidence.h5 was missing or damaged: rebuilt from the events"]
