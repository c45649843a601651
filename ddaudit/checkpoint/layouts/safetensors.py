"""Safetensors: one file, N-of-M shards with or without an index, and the shards of DCP's HuggingFace writer."""

from __future__ import annotations

import re
from typing import Any

from ddaudit.checkpoint.flatten import add_tree
from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts.dcp import check_cover
from ddaudit.checkpoint.model import Checkpoint, Chunk, Span, Tensor
from ddaudit.checkpoint.reader import SAFETENSORS_DTYPES, Reader
from ddaudit.evidence.checkpoint import Completion
from ddaudit.inert import Malformed, read_json, unsafe_name
from ddaudit.inert.safetensors import SafetensorsHeader

NAME = "safetensors"
_STATES = ("trainer_state.json", "training_state.json", "train_state.json", "state.json", "config.json")
#: What config.json says about the weights themselves.
CONFIG_KEYS = (
    "torch_dtype", "dtype", "tie_word_embeddings", "hidden_size", "n_embd", "d_model", "vocab_size", "embedding_size",
    "word_embed_proj_dim", "num_hidden_layers", "n_layer", "model_type",
)  # fmt: skip
INDEX_SUFFIX = ".safetensors.index.json"
_NUMBERED = re.compile(r"^(.*?)-?(\d{5})-of-(\d{5})\.safetensors$")
_SHARD = re.compile(r"^shard-(\d{5})-model-(\d{5})-of-(\d{5})\.safetensors$")


def detect(folder: Folder) -> bool:
    return any(n.endswith((".safetensors", INDEX_SUFFIX)) for n in folder.here())


def read(reader: Reader, prefix: str = "model.", only: str | None = None) -> None:
    """Reads every safetensors file of the folder; each index is held against what its files contain."""
    folder, made = reader.folder, reader.made
    names = [only] if only else [n for n in folder.here() if n.endswith(".safetensors")]
    shards = [n for n in names if _SHARD.match(n)]
    if shards:
        _read_dcp_shards(reader, shards, prefix)
        names = [n for n in names if n not in shards]
    headers = {name: header for name in names if (header := reader.safetensors(name)) is not None}
    indexes = [n for n in folder.here() if n.endswith(INDEX_SUFFIX)] if only is None else []
    indexed: set[str] = set()
    for index in indexes:
        indexed |= _check_index(reader, index, headers)
    _check_stale(reader, headers, indexed)
    for name, header in headers.items():
        _add(reader, name, header, prefix if not _is_optimizer(name) else "optimizer.", indexed)
    for name in _STATES:
        if name in folder and only is None:
            _read_state(reader, name)
    if "sharded" in folder.folders() and only is None and not shards:
        _check_sharded(reader)
    if indexes and not shards:
        made.completion = Completion(proven=True, proof=f"{indexes[0]} names {len(indexed)} files")
    elif names and not indexes:
        check_numbers(made, names)


def _check_sharded(reader: Reader) -> None:
    """The ranks' shards that consolidation leaves beside its result: their faults count, their tensors repeat."""
    other = Checkpoint("shards")
    sub = Reader(reader.folder.sub("sharded"), other, reader.level)
    if any(_SHARD.match(n) for n in sub.folder.here()):
        read(sub)
        for fault in other.faults:
            reader.made.fault(fault.kind, fault.text, **fault.model_dump(exclude={"kind", "text"}))


def _read_state(reader: Reader, name: str) -> None:
    """A JSON file of counters beside the weights; config.json says dtype and ties."""
    document = reader.json(name)
    if name == "config.json" and isinstance(document, dict):
        reader.made.facts["config"] = {
            k: document[k] for k in CONFIG_KEYS if isinstance(document.get(k), (str, int, bool))
        }
    elif document is not None:
        add_tree(reader, document, None, reader.folder.source(name), "", reader.folder.full(name))


def _is_optimizer(name: str) -> bool:
    return name.startswith(("optimizer", "optim"))


