"""Event and log files on their way from a node to the conductor's run folder: piece by piece, as they grow.

Ranks write on their own host, each to its own files. In the run folder, which may be on storage that all hosts share,
the events of a host's ranks are one file (:func:`~ddaudit.evidence.events.node_path`); tensor bytes, output and stacks
keep theirs, made when there is something in them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ddaudit.evidence.events import MAX_LINE_BYTES, node_lines, node_path
from ddaudit.launch.stall import answering
from ddaudit.launch.wire import MAX_PAYLOAD_BYTES, Lost

__all__ = ["Keeper", "Shipper", "append", "rank_file"]

#: Files of a rank, by what ``Order`` calls them. Anything else is not taken.
_PATH = re.compile(r"(?:events|logs)/[A-Za-z0-9_-]{1,64}(?:\.[a-z]+\d+){0,3}/(?P<host>[A-Za-z0-9_-]{1,60})-"
                   r"(?P<owner>\d{1,7}(?:-[a-z]{1,20})?)\.(?P<kind>jsonl|bin|log|stack)")  # fmt: skip


class Shipper:
    """Sends what the files of one step gained since the last call."""

    def __init__(self, root: Path, folder: str, send: Callable[[Mapping[str, Any], bytes], None]) -> None:
        self._root, self._folder, self._send = root, folder, send
        self._sent: dict[str, int] = {}

    def ship(self) -> None:
        """An event line never travels before the tensor bytes that it points at: sizes of event files are taken first,
        and they are sent last. Raises Lost when the conductor is gone."""
        lines = dict(self._sizes("events", ".jsonl"))
        others = dict(self._sizes("events", ".bin")) | dict(self._sizes("logs", ".log", ".stack"))
        for path, size in (others | lines).items():
            self._catch_up(path, size)

    def _sizes(self, part: str, *suffixes: str) -> Iterator[tuple[str, int]]:
        try:
            entries = sorted(os.scandir(self._root / part / self._folder), key=lambda e: e.name)
        except OSError:
            return
        for entry in entries:
            if entry.name.endswith(suffixes) and entry.is_file(follow_symlinks=False):
                yield f"{part}/{self._folder}/{entry.name}", entry.stat().st_size

    def _catch_up(self, path: str, size: int) -> None:
        offset = self._sent.get(path, 0)
        if size <= offset:
            return
        with (self._root / path).open("rb") as file:
            file.seek(offset)
            while offset < size and (piece := file.read(min(MAX_PAYLOAD_BYTES, size - offset))):
                self._send({"event": "file", "path": path, "offset": offset}, piece)
                offset += len(piece)
        self._sent[path] = offset


class Keeper:
    """Puts what comes from the hosts into the run folder. One for each run: a single process writes there."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._received: dict[str, int] = {}
        self._begun: dict[str, bytes] = {}
        """By event file, the line whose end has not come yet; that of a rank killed within it never does."""

    def keep(self, host: str, message: Mapping[str, Any], piece: bytes) -> None:
        """Appends a piece that ``host`` sent.

        Raises:
            Lost: it names a file that is not one of that host's ranks', or does not continue what is there.
            OSError: the run folder is full, read-only or gone.
        """
        path, offset = message.get("path"), message.get("offset")
        named = _PATH.fullmatch(path) if isinstance(path, str) else None
        if named is None or named["host"] != host or not isinstance(offset, int):
            raise Lost(f"it sent a file that is not a rank's of {host}")
        if offset != self._received.get(named[0], 0):
            raise Lost(f"a piece of {path} is missing")
        self._received[named[0]] = offset + len(piece)
        target = self._run_dir / named[0]
        if named["kind"] == "jsonl":
            whole, found, rest = (self._begun.pop(named[0], b"") + piece).rpartition(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise Lost(f"it sent a line of more than {MAX_LINE_BYTES} bytes")
            self._begun[named[0]] = rest
            target, piece = node_path(target.parent, host), node_lines(named["owner"], whole + found)
        if piece:
            append(self._run_dir, target, piece)


def rank_file(path: Path, folder: str) -> re.Match[str] | None:
    """Whose file of a step's folder this is, as ``host``, ``owner`` and ``kind``; None for any other file."""
    return _PATH.fullmatch(f"{path.parent.parent.name}/{folder}/{path.name}")


def append(run_dir: Path, target: Path, piece: bytes) -> None:
    """Adds to a file of the run folder; what follows on a line that was broken off starts a new one.

    Raises:
        OSError: the run folder is full, read-only or gone.
    """
    with answering(run_dir):
        if not run_dir.is_dir():  # a run folder that was removed must not come back
            raise FileNotFoundError(2, "the run folder is gone")
        target.parent.parent.mkdir(exist_ok=True)
        target.parent.mkdir(exist_ok=True)
        handle = os.open(target, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "ab", buffering=0) as file:
            if target.suffix == ".jsonl" and (size := file.tell()) and os.pread(file.fileno(), 1, size - 1) != b"\n":
                piece = b"\n" + piece
            while piece:  # a disk that fills up takes a part and raises at the rest
                piece = piece[file.write(piece) :]
