"""Items of ``.distcp`` files: ranges checked against the files, and archives opened when their bytes are wanted."""

from __future__ import annotations

from array import array
from typing import Any

from ddaudit.checkpoint.layouts.dcp_metadata import Box, Info
from ddaudit.checkpoint.model import Chunk, Span
from ddaudit.checkpoint.reader import SAFETENSORS_DTYPES, Reader
from ddaudit.inert import Malformed, TensorRef, looks_like_safetensors, unsafe_name
from ddaudit.inert.safetensors import read_safetensors

#: File -> offset and length of each item in it, one behind the other.
Ranges = dict[str, "array[int]"]


class Stored:
    """What all items of one tensor share: the reader that opens them, the tensor's name and dtype."""

    __slots__ = ("dtype", "name", "reader")

    def __init__(self, reader: Reader, name: str, dtype: str) -> None:
        self.reader = reader
        self.name = name
        self.dtype = dtype


class Item(Chunk):
    """A stored chunk that is looked up in its file only when its bytes are wanted: there may be a million of them."""

    __slots__ = ("_found", "info", "stored")

    def __init__(self, stored: Stored, box: Box, file: str, info: Info, rank: int | None) -> None:
        super().__init__(box.offsets, box.sizes, file, None, rank)
        self.stored = stored
        self.info = info
        self._found = False

    @property
    def placed(self) -> bool:
        return self._found

    def span(self) -> Span | None:
        if not self._found:
            self._found = True
            self._span = locate(self.stored.reader, self)
        span = self._span
        assert not callable(span)
        return span


def locate(reader: Reader, item: Item) -> Span | None:
    """Opens the item's archive and finds the one tensor in it; None with a fault when it is not what was promised."""
    made, info, name, dtype = reader.made, item.info, item.stored.name, item.stored.dtype
    where = {"file": item.file, "tensor": name}
    if info.transforms:
        made.fault("dcp.transform", f"{name} is stored through {info.transforms}", **where)
        return None
    try:
        window = reader.folder.source(info.path).edges(info.offset, info.length)
        if looks_like_safetensors(window):
            return _in_safetensors(reader, item, window)
    except Malformed:
        return None  # check_ranges has said what is wrong with the file
    found = reader.torch_in(window, item.file, name)
    if found is None:
        return None
    ref = found.value
    if not isinstance(ref, TensorRef):
        made.fault("shard.not-a-tensor", f"{name}: {info.path} holds no tensor at {info.offset:,}", **where)
        return None
    if ref.shape != item.shape or ref.dtype != dtype:
        text = (
            f"{name}: the chunk at {list(item.offsets)} should be {dtype} {list(item.shape)}, "
            f"{info.path} holds {ref.dtype} {list(ref.shape)} there"
        )
        made.fault("shard.mismatch", text, **where)
        return None
    chunks = reader.tensor_of(ref, found, window, name, item.file, None).chunks
    return chunks[0].span() if chunks else None


def _in_safetensors(reader: Reader, item: Item, window: Any) -> Span | None:
    header, name, dtype = read_safetensors(window), item.stored.name, item.stored.dtype
    entry = next(iter(header.entries.values()), None)
    if entry is None or SAFETENSORS_DTYPES.get(entry.dtype) != dtype or entry.shape != item.shape:
        text = f"{name}: {item.info.path} holds another tensor at {item.info.offset:,}"
        reader.made.fault("shard.mismatch", text, file=item.file, tensor=name)
        return None
    return Span(item.file, window.base[1] + entry.offset)


def check_ranges(reader: Reader, used: Ranges) -> None:
    """Every named file exists, every range lies inside it, ranges do not overlap, and nothing lies between them."""
    made, folder = reader.made, reader.folder
    for path, ranges in sorted(used.items()):
        full = folder.full(path)
        reason = unsafe_name(path)
        if reason:
            made.fault("path.escape", f"the metadata names the file {path!r:.120}, which {reason}", key=path[:200])
            continue
        if path not in folder:
            text = f"{path} is missing: the metadata says it holds {len(ranges) // 2} items"
            made.fault(
                "complete.file-missing",
                text,
                file=full,
                rank=_rank(path),
                measured=0,
                limit=len(ranges) // 2,
                unit="item",
            )
            continue
        _check_file(reader, path, list(zip(ranges[::2], ranges[1::2], strict=True)))


def _rank(path: str) -> int | None:
    part = path.removeprefix("__").split("_", 1)[0]
    return int(part) if part.isdigit() and len(part) < 9 else None


def _check_file(reader: Reader, path: str, ranges: list[tuple[int, int]]) -> None:
    made, folder, size = reader.made, reader.folder, reader.folder.size(path)
    full, end = folder.full(path), 0
    for offset, length in sorted(ranges):
        if offset < 0 or length < 0:
            made.fault("shard.range", f"{path}: an item at {offset:,} of {length:,} bytes cannot exist", file=full)
            return
        if offset + length > size:
            text = (
                f"{path} has {size:,} bytes, an item needs {offset + length:,}: "
                "the file is cut short or is another save's"
            )
            made.fault(
                "file.truncated", text, file=full, rank=_rank(path), measured=size, limit=offset + length, unit="byte"
            )
            return
        if offset < end:
            made.fault("shard.range", f"{path}: the items at {offset:,} and before it overlap", file=full)
            return
        if offset > end:
            made.fault("file.gap", f"{path}: {offset - end:,} bytes at {end:,} belong to no item", file=full)
        end = offset + length
    if end < size:
        text = f"{path}: {size - end:,} bytes follow the last item"
        made.fault("file.trailing", text, file=full, measured=size - end, unit="byte")
