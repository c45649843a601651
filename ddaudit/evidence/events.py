"""Event files: what each rank knew, flushed line by line so that it survives SIGKILL.

``events/<step>/<host>-<rank>.jsonl`` holds one JSON object per line, each with ``event`` and ``t`` (seconds, wall
clock). Tensors go to ``<host>-<rank>.bin`` beside it: the bytes are written and flushed first, then a ``tensor`` line
with offset, length, dtype, shape and CRC32, so a line never points at bytes that are not there. A process killed in
the middle of a line leaves a partial last line, which readers drop.

Of a run over several hosts the run folder has one file a host and step, ``<host>.node.jsonl``: the lines of all its
processes as they came, each as ``["<rank>", {...}]``.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from ddaudit.errors import EvidenceProblem
from ddaudit.jsonio import dumps
from ddaudit.redact import redact_value

if TYPE_CHECKING:
    import numpy as np

    from ddaudit.evidence.base import JsonEvidence

__all__ = [
    "EventWriter",
    "StepValues",
    "Stream",
    "node_lines",
    "node_path",
    "read_stream",
    "read_streams",
    "split_line",
]

#: A line longer than this is damage, not an event (a step of 4,096 sample ids is about 40 kB).
MAX_LINE_BYTES = 16 << 20
NODE_SUFFIX = ".node.jsonl"
_OWNER = re.compile(rb'\["([0-9]{1,7}(?:-[a-z]{1,20})?)", ')
NUMBERS = frozenset({float, int})
DTYPES = frozenset({"float64", "float32", "float16", "int64", "int32", "uint64", "uint8", "bool"})


class EventWriter:
    """Appends events of one process. Not shared between processes; safe to use from several threads of one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lines: IO[bytes] = path.open("ab", buffering=0)
        self._tensors: IO[bytes] | None = None
        if _broken_off(path):  # whoever wrote here before was killed in a line; ours must not be glued to it
            self._lines.write(b"\n")

    def emit(self, event: str, /, **fields: Any) -> None:
        """Writes one line, without secrets, by one ``write`` call, so that lines of threads do not interleave.

        Raises:
            OSError: the line could not be written whole; the part that was is dropped by readers.
        """
        self._write(dumps({"event": event, "t": time.time(), **redact_value(fields)}))

    def _write(self, line: str) -> None:
        data = (line + "\n").encode("utf-8", "replace")
        while data:  # a disk that fills up takes a part and raises at the rest
            data = data[self._lines.write(data) :]

    def emit_numbers(self, event: str, /, **fields: Any) -> None:
        """:meth:`emit` for fields whose values are numbers alone: they hold no secret, and there may be thousands."""
        self.emit_all([{"event": event, "t": time.time(), **fields}])

    def emit_all(self, events: Sequence[dict[str, Any]]) -> None:
        """Writes events of numbers alone, each with its ``event`` and ``t``, in one go."""
        self._write("\n".join(map(_line, events)))

    def emit_evidence(self, evidence: JsonEvidence) -> None:
        """Records array-free evidence whole."""
        self.emit("evidence", kind=evidence.kind, facts=evidence.model_dump(mode="json"))

    def tensor(self, values: np.ndarray[Any, np.dtype[Any]], /, **labels: Any) -> None:
        """Appends an array's bytes (C order, little endian), then the line that names them with ``labels``."""
        if self._tensors is None:
            self._tensors = self.path.with_suffix(".bin").open("ab", buffering=0)
        data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        offset = self._tensors.tell()
        self._tensors.write(data)
        place = {"offset": offset, "nbytes": len(data), "dtype": values.dtype.name, "shape": list(values.shape)}
        self.emit("tensor", **labels, **place, crc32=zlib.crc32(data))

    def close(self) -> None:
        self._lines.close()
        if self._tensors is not None:
            self._tensors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


_PLAIN = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def _line(item: dict[str, Any]) -> str:
    try:
        return _PLAIN.encode(item)
    except ValueError:  # some number is not finite
        return dumps(item)


@dataclass(frozen=True)
class Stream:
    """The events of one process, in the order written. ``name`` is ``<host>-<rank>`` or another writer's name."""

    name: str
    events: Sequence[dict[str, Any]]
    folder: Path | None = None
    damaged_lines: int = 0
    _by_kind: dict[str, list[dict[str, Any]]] = field(default_factory=dict, repr=False)

    def of(self, event: str) -> list[dict[str, Any]]:
        """All events of one kind, oldest first."""
        if not self._by_kind:
            for item in self.events:
                self._by_kind.setdefault(item["event"], []).append(item)
        return self._by_kind.get(event, [])

    def first(self, event: str) -> dict[str, Any] | None:
        found = self.of(event)
        return found[0] if found else None

    def tensor(self, event: dict[str, Any]) -> np.ndarray[Any, np.dtype[Any]]:
        """Reads the bytes a ``tensor`` event points at.

        Raises:
            EvidenceProblem: the event's size, dtype, shape or checksum does not fit the file.
        """
        import numpy as np

        path = (self.folder or Path()) / f"{self.name}.bin"
        shape, dtype, nbytes = tuple(event["shape"]), event["dtype"], event["nbytes"]
        if dtype not in DTYPES or any(not isinstance(n, int) or n < 0 for n in shape):
            raise EvidenceProblem(
                f"tensor of dtype {dtype!r} and shape {shape!r}", where=str(path), expected="a plain array"
            )
        if math.prod(shape) * np.dtype(dtype).itemsize != nbytes or event["offset"] + nbytes > path.stat().st_size:
            raise EvidenceProblem("a tensor's size does not fit the file", where=str(path))
        with path.open("rb") as file:
            file.seek(event["offset"])
            data = file.read(nbytes)
        if zlib.crc32(data) != event["crc32"]:
            raise EvidenceProblem("a tensor's checksum does not match its bytes", where=str(path))
        return np.frombuffer(data, dtype=np.dtype(dtype).newbyteorder("<")).reshape(shape)