def _add(reader: Reader, name: str, header: SafetensorsHeader, prefix: str, indexed: set[str]) -> None:
    full = reader.folder.full(name)
    for entry in header.entries.values():
        dtype = SAFETENSORS_DTYPES.get(entry.dtype, entry.dtype)
        tensor = Tensor(prefix + entry.name, dtype, entry.shape, file=full)
        if entry.offset + entry.length <= reader.folder.size(name):
            tensor.chunks.append(Chunk((0,) * len(entry.shape), entry.shape, full, Span(full, entry.offset)))
        if tensor.name in reader.made.tensors and indexed and name not in indexed:
            continue  # a stale file beside the indexed set: said once, by _check_stale
        reader.made.add_tensor(tensor)


def _check_index(reader: Reader, index: str, headers: dict[str, SafetensorsHeader]) -> set[str]:
    """Holds weight_map against the files: missing files, tensors that are elsewhere, sizes that do not add up."""
    made, folder = reader.made, reader.folder
    full = folder.full(index)
    document = reader.json(index, "index.malformed")
    table = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(table, dict):
        if document is not None:
            made.fault("index.malformed", f"{index} has no weight_map", file=full)
        return set()
    wanted: dict[str, list[str]] = {}
    for tensor, file in table.items():
        reason = unsafe_name(file)
        if reason:
            made.fault("path.escape", f"{index}: the file name {file!r:.120} {reason}", file=full, tensor=tensor)
        elif isinstance(file, str):
            wanted.setdefault(file, []).append(tensor)
    for file, tensors in wanted.items():
        if file not in folder:
            text = f"{index} names {file} for {len(tensors)} tensors, and it is not there"
            made.fault("complete.file-missing", text, file=folder.full(file), tensor=tensors[0])
        elif file in headers:
            lost = [t for t in tensors if t not in headers[file].entries]
            if lost:
                text = f"{index} says that {lost[0]} is in {file}, which does not hold it ({len(lost)} such tensors)"
                made.fault(
                    "index.mismatch",
                    text,
                    file=folder.full(file),
                    tensor=lost[0],
                    measured=len(lost),
                    limit=0,
                    unit="tensor",
                )
    _check_index_rest(reader, index, document, table, {f: headers[f] for f in wanted if f in headers})
    return set(wanted)


def _check_index_rest(
    reader: Reader, index: str, document: Any, table: dict[str, Any], held: dict[str, SafetensorsHeader]
) -> None:
    made, full = reader.made, reader.folder.full(index)
    extra = [t for header in held.values() for t in header.entries if t not in table]
    if extra:
        text = f"{index} does not mention {extra[0]} ({len(extra)} such tensors)"
        made.fault("index.unlisted", text, file=full, tensor=extra[0], measured=len(extra), limit=0, unit="tensor")
    metadata = document.get("metadata")
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    there = sum(e.length for h in held.values() for e in h.entries.values())
    if isinstance(said, (int, float)) and said != there and not made.left_out.get("complete.file-missing"):
        text = f"{index}: total_size says {int(said):,} bytes, the tensors have {there:,}"
        made.fault("index.total-size", text, file=full, measured=int(said), limit=there, unit="byte")


def _check_stale(reader: Reader, headers: dict[str, SafetensorsHeader], indexed: set[str]) -> None:
    """Weights beside an indexed set: an older save with another number of shards, or a bogus single file."""
    for name in headers:
        if (
            indexed
            and name not in indexed
            and not _is_optimizer(name)
            and (_NUMBERED.match(name) or name == "model.safetensors")
        ):
            text = f"{name} is not in the index: loaders that read every file would mix it in"
            reader.made.fault("file.stale", text, file=reader.folder.full(name))


def check_numbers(made: Checkpoint, names: list[str]) -> None:
    """Without an index, file names may still say how many files there are."""
    groups: dict[tuple[str, int], set[int]] = {}
    for name in names:
        match = _NUMBERED.match(name)
        if match:
            groups.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    if not groups:
        made.completion = Completion(proven=True, proof="a safetensors header describes its whole file")
        return
    for (stem, count), have in groups.items():
        missing = sorted(set(range(1, count + 1)) - have)
        if missing:
            text = f"{stem}: {len(have)} of {count} files are there, number {missing[0]} is missing"
            made.fault(
                "complete.file-missing",
                text,
                file=f"{stem}-{missing[0]:05d}-of-{count:05d}.safetensors",
                measured=len(have),
                limit=count,
            )
    if len({stem for stem, _ in groups}) < len(groups):
        counts = sorted(count for _, count in groups)
        made.fault("file.stale", f"files of two saves lie together: sets of {counts}", measured=len(groups), limit=1)
    most = max(c for _, c in groups)
    if most > 1 and all(stem == "model" for stem, _ in groups):
        text = f"model{INDEX_SUFFIX} is missing: loaders find {most} shards by it"
        made.fault("complete.marker-missing", text, file=f"model{INDEX_SUFFIX}")
    text = f"no index; file names count {max(c for _, c in groups)} files"
    made.completion = Completion(proven=True, proof=text)


