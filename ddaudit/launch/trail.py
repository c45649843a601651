"""Reading a rank's event file while it grows: how far it is, and what it said last."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Trail"]

_NAME = re.compile(rb'\{"event": "([a-z-]{1,40})"')
_STEP = re.compile(rb'"step": (\d{1,15})')
#: Events worth parsing. Others only count as signs of life: a step's line can be 40 kB of sample ids.
_TOLD = frozenset({"start", "enter", "error", "collectives", "end"})
CHUNK_BYTES = 4 << 20


class Trail:
    """The readable part of one event file so far. A file that is missing, or vanishes, leaves what was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_event: str | None = None
        self.last_step: int | None = None
        self.phases: list[str] = []
        self.main_thread: str | None = None
        self.error: Mapping[str, Any] | None = None
        self.groups: Mapping[str, Mapping[str, Any]] = {}
        self.reports = 0
        self.ended = False
        self._offset = 0

    def place(self, *, positions: bool) -> tuple[object, ...]:
        """What changes when the rank gets on: compare two looks to tell a slow rank from a stuck one.

        With ``positions`` its collectives count too; leave them out unless both looks have them.
        """
        entered = {name: group["enqueued"] for name, group in self.groups.items()} if positions else {}
        return (self.last_step, tuple(self.phases), entered)

    def read(self) -> None:
        """Takes in the complete lines that were added since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(CHUNK_BYTES)
        except OSError:
            return
        whole = data.rfind(b"\n") + 1
        self._offset += whole if whole or len(data) < CHUNK_BYTES else len(data)
        for line in data[:whole].splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        named = _NAME.match(line)
        if not named:
            return
        name = named[1].decode()
        if name in _TOLD:
            try:
                self._tell(name, json.loads(line))
            except (ValueError, KeyError):
                return  # a damaged line; the evidence reader counts it
        elif name == "step" and (step := _STEP.search(line)):
            self.last_step = int(step[1])
        if name != "collectives":  # an answer to the launcher, not the rank's own progress
            self.last_event = f"{name} {self.phases[-1]}" if name == "enter" else name

    def _tell(self, name: str, event: Mapping[str, Any]) -> None:
        if name == "start":
            self.main_thread = event["main_thread"]
        elif name == "enter":
            self.phases.append(event["name"])
        elif name == "error":
            self.error = event
        elif name == "collectives":
            self.groups = event["groups"]
            self.reports += 1
        elif name == "end":
            self.ended = True