class StepValues(Mapping[str, float]):
    """The numbers of one step, read only, in a tenth of a dict's memory: a trace of 4,096 ranks has a million."""

    __slots__ = ("_keys", "_numbers")

    def __init__(self, keys: dict[str, int], numbers: array[float]) -> None:
        self._keys, self._numbers = keys, numbers

    @property
    def packed(self) -> tuple[dict[str, int], array[float]]:
        """Place of each name, in one object for all steps of the same names, and the numbers."""
        return self._keys, self._numbers

    def __getitem__(self, key: str) -> float:
        return self._numbers[self._keys[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class _Packer:
    """Makes step events small. What does not fit (numbers written as words, damage) stays as it was read."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, ...], dict[str, int]] = {}
        self._groups: dict[str, Any] = {}

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        if item["event"] != "step":
            return item
        small = dict(zip(map(sys.intern, item), item.values(), strict=True))
        values, ids = small.get("values"), small.get("sample_ids")
        if isinstance(values, dict) and NUMBERS.issuperset(map(type, values.values())):
            names = tuple(values)
            keys = self._keys.setdefault(names, {sys.intern(name): index for index, name in enumerate(names)})
            with suppress(OverflowError):  # a whole number that no float holds
                small["values"] = StepValues(keys, array("d", values.values()))
        if isinstance(ids, list) and {int}.issuperset(map(type, ids)):
            with suppress(OverflowError):  # not within 64 bits
                small["sample_ids"] = array("q", ids)
        if isinstance(small.get("groups"), list):
            small["groups"] = self._groups.setdefault(repr(small["groups"]), small["groups"])
        return small


def _broken_off(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"


def node_path(folder: Path, host: str) -> Path:
    """The file of a step's folder that holds the events of all ranks of a host."""
    return folder / f"{host}{NODE_SUFFIX}"


def node_lines(owner: str, lines: bytes) -> bytes:
    """Whole event lines of one process (``owner``: its rank), as a host's file holds them."""
    return b"".join(b'["%s", %s]\n' % (owner.encode(), line) for line in lines.splitlines())


def split_line(line: bytes) -> tuple[str, bytes] | None:
    """Whose line of a host's file it is, and the event's own; None for damage."""
    owned, rest = _OWNER.match(line), line.rstrip()
    return (owned[1].decode(), rest[owned.end() : -1]) if owned and rest.endswith(b"]") else None


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield line


def _event(line: bytes) -> dict[str, Any] | None:
    """A line's object, or None for a damaged line."""
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        item = None
    return item if isinstance(item, dict) and isinstance(item.get("event"), str) else None


def read_stream(path: Path, packer: _Packer | None = None) -> Stream:
    """Reads one process's event file, dropping damaged lines and counting them."""
    pack = packer or _Packer()
    good: list[dict[str, Any]] = []
    damaged = 0
    for line in _lines(path):
        if (item := _event(line)) is None:
            damaged += 1
        else:
            good.append(pack(item))
    return Stream(path.stem, good, folder=path.parent, damaged_lines=damaged)


def _node_streams(path: Path, packer: _Packer) -> list[Stream]:
    """The streams of all processes of a host. A line that is nobody's counts as damage of the first."""
    by_owner: dict[str, list[dict[str, Any] | None]] = {}
    nobody = 0
    for line in _lines(path):
        if (owned := split_line(line)) is None:
            nobody += 1
            continue
        item = _event(owned[1])
        by_owner.setdefault(owned[0], []).append(None if item is None else packer(item))
    host = path.name.removesuffix(NODE_SUFFIX)
    streams: list[Stream] = []
    for owner, items in by_owner.items():
        good = [item for item in items if item is not None]
        damaged = len(items) - len(good) + (nobody if not streams else 0)
        streams.append(Stream(f"{host}-{owner}", good, folder=path.parent, damaged_lines=damaged))
    return streams


def read_streams(folder: Path, pattern: str = "*.jsonl") -> list[Stream]:
    """Reads every event file of a step; streams are ordered by name, and an absent folder gives an empty list.

    What is no plain file (a pipe would never end) is left out."""
    packer = _Packer()
    streams: list[Stream] = []
    for path in sorted(folder.glob(pattern)):
        if path.is_file() and path.name.endswith(NODE_SUFFIX):
            streams += _node_streams(path, packer)
        elif path.is_file():
            streams.append(read_stream(path, packer))
    return sorted(streams, key=lambda stream: f"{stream.name}.jsonl")
