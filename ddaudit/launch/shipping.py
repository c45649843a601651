"""Event and log files on their way from a node to the conductor's run folder: piece by piece, as they grow."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ddaudit.launch.wire import MAX_PAYLOAD_BYTES, Lost

__all__ = ["Shipper", "keep_piece"]

#: Files of a rank, by what ``Order`` calls them. Anything else is not taken.
_PATH = re.compile(r"(?:events|logs)/[A-Za-z0-9_-]{1,64}(?:\.[a-z]+\d+){0,3}/(?P<host>[A-Za-z0-9_-]{1,60})-\d{1,7}"
                   r"\.(?:jsonl|bin|log|stack)")  # fmt: skip


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


def keep_piece(run_dir: Path, host: str, message: Mapping[str, Any], piece: bytes) -> None:
    """Appends a piece that the agent of ``host`` sent to its file in the run folder.

    Raises:
        Lost: it names a file that is not one of that host's ranks', or does not continue what is there.
        OSError: the run folder is full, read-only or gone.
    """
    path, offset = message.get("path"), message.get("offset")
    named = _PATH.fullmatch(path) if isinstance(path, str) else None
    if named is None or named["host"] != host or not isinstance(offset, int):
        raise Lost(f"it sent a file that is not a rank's of {host}")
    target = run_dir / str(path)
    if not run_dir.is_dir():  # a run folder that was removed must not come back
        raise FileNotFoundError(2, "the run folder is gone")
    target.parent.parent.mkdir(exist_ok=True)
    target.parent.mkdir(exist_ok=True)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "ab") as file:
        if os.fstat(handle).st_size != offset:
            raise Lost(f"a piece of {path} is missing")
        file.write(piece)
