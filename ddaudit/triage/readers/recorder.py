"""Flight Recorder dumps, pickled or JSON, NCCL or gloo. The inert reader interprets pickles; nothing loads them.

gloo entries stay ``scheduled`` for ever (only their creation time is recorded), so order and number count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ddaudit.evidence.incident import Collective, Progress
from ddaudit.inert import Malformed, PickleLimits, load
from ddaudit.triage.readers.collect import Gathered, spot

__all__ = ["read_recorder"]

#: A ring of 2,000 entries with 10 frames each pickles to about 2 MB.
MAX_BYTES = 256 << 20
_RANK_IN_NAME = re.compile(r"(?i)(?:rank|trace|dump|fr|_)[_-]?0*(?P<rank>\d+)(?:\.[A-Za-z]\w*){0,2}$")


def read_recorder(raw: bytes, name: str, into: Gathered) -> bool:
    """Adds one dump's entries; False when the bytes are no dump. The rank comes from the dump or the file's name."""
    value = _value(raw)
    if not isinstance(value, Mapping) or not isinstance(value.get("entries"), list):
        return False
    named = _RANK_IN_NAME.search(PurePath(name).name) or _RANK_IN_NAME.search(PurePath(name).parent.name)
    rank = value.get("rank", int(named["rank"]) if named else None)
    if not isinstance(rank, int):
        into.notes.append(f"{name}: Flight Recorder dump of an unknown rank (name it ..._rank_<n>)")
        return True
    groups = value.get("pg_config")
    for config in groups.values() if isinstance(groups, Mapping) else ():
        _members(config, into)
    entries = [e for e in value["entries"] if isinstance(e, Mapping) and not e.get("is_p2p")]
    for entry in entries:
        into.collectives.append(_collective(entry, rank, name))
    _progress(value, rank, name, entries, into)
    into.know(rank)
    return True


def _value(raw: bytes) -> Any:
    if len(raw) > MAX_BYTES:
        return None
    if raw[:1] == b"\x80":
        try:
            return load(raw, limits=PickleLimits(max_bytes=MAX_BYTES))
        except Malformed:
            return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _members(config: Any, into: Gathered) -> None:
    ranks = config.get("ranks") if isinstance(config, Mapping) else None
    numbers = [int(n) for n in re.findall(r"\d+", ranks)] if isinstance(ranks, str) else ranks
    if isinstance(numbers, list) and numbers and all(isinstance(n, int) for n in numbers):
        into.world_sizes[max(numbers) + 1] += 1


def _group(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and group:
        return ":".join(str(g) for g in group)
    return str(group or entry.get("pg_name") or entry.get("pg_id") or "0")


def _numel(sizes: Any) -> int | None:
    """Elements over all tensors of a call; None when the sizes are not as expected."""
    if not isinstance(sizes, (list, tuple)):
        return None
    total = 0
    for shape in sizes:
        if not isinstance(shape, (list, tuple)) or not all(isinstance(n, int) for n in shape):
            return None
        product = 1
        for n in shape:
            product *= n
        total += product
    return total


def _collective(entry: Mapping[str, Any], rank: int, name: str) -> Collective:
    op = str(entry.get("profiling_name", ""))
    seq = entry.get("collective_seq_id")
    frames = tuple(
        f"{f.get('name')} ({f.get('filename')}:{f.get('line')})"
        for f in entry.get("frames") or ()
        if isinstance(f, Mapping)
    )
    state = str(entry.get("state", ""))
    dtype = ",".join(str(d) for d in entry.get("input_dtypes") or ())
    sizes = entry.get("input_sizes")
    text = f"rank {rank} group {_group(entry)} seq {seq} {op} input {sizes} {dtype} state {state}"
    if frames:
        text += f" at {next((f for f in frames if 'torch/' not in f), frames[0])}"
    where = spot(name, int(entry.get("record_id") or 0) + 1, text)
    number = seq if isinstance(seq, int) else -1
    shapes = _numel(sizes), _numel(entry.get("output_sizes"))
    return Collective(rank, _group(entry), number, op.split(":")[-1], *shapes, dtype, state, where, frames)


def _progress(value: Mapping[str, Any], rank: int, name: str, entries: list[Mapping[str, Any]], into: Gathered) -> None:
    status = value.get("pg_status")
    for group, facts in status.items() if isinstance(status, Mapping) else ():
        enqueued = facts.get("last_enqueued_collective") if isinstance(facts, Mapping) else None
        completed = facts.get("last_completed_collective") if isinstance(facts, Mapping) else None
        if isinstance(enqueued, int) and isinstance(completed, int):
            text = f"rank {rank} group {group}: last enqueued {enqueued}, last completed {completed}"
            into.progress.append(Progress(rank, f"fr:{group}", enqueued, completed, spot(name, 1, text)))
