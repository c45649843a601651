"""Reading event files of ranks and hosts while they grow: how far a rank is, and what it said last."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddaudit.evidence.events import node_path, split_line
from ddaudit.launch.stall import answering
from ddaudit.worker import Order

__all__ = ["Trail"]

_NAME = re.compile(rb'\{"event": "([a-z-]{1,40})"')
_STEP = re.compile(rb'"step": (\d{1,15})')
#: Events worth parsing. Others only count as signs of life: a step's line can be 40 kB of sample ids.
_TOLD = frozenset({"start", "enter", "error", "collectives", "end"})
CHUNK_BYTES = 4 << 20


class _Tape:
    """One event file that grows, of one rank or of all ranks of a host, read once for all who want it."""

    def __init__(self, path: Path, *, node: bool) -> None:
        self._path, self._node = path, node
        self._offset = 0
        self.takers: dict[str, Callable[[bytes], None]] = {}

    def read(self) -> None:
        """Hands out the complete lines that were added since the last call."""
        while True:
            try:
                with answering(self._path.parents[2]), self._path.open("rb") as file:
                    file.seek(self._offset)
                    data = file.read(CHUNK_BYTES)
            except OSError:
                return
            whole = data.rfind(b"\n") + 1
            self._offset += whole if whole or len(data) < CHUNK_BYTES else len(data)
            for line in data[:whole].splitlines():
                self._hand_out(line)
            if len(data) < CHUNK_BYTES or not self._node:
                return

    def _hand_out(self, line: bytes) -> None:
        owned = split_line(line) if self._node else ("", line)
        if owned is not None and (take := self.takers.get(owned[0])) is not None:
            take(owned[1])


class Trail:
    """The readable part of one rank's events so far. A file that is missing, or vanishes, leaves what was read."""

    def __init__(self, path: Path) -> None:
        self.last_event: str | None = None
        self.last_step: int | None = None
        self.phases: list[str] = []
        self.main_thread: str | None = None
        self.error: Mapping[str, Any] | None = None
        self.groups: Mapping[str, Mapping[str, Any]] = {}
        self.reports = 0
        self.ended = False
        self._follow(_Tape(path, node=False), "")

    def _follow(self, tape: _Tape, owner: str) -> None:
        self._tape = tape
        tape.takers[owner] = self._take

    @classmethod
    def of_hosts(cls, orders: Sequence[Order]) -> dict[int, Trail]:
        """By rank, the trails of a step whose hosts have one event file each."""
        tapes = {o.host: _Tape(node_path(o.events_path.parent, o.host), node=True) for o in orders}
        found = {o.rank: cls(o.events_path) for o in orders}
        for order in orders:
            found[order.rank]._follow(tapes[order.host], str(order.rank))
        return found

    def place(self, *, positions: bool) -> tuple[object, ...]:
        """What changes when the rank gets on: compare two looks to tell a slow rank from a stuck one.

        With ``positions`` its collectives count too; leave them out unless both looks have them.
        """
        entered = {name: group["enqueued"] for name, group in self.groups.items()} if positions else {}
        return (self.last_step, tuple(self.phases), entered)

    def read(self) -> None:
        """Takes in the complete lines that were added since the last call."""
        self._tape.read()

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
