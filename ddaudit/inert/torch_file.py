"""Files of torch.save, both containers: what they hold, and where every storage's bytes lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddaudit.inert.machine import Meaning
from ddaudit.inert.nodes import Malformed, PickleLimits, PickleResult
from ddaudit.inert.pickles import read_pickle
from ddaudit.inert.source import Source
from ddaudit.inert.torch_objects import TORCH, Storage, TensorRef, storage_of
from ddaudit.inert.zips import ZipTail, looks_like_zip, read_zip

LEGACY_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
MAX_PICKLE_BYTES = 1 << 30
_ALIKE_BYTES = 4096
_ALIKE_MAX = 4096

#: Pickles of one tensor each, read before: the chunks of a sharded save have the same few again and again.
Alike = dict[bytes, PickleResult]


@dataclass(slots=True)
class Bytes:
    """Where a storage's bytes are in the source, and the CRC32 recorded for them (None where the container records
    none)."""

    offset: int
    length: int
    crc: int | None = None
    member: str = ""


@dataclass(slots=True)
class TorchFile:
    """`value` is the pickled object with `TensorRef`s; `storages` maps storage keys to bytes.

    `problems` are (kind, key, text); `small` are members other than tensor data, to be CRC-checked with the rest.
    """

    value: Any = None
    container: str = "zip"
    storages: dict[str, Bytes] = field(default_factory=dict)
    small: list[Bytes] = field(default_factory=list)
    pickle: PickleResult = field(default_factory=PickleResult)
    problems: list[tuple[str, str, str]] = field(default_factory=list)
    big_endian: bool = False
    extra_globals: dict[str, int] = field(default_factory=dict)
    extra_calls: set[str] = field(default_factory=set)
    root: str = ""  # the archive's own folder: the stem of the name that the file was saved under


def looks_like_torch(source: Source) -> bool:
    return looks_like_zip(source) or is_legacy(source)


def is_legacy(source: Source) -> bool:
    return source.size > len(LEGACY_MAGIC) and source.read(0, len(LEGACY_MAGIC)) == LEGACY_MAGIC


def read_torch(
    source: Source,
    meanings: Mapping[str, Meaning] = TORCH,
    limits: PickleLimits | None = None,
    alike: Alike | None = None,
) -> TorchFile:
    """Reads either container; raises `Malformed` when the container cannot be read at all.

    A pickle that breaks off inside a readable container is in `problems` and in `pickle.error`. ``alike`` spares
    interpreting a tensor's pickle that an earlier call with the same ``meanings`` has seen byte for byte.
    """
    if is_legacy(source):
        return _read_legacy(source, meanings, limits)
    return _read_zip_file(source, meanings, limits, {} if alike is None else alike)


def _read_zip_file(
    source: Source, meanings: Mapping[str, Meaning], limits: PickleLimits | None, alike: Alike
) -> TorchFile:
    tail = read_zip(source)
    made = TorchFile()
    made.problems += [(f"zip-{kind}", "", text) for kind, text in tail.problems]
    if tail.start:
        made.problems.append(("zip-prefix", "", f"{tail.start:,} bytes stand in front of the archive"))
    pickles = [name for name in tail.members if name.endswith("/data.pkl") or name == "data.pkl"]
    if len(pickles) != 1:
        raise Malformed(f"{len(pickles)} members are called data.pkl; torch.save writes one")
    made.root = pickles[0].removesuffix("data.pkl").rstrip("/")
    _place_members(tail, pickles[0].removesuffix("data.pkl"), made, source)
    member = tail.members[pickles[0]]
    if member.offset < 0 or member.method != 0 or member.size > MAX_PICKLE_BYTES:
        made.pickle.error = Malformed(f"{pickles[0]} is no stored member of a believable size")
        made.problems.append(("pickle", pickles[0], str(made.pickle.error)))
        return made
    raw = source.read(member.offset, member.size)
    if raw in alike:
        made.pickle = alike[raw]
        made.value = made.pickle.value
    else:
        _interpret(raw, made, meanings, limits)
        if isinstance(made.value, TensorRef) and len(raw) <= _ALIKE_BYTES and len(alike) < _ALIKE_MAX:
            alike[raw] = made.pickle
    if made.pickle.error is None and made.pickle.end != member.size:
        made.problems.append(
            ("pickle-trailing", pickles[0], f"{member.size - made.pickle.end:,} bytes follow the pickle")
        )
    return made


def _place_members(tail: ZipTail, prefix: str, made: TorchFile, source: Source) -> None:
    recorded = tail.crc_recorded
    if not recorded:
        made.problems.append(("crc-absent", "", "the file was written without CRCs"))
    for name, member in tail.members.items():
        if member.offset < 0 or member.method != 0:
            continue
        where = Bytes(member.offset, member.size, member.crc if recorded else None, name)
        if name.startswith(f"{prefix}data/"):
            made.storages[name[len(prefix) + 5 :]] = where
        else:
            made.small.append(where)
        if name == f"{prefix}byteorder" and member.size < 16:
            made.big_endian = source.read(member.offset, member.size).strip() == b"big"


def _interpret(raw: bytes, made: TorchFile, meanings: Mapping[str, Meaning], limits: PickleLimits | None) -> None:
    made.pickle = read_pickle(raw, meanings=meanings, storage=storage_of, limits=limits)
    if made.pickle.error is not None:
        made.problems.append(("pickle", "data.pkl", f"the pickled object cannot be read: {made.pickle.error}"))
    else:
        made.value = made.pickle.value


def _read_legacy(source: Source, meanings: Mapping[str, Meaning], limits: PickleLimits | None) -> TorchFile:
    """Five pickles (magic, protocol, system, object, storage keys), then for each key an int64 count and the bytes."""
    made = TorchFile(container="legacy")
    sizes: dict[str, Storage] = {}

    def storage(pid: Any) -> Storage:
        found = storage_of(pid)
        sizes.setdefault(found.key, found)
        return sizes[found.key]

    # The pickles come first; how long they are is known only after reading them.
    raw = source.read(0, min(source.size, MAX_PICKLE_BYTES))
    at, values = 0, []
    for part in range(5):
        result = read_pickle(raw, at, meanings=meanings, storage=storage, limits=limits)
        made.extra_globals.update(result.globals)
        made.extra_calls |= result.calls
        if result.error is not None:
            made.pickle = result
            raise Malformed(f"pickle {part + 1} of 5 cannot be read: {result.error.reason}", result.error.offset)
        made.pickle = result if part == 3 else made.pickle
        values.append(result.value)
        at = result.end
    made.value = values[3]
    made.big_endian = isinstance(values[2], dict) and values[2].get("little_endian") is False
    keys = values[4] if isinstance(values[4], list) else []
    _place_legacy(source, at, keys, sizes, made)
    return made


def _place_legacy(source: Source, at: int, keys: list[Any], sizes: dict[str, Storage], made: TorchFile) -> None:
    for key in keys:
        if at + 8 > source.size:
            made.problems.append(("truncated", str(key), f"the file ends before storage {key!s:.40}"))
            return
        count = int.from_bytes(source.read(at, 8), "little", signed=True)
        known = sizes.get(str(key))
        length = known.nbytes if known else 0
        if known is None or count != known.numel:
            made.problems.append(
                (
                    "storage-size",
                    str(key),
                    f"storage {key!s:.40} says {count:,} items, the object says {known.numel if known else 0:,}",
                )
            )
            return
        if at + 8 + length > source.size:
            made.problems.append(
                (
                    "truncated",
                    str(key),
                    f"storage {key!s:.40} needs {length:,} bytes, {source.size - at - 8:,} are left",
                )
            )
            return
        made.storages[str(key)] = Bytes(at + 8, length)
        at += 8 + length
    if at < source.size:
        made.problems.append(("trailing", "", f"{source.size - at:,} bytes follow the last storage"))
