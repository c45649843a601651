"""MosaicML Composer: ``epE-baB-rankR.pt`` files, ``latest-rankR.pt`` links, or a sharded DCP folder."""

from __future__ import annotations

import re
from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import dcp
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion, Position, StepValue

NAME = "composer"
_FILE = re.compile(r"^(?:ep(\d+)-ba(\d+)|latest)-rank(\d+)\.pt$")
_FOLDER = re.compile(r"^ep(\d+)-ba(\d+)$")


def detect(folder: Folder) -> bool:
    return any(_FILE.match(n) for n in folder.here()) or bool(_FOLDER.match(folder.name) and dcp.detect(folder)) or (
        "composer_metadata.json" in folder
    )  # fmt: skip


def read(reader: Reader, only: str | None = None) -> None:
    folder, made = reader.folder, reader.made
    if dcp.detect(folder) and only is None:
        dcp.read(reader)
    files = [only] if only else _newest(folder)
    for name in files:
        match = _FILE.match(name)
        rank = int(match[3]) if match else 0
        reader.load(name, f"rank{rank}" if rank else "", rank)
    if files:
        made.completion = Completion(proven=True, proof="a monolithic file is rank 0's whole state")
    for part in ("model", "optim"):
        sub = folder.sub(part)
        if dcp.detect(sub):
            dcp.read(reader.sub(part), "model." if part == "model" else "optimizer.")
    _facts(made)


def _newest(folder: Folder) -> list[str]:
    """Files of the highest (epoch, batch); ``latest-*`` only when nothing else is there."""
    numbered = [(int(m[1]), int(m[2]), n) for n in folder.here() if (m := _FILE.match(n)) and m[1]]
    if numbered:
        best = max(numbered)[:2]
        return [n for e, b, n in numbered if (e, b) == best]
    return [n for n in folder.here() if _FILE.match(n)]


def _facts(made: Checkpoint) -> None:
    """timestamp, dataset_state, metadata.world_size, and rng as a list indexed by rank."""
    flat = dict(made.values)
    batch = _count(flat, "state.timestamp", "batch")
    sample = _count(flat, "state.timestamp", "sample")
    if batch is not None:
        made.steps.append(StepValue(name="state.timestamp.batch", value=batch, unit="update", main=True))
    if sample is not None:
        made.steps.append(StepValue(name="state.timestamp.sample", value=sample, unit="sample"))
        in_epoch = _count(flat, "state.timestamp", "sample_in_epoch")
        made.positions.append(
            Position(name="state.timestamp.sample", scope="global", samples=sample, seed=True, kind="consumed")
        )
        made.extra_areas.setdefault("sampler", []).append("state.timestamp")
        made.facts["sample_in_epoch"] = in_epoch
    for name, fact in (("world_size", "ranks"), ("train_dataloader_batch_size", "micro_batch_local")):
        value = next((v.value for n, v in flat.items() if n.endswith(f"metadata.{name}")), None)
        made.know(fact, value, f"state.metadata.{name}")
    made.promises.update({"sampler": "expected", "scaler": "unsaved"})
    ranks = {int(m[1]) for n in (*made.values, *made.tensors) if (m := re.match(r"^rng\.(\d+)\.", n))}
    world = made.world.get("ranks", (0, ""))[0]
    if ranks and world and len(ranks) < world:
        lost = sorted(set(range(world)) - ranks)[:5]
        text = f"rng holds {len(ranks)} of {world} ranks; the first without is {lost[0] if lost else '?'}"
        made.fault("rng.incomplete", text, key="rng", measured=len(ranks), limit=world, unit="rank")


def _count(flat: dict[str, Any], head: str, word: str) -> int | None:
    for name in (
        f"{head}.Timestamp.{word}",
        f"{head}.{word}",
        f"{head}.Timestamp.{word}.value",
        f"{head}.{word}.value",
    ):
        value = flat.get(name)
        if value is not None and type(value.value) is int:
            return int(value.value)
        if value is not None and isinstance(value.value, str) and (m := re.match(r"^(\d{1,18})", value.value)):
            return int(m[1])
    return None
