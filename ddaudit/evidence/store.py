"""Evidence on disk: events are the source, ``evidence.h5`` is derived from them and can always be made again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ddaudit.errors import EvidenceProblem
from ddaudit.evidence.base import Array, Evidence
from ddaudit.evidence.events import read_streams
from ddaudit.jsonio import dumps

__all__ = ["StepEvidence", "h5_intact", "load_events", "read_h5", "write_h5"]

#: Evidence of one step by kind.
StepEvidence = dict[str, Evidence]
H5_NAME = "evidence.h5"
FORMAT = "ddaudit-evidence/1"


def load_events(run_dir: Path, step: str, kinds: Iterable[type[Evidence]]) -> StepEvidence:
    """Assembles every kind that the step's event files hold something of."""
    streams = read_streams(run_dir / "events" / step)
    found = ((kind.kind, kind.assemble(streams)) for kind in kinds)
    return {name: evidence for name, evidence in found if evidence is not None}


def write_h5(run_dir: Path, steps: Mapping[str, StepEvidence]) -> Path:
    """Replaces ``evidence.h5``: ``/steps/<step>/<kind>`` groups with a ``facts`` JSON string and one dataset an array,
    with ``unit`` and ``axes`` attributes. Written beside and renamed, so a reader never sees half a file."""
    import h5py

    path = run_dir / H5_NAME
    temporary = run_dir / f".{H5_NAME}.{os.getpid()}.tmp"
    try:
        with h5py.File(temporary, "w") as file:
            file.attrs["format"] = FORMAT
            for step, evidence in steps.items():
                for kind, item in evidence.items():
                    _write_group(file.create_group(f"steps/{step}/{kind}"), item)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _write_group(group: Any, evidence: Evidence) -> None:
    facts, arrays = evidence.dump()
    group.create_dataset("facts", data=dumps(facts))
    for name, array in arrays.items():
        # Trained numbers do not compress; a checksum tells damage.
        checked = {"chunks": True, "fletcher32": True} if array.values.size > 64 else {}
        dataset = group.create_dataset(f"arrays/{name}", data=array.values, **checked)
        dataset.attrs["unit"] = array.unit
        dataset.attrs["axes"] = ",".join(array.axes)


def read_h5(run_dir: Path, kinds: Iterable[type[Evidence]]) -> dict[str, StepEvidence]:
    """Reads ``evidence.h5`` back.

    Raises:
        EvidenceProblem: missing, truncated, or not ours.
    """
    import h5py

    path = run_dir / H5_NAME
    by_name = {kind.kind: kind for kind in kinds}
    try:
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") != FORMAT:
                raise EvidenceProblem(f"format {file.attrs.get('format')!r}", where=str(path), expected=FORMAT)
            return {
                step: {name: _read_group(group, by_name[name]) for name, group in kinds_.items() if name in by_name}
                for step, kinds_ in file.get("steps", {}).items()
            }
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise EvidenceProblem(f"unreadable ({error})", where=str(path), fix="`ddaudit report` rebuilds it") from None


def _read_group(group: Any, kind: type[Evidence]) -> Evidence:
    facts = json.loads(group["facts"][()])
    arrays: dict[str, Array] = {}

    def visit(name: str, item: Any) -> None:
        if "unit" in item.attrs:
            axes = tuple(a for a in str(item.attrs["axes"]).split(",") if a)
            arrays[name] = Array(item[()], str(item.attrs["unit"]), axes)

    if "arrays" in group:
        group["arrays"].visititems(visit)
    return kind.restore(facts, arrays)


def h5_intact(run_dir: Path, size: int | None) -> bool:
    """True when ``evidence.h5`` has the size that the record noted; tells damage without importing h5py."""
    path = run_dir / H5_NAME
    return size is not None and path.is_file() and path.stat().st_size == size
