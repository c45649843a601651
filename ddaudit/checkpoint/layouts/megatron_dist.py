"""Megatron-core dist checkpointing: DCP files plus ``metadata.json`` (written last) and, in older ones, ``common.pt``.

Objects are keyed ``name/shard_<offsets>_<counts>``: the counts say how many must exist.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import dcp, zarr
from ddaudit.checkpoint.layouts.megatron_args import note_args
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion, Position

NAME = "megatron-dist"
_SHARD = re.compile(r"^(?P<base>.+)/shard_(?P<at>[\d.]+)_(?P<of>[\d.]+)$")


def detect(folder: Folder) -> bool:
    """``common.pt`` beside shards, or the backend word in metadata.json, or Megatron's object keys in the metadata."""
    if "common.pt" in folder and (dcp.detect(folder) or zarr.detect(folder)):
        return True
    return "metadata.json" in folder and (dcp.detect(folder) or zarr.detect(folder))


def is_megatron(made: Checkpoint) -> bool:
    """For folders that lost both marker files: object keys that only megatron-core writes."""
    return any(_SHARD.match(name) for name in (*made.values, *made.tensors))


def read(reader: Reader) -> None:
    folder = reader.folder
    backend = None
    if "metadata.json" in folder:
        document = reader.json("metadata.json", "complete.marker-unreadable")
        backend = document.get("sharded_backend") if isinstance(document, dict) else None
    if zarr.detect(folder) or backend == "zarr":
        zarr.read(reader)
    if dcp.detect(folder):
        dcp.read(reader)
    elif backend not in (None, "zarr"):
        dcp._no_metadata(reader, [])
    finish(reader, backend)


def finish(reader: Reader, backend: Any = None) -> None:
    """What Megatron adds to the shards: marker, common state, object counts."""
    folder, made = reader.folder, reader.made
    in_shards = any(n.startswith("common_state") for n in (*made.values, *made.tensors))
    if "common.pt" in folder:
        found = reader.load("common.pt", "")
        state: Any = found.value if found is not None and isinstance(found.value, dict) else {}
        note_args(made, state.get("args"), folder.full("common.pt"))
    elif not in_shards:
        text = "common.pt is missing, and the shards hold no common_state: iteration, arguments and schedule are lost"
        made.fault("complete.file-missing", text, file=folder.full("common.pt"))
    if "metadata.json" not in folder:
        text = "metadata.json is missing: it is written last, so the save did not finish"
        made.fault("complete.marker-missing", text, file=folder.full("metadata.json"), measured=0, limit=1, unit="file")
    else:
        made.completion = Completion(
            proven=made.completion.proven is not False, proof="metadata.json is written last, and it is there"
        )
    kind = made.values.get("content_metadata.distrib_optim_sharding_type")
    made.facts["optimizer_sharding"] = kind.value if kind is not None else None
    _common_in_shards(made)
    _check_objects(made)
    _check_integrity(reader)
    made.facts["homes"] = dict.fromkeys(("step", "schedule"), folder.full("common.pt"))
    made.promises.update({"sampler": "recomputed", "scaler": "unsaved"})
    made.promise_notes["sampler"] = "Megatron continues from consumed_train_samples"


def _common_in_shards(made: Checkpoint) -> None:
    """Newer Megatron keeps the common state as an object in the shards: bring its names to the top."""
    for name in [n for n in made.values if n.startswith("common_state/shard_")]:
        value = made.values.pop(name)
        short = name.split(".", 1)[1] if "." in name.split("/", 1)[1] else name
        short = re.sub(r"^shard_[\d.]+_[\d.]+\.", "", short)
        made.values.setdefault(short, value)
    args = {n.removeprefix("args."): v.value for n, v in made.values.items() if n.startswith("args.")}
    if args and not made.positions:
        note_args(made, args, "common_state")


def _check_objects(made: Checkpoint) -> None:
    """All prod(counts) objects of ``name/shard_*_<counts>`` exist."""
    groups: dict[tuple[str, str], set[str]] = {}
    for name in (*made.values, *made.tensors):
        match = _SHARD.match(name) or _SHARD.match(re.sub(r"(/shard_[\d.]+_[\d.]*\d)\..*$", r"\1", name))
        if match:
            groups.setdefault((match["base"], match["of"]), set()).add(match["at"])
    for (base, counts), have in groups.items():
        numbers = [int(n) for n in counts.split(".") if n][:16]
        need = prod(numbers)
        if len(have) < need and need < 10_000_000:
            text = f"{base}: {len(have)} of {need} objects are there"
            kind = "rng.incomplete" if "rng" in base else "complete.object-missing"
            made.fault(kind, text, key=base, measured=len(have), limit=need, unit="object")
        elif base.endswith("rng_state") and made.facts.get("megatron_ep", 1) > 1 and need < made.facts["megatron_ep"]:
            text = (
                f"{base}: {need} RNG streams for expert parallelism {made.facts['megatron_ep']}: experts share a stream"
            )
            made.fault("rng.collapsed", text, key=base, measured=need, limit=made.facts["megatron_ep"])


def _check_integrity(reader: Reader) -> None:
    """``integrity.json`` (sha256 of files) is noted for the full pass."""
    if "integrity.json" in reader.folder:
        document = reader.json("integrity.json", "integrity.unreadable")
        files = document.get("files") if isinstance(document, dict) else None
        if isinstance(files, dict) and document.get("algorithm") == "sha256":
            reader.made.facts["sha256"] = {reader.folder.full(str(k)): str(v) for k, v in files.items()}


__all__ = ["NAME", "Position", "detect", "finish", "is_megatron", "read"]
