"""NeMo 2: ``<name>/weights/`` (a Megatron-core dist checkpoint) and ``<name>/context/``; ``<name>-unfinished`` beside
it
while it is written or deleted."""

from __future__ import annotations

import re

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import dcp, megatron_dist, zarr
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Position

NAME = "nemo"
_STEP = re.compile(r"step=(\d+)")
_CONSUMED = re.compile(r"consumed_samples=(\d+)(?:\.0)?")


def detect(folder: Folder) -> bool:
    weights = folder.sub("weights")
    return "weights" in folder.folders() and (dcp.detect(weights) or zarr.detect(weights) or "metadata.json" in weights)


def read(reader: Reader) -> None:
    folder, made = reader.folder, reader.made
    megatron_dist.read(reader.sub("weights"))
    if "context" not in folder.folders():
        text = "context/ is missing: the model's configuration and tokenizer were not saved"
        made.fault("complete.optional-missing", text, file=folder.full("context"))
    match, consumed = _STEP.search(folder.name), _CONSUMED.search(folder.name)
    if match:
        made.directory_step = int(match[1])
    if consumed and not made.positions:
        samples = int(consumed[1])
        made.positions.append(
            Position(name="folder name", scope="global", samples=samples, file=folder.name, kind="consumed")
        )
        made.extra_areas.setdefault("sampler", []).append("consumed_samples in the folder's name")
    made.facts["directory_step_slack"] = 1
