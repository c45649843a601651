"""Reads a checkpoint's files into the logical model; every trouble becomes a fault of the one file, and reading goes
on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.model import Checkpoint, Checksum, Chunk, Span, Tensor
from ddaudit.inert import (
    JsonDocument,
    Malformed,
    PickleLimits,
    PickleResult,
    Source,
    TensorRef,
    TorchFile,
    read_json,
    read_pickle,
    read_torch,
)
from ddaudit.inert.safetensors import SafetensorsHeader, read_safetensors
from ddaudit.inert.torch_file import Alike
from ddaudit.inert.torch_objects import TORCH, storage_of

LFS_PREFIX = b"version https://git-lfs.github.com/spec"

#: Safetensors dtype names in torch's words.
SAFETENSORS_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
    "F32": "float32", "I64": "int64", "U64": "uint64", "F64": "float64", "C64": "complex64",
}  # fmt: skip

#: Problems of a torch container -> kind of fault.
_CONTAINER_FAULTS = {
    "zip-duplicate": "container.duplicate-member",
    "zip-compressed": "container.compressed",
    "zip-encrypted": "container.encrypted",
    "zip-member": "container.member",
    "zip-name": "container.name-mismatch",
    "zip-overlap": "container.overlap",
    "zip-prefix": "container.prefix",
    "zip-trailing": "file.trailing",
    "pickle": "container.pickle",
    "pickle-trailing": "container.pickle-trailing",
    "crc-absent": "container.crc-absent",
    "truncated": "file.truncated",
    "storage-size": "tensor.storage-size",
    "trailing": "file.trailing",
}


class Reader:
    """Access to one checkpoint's files, noting names, checksums and troubles in ``made``."""

    def __init__(self, folder: Folder, made: Checkpoint, level: str) -> None:
        self.folder = folder
        self.made = made
        self.level = level
        self._alike: Alike = {}

    # ---- whole files

    def torch(self, name: str) -> TorchFile | None:
        """A torch.save file; None (with a fault) when it cannot be read."""
        source = self.open(name)
        return self.torch_in(source, self.folder.full(name)) if source is not None else None

    def load(self, name: str, prefix: str = "", rank: int | None = None) -> TorchFile | None:
        """A torch.save file, with every leaf added to the model under ``prefix``."""
        from ddaudit.checkpoint.flatten import add_tree

        found = self.torch(name)
        if found is not None:
            add_tree(self, found.value, found, self.folder.source(name), prefix, self.folder.full(name), rank)
        return found

    def sub(self, name: str) -> Reader:
        return Reader(self.folder.sub(name), self.made, self.level)

    def torch_in(self, source: Source, name: str, key: str | None = None) -> TorchFile | None:
        """A torch.save archive in (a window of) a file."""
        try:
            found = read_torch(source, alike=self._alike)
        except Malformed as error:
            self._unreadable(source, name, error, key)
            return None
        shift = source.base[1]
        if key is None and found.root:
            self.made.archives[name] = found.root
        self.note_names(found.pickle, name)
        for path in found.extra_globals:
            self._name(path, path in found.extra_calls, name)
        for kind, where, text in found.problems:
            # An item's range that is off by some bytes looks like a prefix; in a whole file a prefix hides something.
            fault = (
                "container.member"
                if key and kind in ("zip-prefix", "zip-overlap", "pickle-trailing")
                else _CONTAINER_FAULTS[kind]
            )
            self.made.fault(fault, f"{self._at(name, key)}: {text}", file=name, key=where or key)
        for small in found.small:
            if small.crc is not None and small.length:
                self.made.checksums.append(Checksum(name, small.offset + shift, small.length, small.crc, small.member))
        return found if found.pickle.error is None else None

    def pickle(self, name: str, limits: PickleLimits | None = None) -> PickleResult | None:
        """A bare pickle; None (with a fault) when it cannot be read."""
        source = self.open(name)
        if source is None:
            return None
        try:
            raw = source.read(0, source.size)
        except Malformed as error:
            self._unreadable(source, self.folder.full(name), error, None)
            return None
        return self.pickle_in(raw, self.folder.full(name), limits=limits)

    def pickle_in(
        self, raw: bytes, name: str, meanings: Mapping[str, Any] = TORCH, limits: PickleLimits | None = None
    ) -> PickleResult | None:
        result = read_pickle(raw, meanings=meanings, storage=storage_of, limits=limits)
        self.note_names(result, name)
        if result.error is not None:
            kind = "file.empty" if not raw else "container.pickle"
            self.made.fault(kind, f"{name}: cannot be read: {result.error}", file=name)
            return None
        if result.end != len(raw):
            text = f"{name}: {len(raw) - result.end:,} bytes follow the pickle"
            self.made.fault("container.pickle-trailing", text, file=name, measured=len(raw) - result.end, unit="byte")
        return result

    def json(self, name: str, fault: str = "file.json") -> Any:
        """A JSON document's value; None (with a fault) when it is none. Duplicate keys are noted."""
        source = self.open(name)
        if source is None:
            return None
        try:
            document: JsonDocument = read_json(self.folder.read(name, 256 << 20))
        except Malformed as error:
            self.made.fault(fault, f"{name}: {error}", file=self.folder.full(name))
            return None
        for key in document.duplicates:
            text = f"{name}: the key {key!r} is given twice"
            self.made.fault("json.duplicate-key", text, file=self.folder.full(name), key=key)
        return document.value

    def text(self, name: str, limit: int = 4096) -> str | None:
        """A small text file, stripped; None (with a fault) when it is not one."""
        try:
            return self.folder.read(name, limit).decode("utf-8").strip()
        except (Malformed, UnicodeDecodeError) as error:
            self.made.fault("pointer.unreadable", f"{name}: {error}", file=self.folder.full(name))
            return None

    def safetensors(self, name: str) -> SafetensorsHeader | None:
        source = self.open(name)
        if source is None:
            return None
        try:
            header = read_safetensors(source)
        except Malformed as error:
            self._unreadable(source, self.folder.full(name), error, None)
            return None
        for kind, tensor, text in header.problems:
            full = self.folder.full(name)
            self.made.fault(f"safetensors.{kind}", f"{name}: {text}", file=full, tensor=tensor or None)
        return header

    def open(self, name: str) -> Source | None:
        try:
            source = self.folder.source(name)
        except Malformed as error:
            self.made.fault("file.unreadable", f"{name}: {error}", file=self.folder.full(name))
            return None
        if source.size == 0:
            self.made.fault("file.empty", f"{name} has no bytes", file=self.folder.full(name), measured=0, unit="byte")
            return None
        return source

    # ---- parts

    def tensor_of(
        self, ref: TensorRef, found: TorchFile, source: Source, name: str, file: str, rank: int | None
    ) -> Tensor:
        """The logical tensor of a reference into a torch file, its span checked against the storage."""
        tensor = Tensor(name, ref.dtype, ref.shape, file=file, rank=rank)
        part = ref.local if ref.local is not None else ref
        span = self._span(part, found, source, name, file)
        if span is not None:
            at = ref.local_at if ref.local_at is not None else (0,) * len(part.shape)
            tensor.chunks.append(Chunk(at, part.shape, file, span, rank))
        self._note_part(ref, name)
        if part.storage is not None:
            tensor.alias = f"{file}:{source.base[1]}:{part.storage.key}:{part.offset}:{part.shape}:{part.stride}"
        return tensor

    def _note_part(self, ref: TensorRef, name: str) -> None:
        """Remembers how a distributed tensor's local part lies in the whole, for joining the ranks' files."""
        from ddaudit.checkpoint.layouts.sharded_ranks import shard_dim

        if ref.local_at is not None:
            self.made.facts.setdefault("placed", set()).add(name)
        elif ref.local is not None:
            dim = shard_dim(ref.placement)
            if dim is not None:
                self.made.facts.setdefault("shard_dims", {})[name] = dim

    def _span(self, part: TensorRef, found: TorchFile, source: Source, name: str, file: str) -> Span | None:
        if part.storage is None or not part.item_bytes:
            return None
        place = found.storages.get(part.storage.key)
        if place is None:
            if part.storage.nbytes:
                text = f"{name}: storage {part.storage.key} is not in {file}"
                self.made.fault("tensor.storage-missing", text, file=file, tensor=name, key=part.storage.key)
            return None
        if part.storage.nbytes != place.length:
            text = (
                f"{name}: storage {part.storage.key} has {place.length:,} "
                f"bytes, the object says {part.storage.nbytes:,}"
            )
            self.made.fault(
                "tensor.storage-size", text, file=file, tensor=name, measured=place.length, limit=part.storage.nbytes
            )
        if part.extent * part.item_bytes > place.length:
            text = f"{name} reaches to byte {part.extent * part.item_bytes:,} of a storage of {place.length:,}"
            self.made.fault(
                "tensor.out-of-storage",
                text,
                file=file,
                tensor=name,
                measured=part.extent * part.item_bytes,
                limit=place.length,
            )
            return None
        shift = source.base[1]
        checksum = None
        if place.crc is not None:
            checksum = Checksum(file, place.offset + shift, place.length, place.crc, place.member)
        offset = place.offset + shift + part.offset * part.item_bytes
        return Span(file, offset, None if part.contiguous else part.stride, checksum, found.big_endian)

    def note_names(self, result: PickleResult, file: str) -> None:
        for path in result.globals:
            self._name(path, path in result.calls, file)
        if "?" in result.calls:
            self._name("?", True, file)

    def _name(self, path: str, called: bool, file: str) -> None:
        known = self.made.names.get(path)
        if known is None:
            self.made.names[path] = (called, file, 1)
        else:
            self.made.names[path] = (known[0] or called, known[1], known[2] + 1)

    def _unreadable(self, source: Source, name: str, error: Malformed, key: str | None) -> None:
        """Says what kind of ruin this is: empty, a Git LFS pointer, cut, or not what it should be."""
        head = source.pread(0, 200)
        if head.startswith(LFS_PREFIX):
            self.made.fault(
                "file.lfs-pointer", f"{name} is a Git LFS pointer, the real file was not fetched", file=name
            )
        elif not head.strip(b"\0"):
            self.made.fault("file.zeros", f"{name} begins with zero bytes only", file=name)
        else:
            kind = "file.truncated" if "end of the zip" in error.reason else "file.malformed"
            self.made.fault(kind, f"{self._at(name, key)}: {error}", file=name, key=key)

    @staticmethod
    def _at(name: str, key: str | None) -> str:
        return f"{name} ({key})" if key else name
