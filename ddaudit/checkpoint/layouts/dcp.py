"""PyTorch DCP: ``.metadata`` (one pickle) plus ``__R_N.distcp`` files in which every item is an archive of its own.

The metadata says which box of which tensor lies at which range of which file. Byte items (everything that is no
tensor) are archives too. Files written by ranks that had nothing to write are empty and unreferenced: that is normal.
"""

from __future__ import annotations

import re
from array import array
from functools import lru_cache
from typing import Any

from ddaudit.checkpoint.boxes import cover
from ddaudit.checkpoint.flatten import add_tree
from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts.dcp_items import Item, Ranges, Stored, check_ranges
from ddaudit.checkpoint.layouts.dcp_metadata import Box, Index, Info, Metadata, TensorMeta, meanings
from ddaudit.checkpoint.model import Checkpoint, Tensor
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion
from ddaudit.inert import Malformed, PickleLimits
from ddaudit.inert.torch_objects import dtype_name

NAME = "dcp"
METADATA = ".metadata"
_FILE = re.compile(r"^__(\d+)_(\d+)\.distcp$")
_LIMITS = PickleLimits(max_bytes=4 << 30, max_containers=64_000_000, bytes_per_container=4, max_seconds=600.0)


def detect(folder: Folder) -> bool:
    return METADATA in folder or any(_FILE.match(n) or _is_rank_metadata(n) for n in folder.here())


def _is_rank_metadata(name: str) -> bool:
    return bool(re.match(r"^__\d+\.metadata$", name))


def read(reader: Reader, prefix: str = "") -> None:
    """Reads the metadata, checks its geometry, then adds tensors and byte items under ``prefix``."""
    folder, made = reader.folder, reader.made
    data_files = sorted(n for n in folder.here() if _FILE.match(n))
    metas = [METADATA] if METADATA in folder else sorted(n for n in folder.here() if _is_rank_metadata(n))
    if not metas:
        _no_metadata(reader, data_files)
        return
    used: Ranges = {}
    for meta in metas:
        metadata = _read_metadata(reader, meta)
        if metadata is not None:
            _add_items(reader, metadata, prefix, used)
            made.facts.setdefault("dcp", {})[folder.full(meta)] = {
                "save_id": metadata.save_id,
                "version": metadata.version,
            }
    check_ranges(reader, used)
    _check_files(reader, data_files, used)
    readable = not any(f.file == folder.full(m) for f in made.faults for m in metas)
    if readable:
        proof = f"{metas[0]} is written last and names {len(used)} data files"
        made.completion = Completion(proven=True, proof=proof)


def _no_metadata(reader: Reader, data_files: list[str]) -> None:
    folder = reader.folder
    left = [n for n in folder.here() if n.endswith(".metadata.tmp")]
    if left:
        text = f"{left[0]} was never renamed to {METADATA}: the save stopped in its last step"
        reader.made.fault("complete.metadata-temporary", text, file=folder.full(left[0]))
    text = (
        f"{len(data_files)} data files but no {METADATA}: the save did not finish, or the metadata lies on another node"
    )
    reader.made.fault("complete.metadata-missing", text, file=folder.full(METADATA), measured=0, limit=1, unit="file")
    reader.made.completion = Completion(proven=False, proof=f"{METADATA} is missing")


def _read_metadata(reader: Reader, name: str) -> Metadata | None:
    source = reader.open(name)
    if source is None:
        return None
    try:
        raw = source.read(0, source.size)
    except Malformed as error:
        reader.made.fault("file.unreadable", f"{name}: {error}", file=reader.folder.full(name))
        return None
    result = reader.pickle_in(raw, reader.folder.full(name), meanings(), _LIMITS)
    if result is None:
        return None
    if not isinstance(result.value, Metadata) or not isinstance(result.value.tensors, dict):
        reader.made.fault("dcp.metadata", f"{name} holds no checkpoint metadata", file=reader.folder.full(name))
        return None
    return result.value


def _add_items(reader: Reader, metadata: Metadata, prefix: str, used: Ranges) -> None:
    """Joins ``storage_data`` with ``state_dict_metadata``, and adds what both agree on."""
    places: dict[str, dict[tuple[int, ...] | None, Info]] = {}
    storage = metadata.storage if isinstance(metadata.storage, dict) else {}
    while storage:
        index, info = storage.popitem()
        if not isinstance(index, Index) or not isinstance(info, Info) or not info.valid:
            reader.made.fault(
                "dcp.storage-entry", f"the metadata holds an invalid storage entry for {_fqn(index)}", key=_fqn(index)
            )
            continue
        places.setdefault(index.fqn, {})[index.offset] = info
        _note_range(used, info)
    for fqn, meta in metadata.tensors.items():
        name = f"{prefix}{fqn}"
        mine = places.pop(str(fqn), {})
        if isinstance(meta, TensorMeta):
            _add_tensor(reader, name, meta, mine)
        else:
            _add_bytes(reader, name, mine)
    for fqn in places:
        reader.made.fault("dcp.storage-orphan", f"{fqn} is stored but not described", key=fqn)


def _fqn(index: Any) -> str:
    return str(getattr(index, "fqn", "?"))[:200]


