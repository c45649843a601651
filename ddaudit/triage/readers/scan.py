"""Walks one file block by block and hands out the lines that hold a wanted literal, with what follows them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddaudit.triage.catalogue import Matcher

__all__ = ["Hit", "LineHits", "scan_block"]

#: Hits of one literal in one file that are looked at from the front; beyond, only the last TAIL count. A log that says
#: the same thing ten thousand times says nothing new in the middle.
FRONT, TAIL = 2000, 200
_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(slots=True)
class Hit:
    """A line with a wanted literal. ``after`` is the rest of its block, for what spans several lines."""

    number: int
    raw: bytes
    literals: set[int]
    block: bytes
    end: int

    def following(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """(line number, raw line) of up to ``limit`` lines after this one."""
        at, number = self.end + 1, self.number
        for _ in range(limit):
            if at >= len(self.block):
                return
            stop = self.block.find(b"\n", at)
            stop = len(self.block) if stop < 0 else stop
            number += 1
            yield number, self.block[at:stop]
            at = stop + 1


@dataclass
class LineHits:
    """Per-file counters: line numbers so far, hits per literal, and the late hits that wait for the end of the file."""

    matcher: Matcher
    lines: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    late: deque[Hit] = field(default_factory=lambda: deque(maxlen=TAIL))


def scan_block(block: bytes, state: LineHits) -> Iterator[Hit]:
    """Yields the hits of one block of whole lines, in order; moves repeated ones to ``state.late``."""
    if b"\x1b[" in block:
        block = _ANSI.sub(b"", block)
    counted = start = 0
    number = state.lines + 1
    current: Hit | None = None
    for literal, at, _ in state.matcher.find(block):
        if current is not None and at <= current.end:
            current.literals.add(literal)
            continue
        if current is not None and (ready := _sort(current, state)):
            yield ready
        start = block.rfind(b"\n", 0, at) + 1
        end = block.find(b"\n", at)
        end = len(block) if end < 0 else end
        number += block.count(b"\n", counted, start)
        counted = start
        current = Hit(number, _segment(block, start, end, at), {literal}, block, end)
    if current is not None and (ready := _sort(current, state)):
        yield ready
    state.lines += block.count(b"\n") or 1


def _sort(hit: Hit, state: LineHits) -> Hit | None:
    """The hit itself while one of its literals is still rare; otherwise it waits among the last ones."""
    rare = False
    for literal in hit.literals:
        count = state.seen[literal] = state.seen.get(literal, 0) + 1
        rare = rare or count <= FRONT
    if rare:
        return hit
    hit.block = hit.block[hit.end - len(hit.raw) : hit.end + 65536]
    hit.end = len(hit.raw)
    state.late.append(hit)
    return None


def _segment(block: bytes, start: int, end: int, at: int) -> bytes:
    """The line, or, where progress bars rewrote it with carriage returns, the piece that holds the hit."""
    if end > start and block[end - 1 : end] == b"\r":
        end -= 1
    left = block.rfind(b"\r", start, at) + 1 or start
    right = block.find(b"\r", at, end)
    return block[left : end if right < 0 else right]
