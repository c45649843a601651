"""What DeepSpeed's files say about each other: weights against ``param_shapes``, ranks' partitions against ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ddaudit.checkpoint.blank import strong
from ddaudit.checkpoint.layouts.deepspeed_flat import Shard
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.inert import TensorRef

_MIN_BYTES = 256
_BLOCK_BYTES = 64 << 10


def shapes_of(state: dict[Any, Any]) -> dict[str, Any]:
    """``param_shapes``: one mapping for each parameter group, in order."""
    listed = state.get("param_shapes")
    groups = listed if isinstance(listed, (list, tuple)) else [listed]
    return {str(n): s for group in groups if isinstance(group, dict) for n, s in group.items()}


def check_module(made: Checkpoint, state: dict[Any, Any], full: str, *, whole: bool) -> None:
    """Every parameter that the optimizer partitions is among the weights; ``whole``: with its own shape (ZeRO 1, 2).

    ZeRO-3 leaves placeholders of size 0, and a pipeline keeps its weights in files of their own (module is None).
    """
    module, shapes = state.get("module"), shapes_of(state)
    if not isinstance(module, dict) or not shapes or (module and not set(module) & set(shapes)):
        return
    lost = [n for n in shapes if n not in module]
    if whole:
        lost += [n for n, s in shapes.items() if n in module and getattr(module[n], "shape", s) != tuple(s)]
    if lost:
        text = f"{full}: {lost[0]} is partitioned by the optimizer but not whole in module ({len(lost)} such weights)"
        made.fault("weights.missing", text, file=full, tensor=lost[0], measured=len(lost), limit=0, unit="parameter")


def check_copies(made: Checkpoint, shards: Sequence[Shard]) -> None:
    """Two ranks' partitions with the same bytes, master weights and moments alike: one was written over the other."""
    seen: dict[Any, Shard] = {}
    for shard in shards:
        marks = _marks(shard)
        if marks is None:
            continue
        other = seen.setdefault((shard.mp, marks), shard)
        if other is not shard:
            text = f"{shard.file} holds the very bytes of {other.file}: one rank's partition is lost"
            made.fault("shard.copied", text, file=shard.file, rank=shard.dp)


def check_zeroed(made: Checkpoint, shards: Sequence[Shard]) -> None:
    """A rank's master weights are only zeros although its second moments are not, or those although the first are not:
    they were lost."""
    for shard in shards:
        groups = shard.groups()
        for word, witness in (("fp32", "exp_avg_sq"), ("exp_avg_sq", "exp_avg")):
            for number, ref in groups.get(word, {}).items():
                other = groups.get(witness, {}).get(number)
                if _is_zeros(shard, ref) and other is not None and _is_strong(shard, other, second=word == "fp32"):
                    text = f"{shard.file}: {word} of group {number} is only zeros, its {witness} is not"
                    where = {"file": shard.file, "rank": shard.dp, "key": f"{word}[{number}]"}
                    made.fault("values.zeroed", text, measured=0, unit="element", **where)


def _is_zeros(shard: Shard, ref: TensorRef | None) -> bool | None:
    """Reads until the first byte that is not zero: of a healthy flat buffer one block."""
    if ref is None or ref.storage is None or shard.found is None or shard.source is None or not ref.numel:
        return None
    place = shard.found.storages.get(ref.storage.key)
    if place is None:
        return None
    for at in range(0, place.length, _BLOCK_BYTES):
        raw = shard.source.read(place.offset + at, min(_BLOCK_BYTES, place.length - at))
        if raw.strip(b"\0") and not (ref.dtype == "float32" and not len(raw) % 4 and not _moved(raw)):
            return False
    return True


def _is_strong(shard: Shard, ref: TensorRef, *, second: bool) -> bool:
    """Some number of the flat moment is large enough to have moved a weight, or to have a square."""
    place = shard.found.storages.get(ref.storage.key) if shard.found is not None and ref.storage is not None else None
    if place is None or shard.source is None or ref.dtype != "float32":
        return False
    length = place.length // 4 * 4
    parts = ((at, min(_BLOCK_BYTES, length - at)) for at in range(0, length, _BLOCK_BYTES))
    return any(strong(shard.source.read(place.offset + at, size), "float32", second=second) for at, size in parts)


def _moved(raw: bytes) -> bool:
    """True when a number is neither 0 nor -0."""
    return bool(np.frombuffer(raw, dtype="<f4").any())


def _marks(shard: Shard) -> tuple[tuple[int, int], ...] | None:
    """CRC and length of every flat buffer; None where fewer than two are worth comparing."""
    if shard.found is None:
        return None
    marks = []
    for groups in shard.groups().values():
        for ref in groups.values():
            place = shard.found.storages.get(ref.storage.key) if isinstance(ref, TensorRef) and ref.storage else None
            if place is not None and place.crc and place.length >= _MIN_BYTES:
                marks.append((place.crc, place.length))
    return tuple(marks) if len(set(marks)) > 1 else None


def check_order(made: Checkpoint, order: Sequence[Shard], number: int, shapes: dict[str, Any]) -> None:
    """Partitions follow the order of the parameters: a later rank never begins before an earlier one ends."""
    index = {name: i for i, name in enumerate(shapes)}
    end, before = -1, ""
    for shard in order:
        table = shard.slices[number] if isinstance(shard.slices, list) and len(shard.slices) > number else None
        mine = [index[n] for n in table if n in index] if isinstance(table, dict) else []
        if not mine:
            continue
        if min(mine) < end:
            text = f"{shard.file} holds parameters in front of those of {before}: the ranks' files are exchanged"
            made.fault("shard.exchanged", text, file=shard.file, rank=shard.dp, measured=min(mine), limit=end)
            return
        end, before = max(mine), shard.file