def _note_range(used: Ranges, info: Info) -> None:
    """Offsets and lengths that no file can have stay impossible when they are cut to what an array holds."""
    limit = (1 << 63) - 1
    used.setdefault(info.path, array("q")).extend(max(-1, min(n, limit)) for n in (info.offset, info.length))


def _add_tensor(reader: Reader, name: str, meta: TensorMeta, places: dict[Any, Info]) -> None:
    made = reader.made
    dtype = dtype_name(meta.dtype)
    if dtype is None or not meta.valid:
        made.fault("dcp.tensor-entry", f"{name} has no valid dtype, size or chunks in the metadata", tensor=name)
        return
    tensor = Tensor(name, dtype, meta.size, file=reader.folder.full(METADATA))
    stored = Stored(reader, name, dtype)
    for box in meta.chunks:
        info = places.pop(box.offsets, None) or (places.pop(None, None) if len(meta.chunks) == 1 else None)
        if info is None:
            text = f"{name}: the chunk at {list(box.offsets)} is described but stored nowhere"
            made.fault("shard.not-stored", text, tensor=name, key=str(list(box.offsets)))
            continue
        tensor.chunks.append(Item(stored, box, _full(reader.folder.prefix, info.path), info, _rank_of(info.path)))
    for info in places.values():
        text = f"{name}: {info.path} stores a chunk that the metadata does not describe"
        made.fault("dcp.storage-orphan", text, tensor=name, file=reader.folder.full(info.path))
    check_cover(made, tensor, [(b.offsets, b.sizes) for b in meta.chunks])
    meta.chunks = []  # a million boxes are not needed twice
    made.add_tensor(tensor)


def check_cover(made: Checkpoint, tensor: Tensor, boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Notes boxes that leave holes, overlap, or reach beyond the tensor."""
    found = cover(tensor.shape, boxes)
    name, shape = tensor.name, list(tensor.shape)
    if found.malformed is not None or found.outside is not None:
        bad = boxes[found.malformed if found.malformed is not None else found.outside or 0]
        text = f"{name} {shape}: the chunk at {list(bad[0])} of size {list(bad[1])} does not lie inside the tensor"
        made.fault("shard.out-of-bounds", text, tensor=name, file=tensor.file, key=str(list(bad[0])))
    elif found.overlap is not None:
        one, two = (boxes[i] for i in found.overlap)
        text = f"{name} {shape}: the chunks at {list(one[0])} and {list(two[0])} overlap"
        made.fault(
            "shard.overlap",
            text,
            tensor=name,
            file=tensor.file,
            measured=found.volume,
            limit=found.size,
            unit="element",
        )
    elif found.volume < found.size:
        missing = found.size - found.volume
        text = (
            f"{name} {shape}: chunks cover {found.volume:,} of {found.size:,} "
            f"elements, the hole begins at {list(found.hole or ())}"
        )
        made.fault(
            "shard.hole",
            text,
            tensor=name,
            file=tensor.file,
            measured=missing,
            limit=0,
            unit="element",
            key=str(list(found.hole or ())),
        )
    elif found.unchecked:
        made.fault(
            "shard.unchecked", f"{name}: too many irregular chunks to test for overlaps", tensor=name, file=tensor.file
        )


def _add_bytes(reader: Reader, name: str, places: dict[Any, Info]) -> None:
    made = reader.made
    if not places:
        made.fault("shard.not-stored", f"{name} is described but stored nowhere", key=name)
        return
    info = next(iter(places.values()))
    file = reader.folder.full(info.path)
    try:
        window = reader.folder.source(info.path).window(info.offset, info.length)
    except Malformed:
        return  # check_ranges says what is wrong with the file
    if info.transforms:
        made.fault("dcp.transform", f"{name} is stored through {info.transforms}", key=name, file=file)
        return
    found = reader.torch_in(window, file, name)
    if found is not None:
        add_tree(reader, found.value, found, window, name, file)  # who wrote it says nothing about whose it is


@lru_cache(maxsize=65_536)
def _full(prefix: str, path: str) -> str:
    """The file's name below the root, one string for all items in it."""
    return prefix + path


@lru_cache(maxsize=65_536)
def _rank_of(path: str) -> int | None:
    match = _FILE.match(path)
    return int(match[1]) if match else None


def _check_files(reader: Reader, data_files: list[str], used: Ranges) -> None:
    """Data files that the metadata does not name: leftovers of a save with more ranks, unless they are empty."""
    folder, made = reader.folder, reader.made
    for name in data_files:
        if name not in used and folder.size(name):
            text = f"{name} ({folder.size(name):,} bytes) is not part of this save: an earlier one had more ranks"
            made.fault(
                "file.orphan",
                text,
                file=folder.full(name),
                rank=_rank_of(name),
                measured=folder.size(name),
                unit="byte",
            )
    for name in folder.here():
        if name.endswith(".metadata.tmp"):
            text = f"{name} is left over beside a finished {METADATA}: a later save was interrupted"
            made.fault("complete.metadata-temporary", text, file=folder.full(name))
    ranks = [r for r in (_rank_of(n) for n in (set(data_files) | set(used))) if r is not None]
    if ranks:
        made.facts["dcp_writers"] = max(ranks) + 1


__all__ = ["NAME", "Box", "check_cover", "detect", "read"]
