"""Checkpoints as they pass: what was saved where, with a digest by which a later run recognises it."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ddaudit.watch.fingerprint import hash_bytes, tensors

__all__ = ["contents", "file_digest", "noted", "optimizer_steps", "state_digest"]

#: A file up to this size is hashed whole; of a larger one, its ends and its size.
WHOLE_BYTES = 64 << 20
PART_BYTES = 4 << 20
MAX_KEYS = 64
#: Elements of optimizer state up to which it is digested at saves and at the first update.
MAX_STATE = 1 << 28


def file_digest(path: Path) -> str | None:
    """Hash of a checkpoint file (or, for a folder, of its metadata file); None where it cannot be read."""
    if path.is_dir():
        parts = [p for p in (path / ".metadata", *sorted(path.glob("*.distcp"))[:1]) if p.is_file()]
        found = [d for p in parts if (d := file_digest(p)) is not None]
        return "+".join(found) or None
    target = path
    try:
        size = target.stat().st_size
        with target.open("rb") as file:
            if size <= WHOLE_BYTES:
                return _digest_of(file.read())
            head = file.read(PART_BYTES)
            file.seek(-PART_BYTES, os.SEEK_END)
            return f"{hash_bytes(head, file.read()):x}-{size}"
    except OSError:
        return None


def _digest_of(data: bytes) -> str:
    return f"{hash_bytes(data):x}-{len(data)}"


def contents(item: Any) -> dict[str, Any]:
    """What a saved or loaded object holds: areas of training state, whole numbers by key, and keys."""
    areas: set[str] = set()
    numbers: dict[str, int] = {}
    _walk(item, "", areas, numbers, 0)
    keys = [str(k)[:80] for k in list(item)[:MAX_KEYS]] if isinstance(item, Mapping) else []
    return {"areas": sorted(areas), "numbers": numbers, "keys": keys}


def _walk(item: Any, name: str, areas: set[str], numbers: dict[str, int], depth: int) -> None:
    word = name.rpartition(".")[2].lower()
    if "rng" in word or "random" in word:
        areas.add("rng")
    if isinstance(item, Tensor) and any(p.is_shard() for p in getattr(item, "placements", ())):
        areas.add("optimizer-shards" if "optim" in name.lower() or ".state." in f".{name}." else "model-shards")
    if isinstance(item, Tensor) and item.dim() > 0 and item.dtype.is_floating_point and "optim" not in name.lower():
        areas.add("model")
    if isinstance(item, int) and not isinstance(item, bool) and len(numbers) < MAX_KEYS and abs(item) < 1 << 53:
        numbers[name] = item
    if isinstance(item, list | tuple) and depth < 4:
        for part in item[:16]:
            _walk(part, name, areas, numbers if isinstance(part, Mapping) else {}, depth + 1)
    if not isinstance(item, Mapping) or depth > 3:
        return
    kind = _kind(item, word)
    if kind:
        areas.add(kind)
    if kind in ("optimizer", "scheduler", "scaler"):
        numbers.update({f"{name}.{k}": v for k, v in item.items() if k in ("last_epoch", "_step_count")})
        states = list(item["state"].values())[:1] if isinstance(item.get("state"), Mapping) else []
        for value in (v for s in states if isinstance(s, Mapping) for v in s.values()):
            _walk(value, f"{name}.optim.state", areas, {}, 9)
        return
    for key in list(item)[:512]:
        _walk(item[key], f"{name}.{key}" if name else str(key), areas, numbers, depth + 1)


def _kind(item: Mapping[Any, Any], word: str) -> str | None:
    if "param_groups" in item and "state" in item:
        return "optimizer"
    if "last_epoch" in item or "_last_lr" in item:
        return "scheduler"
    if "scale" in item and "growth_factor" in item:
        return "scaler"
    if any(w in word for w in ("sampler", "loader", "data_state", "dataset")):
        return "sampler"
    return None


def noted(action: str, target: Any, item: Any, recorder: Any, seconds: float) -> dict[str, Any] | None:
    """The record of one save or load; None for buffers, which are no checkpoints."""
    inside = contents(item)
    digest: str | None
    if isinstance(target, str | os.PathLike):
        path = Path(target).absolute()
        digest = file_digest(path)
    elif (name := getattr(target, "name", None)) and isinstance(name, str):
        path = Path(name).absolute()
        digest = file_digest(path)
    elif isinstance(target, io.BytesIO) and "model" in inside["areas"] and len(inside["keys"]) > 1:
        # Frameworks that write to object stores save to memory first.
        path, digest = Path("memory"), _digest_of(target.getvalue())
    else:
        return None
    primary = recorder.primary
    done = sorted({s for w in recorder.windows.values() if (s := optimizer_steps(w.optimizer)) is not None})
    return {
        "action": action,
        "path": str(path),
        "real": os.path.realpath(path),
        "digest": digest,
        "t": time.time(),
        "update": 0 if primary is None else primary.updates,
        "optimizer_steps": done,
        "lr": None if primary is None else float(primary.optimizer.param_groups[0].get("lr", "nan")),
        "state": None if primary is None else state_digest(primary.optimizer, recorder.models.names()),
        "seconds": seconds,
        **inside,
    }


def state_digest(optimizer: Any, names: Mapping[int, str]) -> int | None:
    """Digest of the state that an optimizer keeps for its parameters, in the order of their ``names`` in the model: the
    same moments on other parameters are another state. None where it keeps none.

    Counts of steps are left out: they are compared as numbers."""
    found = []
    for parameter in sorted(
        (p for g in optimizer.param_groups for p in g["params"]), key=lambda p: names.get(id(p), "")
    ):
        state = optimizer.state.get(parameter, {})
        found += [v for k, v in sorted(state.items()) if isinstance(v, Tensor) and v.dim() > 0]
    return tensors(found) if found and sum(t.numel() for t in found) <= MAX_STATE else None


def optimizer_steps(optimizer: Any) -> int | None:
    """The optimizer's own step count, where it keeps one."""
    for state in optimizer.state.values():
        step = state.get("step") if isinstance(state, Mapping) else None
        if step is not None:
            return int(step)
    return None
