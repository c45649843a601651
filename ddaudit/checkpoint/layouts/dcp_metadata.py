"""The classes inside ``.metadata``, as small inert records: a million chunks must fit in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddaudit.inert.machine import Meaning
from ddaudit.inert.torch_objects import TORCH

_METADATA = "torch.distributed.checkpoint.metadata"
_CHUNKS = ("ChunkStorageMetadata",)


class _Consumed:
    """Takes its fields out of the state that the stream built for it, so that the memo keeps no second copy alive."""

    __slots__ = ()
    inert_key = True

    def inert_build(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) == 2:
            state = state[0] if isinstance(state[0], dict) else state[1]
        if isinstance(state, dict):
            self.take(state)
            state.clear()

    def take(self, state: dict[Any, Any]) -> None:
        raise NotImplementedError


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_SHARED_MAX = 4096
_seen: dict[Any, Any] = {}


def _shared(sizes: Any) -> Any:
    """Most chunks of a save have one of few extents: equal ones become one object."""
    if not isinstance(sizes, tuple) or len(sizes) > 64 or not all(type(n) is int for n in sizes):
        return sizes
    if len(_seen) > _SHARED_MAX:
        _seen.clear()
    return _seen.setdefault(sizes, sizes)


class Box(_Consumed):
    """ChunkStorageMetadata: where a chunk begins, and its extent."""

    __slots__ = ("offsets", "sizes")

    def __init__(self, *_: Any) -> None:
        self.offsets: Any = ()
        self.sizes: Any = ()

    def take(self, state: dict[Any, Any]) -> None:
        self.offsets, self.sizes = _tuple(state.get("offsets")), _shared(_tuple(state.get("sizes")))


class TensorMeta(_Consumed):
    """TensorStorageMetadata."""

    __slots__ = ("chunks", "dtype", "size")

    def __init__(self, *_: Any) -> None:
        self.dtype: Any = None
        self.size: Any = None
        self.chunks: Any = None

    def take(self, state: dict[Any, Any]) -> None:
        self.size, self.chunks = _tuple(state.get("size")), state.get("chunks")
        properties = state.get("properties")
        self.dtype = properties.dtype if isinstance(properties, Properties) else None

    @property
    def valid(self) -> bool:
        sizes_ok = (
            isinstance(self.size, tuple) and len(self.size) <= 64 and all(type(n) is int and n >= 0 for n in self.size)
        )
        return sizes_ok and isinstance(self.chunks, list) and all(
            isinstance(c, Box) and isinstance(c.offsets, tuple) and isinstance(c.sizes, tuple) for c in self.chunks
        )  # fmt: skip


class Properties(_Consumed):
    """TensorProperties: only the dtype matters here. Its state is a tuple (dtype, layout, ...) or a dict."""

    __slots__ = ("dtype",)

    def __init__(self, *_: Any) -> None:
        self.dtype: Any = None

    def inert_build(self, state: Any) -> None:
        if isinstance(state, tuple) and state:
            self.dtype = state[0]
        elif isinstance(state, dict):
            self.dtype = state.get("dtype")

    def take(self, state: dict[Any, Any]) -> None:
        self.dtype = state.get("dtype")


class BytesMeta(_Consumed):
    """BytesStorageMetadata: says only that the entry is no tensor."""

    __slots__ = ()

    def __init__(self, *_: Any) -> None:
        pass

    def take(self, state: dict[Any, Any]) -> None:
        pass


class Index(_Consumed):
    """MetadataIndex: which entry, and which chunk of it."""

    __slots__ = ("fqn", "offset")

    def __init__(self, *_: Any) -> None:
        self.fqn = "?"
        self.offset: Any = None

    def take(self, state: dict[Any, Any]) -> None:
        fqn = state.get("fqn")
        self.fqn = fqn if isinstance(fqn, str) else "?"
        offset = _tuple(state.get("offset"))
        self.offset = offset if offset is None or (isinstance(offset, tuple) and len(offset) <= 64) else None
        if self.offset is not None and not all(type(n) is int for n in self.offset):
            self.offset = None


class Info(_Consumed):
    """_StorageInfo: file, offset and length of an item, and the stream transforms it went through."""

    __slots__ = ("length", "offset", "path", "transforms")

    def __init__(self, *_: Any) -> None:
        self.path: Any = None
        self.offset: Any = None
        self.length: Any = None
        self.transforms: Any = None

    def take(self, state: dict[Any, Any]) -> None:
        self.path, self.offset, self.length = state.get("relative_path"), state.get("offset"), state.get("length")
        self.transforms = (
            [str(t)[:40] for t in state["transform_descriptors"]] if state.get("transform_descriptors") else None
        )

    @property
    def valid(self) -> bool:
        return isinstance(self.path, str) and type(self.offset) is int and type(self.length) is int


class Metadata(_Consumed):
    """The whole document."""

    __slots__ = ("paths", "save_id", "storage", "tensors", "version")

    def __init__(self, *_: Any) -> None:
        self.tensors: Any = None
        self.paths: Any = None
        self.storage: Any = None
        self.version: Any = None
        self.save_id: Any = None

    def take(self, state: dict[Any, Any]) -> None:
        self.tensors, self.paths = state.get("state_dict_metadata"), state.get("planner_data")
        self.storage, self.version = state.get("storage_data"), state.get("version")
        meta = state.get("storage_meta")
        fields = getattr(meta, "fields", {})
        self.save_id = fields.get("save_id") if isinstance(fields, dict) else None


def _plan(*_: Any) -> None:
    """Save plans repeat what the metadata says; they are large and not kept."""


def meanings() -> Mapping[str, Meaning]:
    shard = "torch.distributed._shard"
    return {
        **TORCH,
        f"{_METADATA}.Metadata": Metadata,
        f"{_METADATA}.TensorStorageMetadata": TensorMeta,
        f"{_METADATA}.BytesStorageMetadata": BytesMeta,
        f"{_METADATA}.ChunkStorageMetadata": Box,
        f"{_METADATA}.MetadataIndex": Index,
        f"{_METADATA}.TensorProperties": Properties,
        f"{shard}.sharded_tensor.metadata.TensorProperties": Properties,
        "torch.distributed.checkpoint.filesystem._StorageInfo": Info,
    }