def _read_dcp_shards(reader: Reader, names: list[str], prefix: str) -> None:
    """Shards of DCP's HuggingFaceStorageWriter: every file holds boxes; offsets are JSON in its metadata.

    There is no marker and no global shape: it is the largest extent seen, so a lost last shard only shows when the
    ranks' numbers or the regular chunking betray it.
    """
    made = reader.made
    pieces: dict[str, list[tuple[tuple[int, ...], tuple[int, ...], str, int, str, int]]] = {}
    ranks: dict[int, set[int]] = {}
    counts: set[int] = set()
    for name in names:
        match = _SHARD.match(name)
        header = reader.safetensors(name)
        assert match is not None
        ranks.setdefault(int(match[1]), set()).add(int(match[2]))
        counts.add(int(match[3]))
        if header is not None:
            for fqn, piece in _boxes(reader, name, header, int(match[1]) - 1):
                pieces.setdefault(fqn, []).append(piece)
    for fqn, parts in pieces.items():
        shape = tuple(max(o + n for o, n in zip(axis_o, axis_n, strict=True)) for axis_o, axis_n in _axes(parts))
        tensor = Tensor(prefix + fqn, parts[0][4], shape, file=parts[0][2])
        tensor.chunks = [Chunk(o, n, file, Span(file, at), rank) for o, n, file, at, _, rank in parts]
        check_cover(made, tensor, [(o, n) for o, n, *_ in parts])
        made.add_tensor(tensor)
    _check_shard_numbers(reader, ranks, max(counts))
    proven = made.completion.proven
    proof = f"shards of {len(ranks)} ranks; this writer leaves no marker and no global shapes"
    made.completion = Completion(proven=proven, proof=proof)
    made.know("ranks", max(ranks), "shard file names")
    made.facts["dcp_writers"] = max(ranks)


def _axes(parts: list[Any]) -> list[tuple[list[int], list[int]]]:
    return [([p[0][d] for p in parts], [p[1][d] for p in parts]) for d in range(len(parts[0][0]))]


def _boxes(reader: Reader, name: str, header: SafetensorsHeader, rank: int) -> list[tuple[str, Any]]:
    made, full = reader.made, reader.folder.full(name)
    try:
        info = read_json(header.metadata.get("DCP_SHARDING_INFO", "{}").encode()).value
    except Malformed as error:
        made.fault("dcp.metadata", f"{name}: the sharding information is unreadable: {error}", file=full)
        return []
    found = []
    for entry in header.entries.values():
        told = info.get(entry.name) if isinstance(info, dict) else None
        offsets = told.get("saved_offsets") if isinstance(told, dict) else None
        offsets = offsets if isinstance(offsets, list) else [0] * len(entry.shape)
        if len(offsets) != len(entry.shape) or not all(type(n) is int and n >= 0 for n in offsets):
            made.fault(
                "shard.out-of-bounds", f"{name}: {entry.name} has offsets {offsets!r:.60}", file=full, tensor=entry.name
            )
            continue
        dtype = SAFETENSORS_DTYPES.get(entry.dtype, entry.dtype)
        if entry.offset + entry.length <= reader.folder.size(name):
            found.append((entry.name, (tuple(offsets), entry.shape, full, entry.offset, dtype, rank)))
    return found


def _check_shard_numbers(reader: Reader, ranks: dict[int, set[int]], count: int) -> None:
    made = reader.made
    for rank in range(1, max(ranks) + 1):
        missing = sorted(set(range(1, count + 1)) - ranks.get(rank, set()))
        if rank not in ranks or missing:
            name = f"shard-{rank:05d}-model-{missing[0] if missing else 1:05d}-of-{count:05d}.safetensors"
            text = f"{name} is missing: ranks 1 to {max(ranks)} should have {count} files each"
            made.fault("complete.file-missing", text, file=reader.folder.full(name), rank=rank - 1)
