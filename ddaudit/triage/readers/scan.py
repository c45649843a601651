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
    late: deque[tuple[bytes, int, list[tuple[int, int]]]] = field(default_factory=deque)

    def last(self) -> Iterator[Hit]:
        """The last TAIL hits of literals that had become common."""
        left = sum(len(places) for _, _, places in self.late) - TAIL
        for block, lines, places in self.late:
            skip, left = max(0, left), left - len(places)
            yield from _hits(block, lines, places[skip:])


def scan_block(block: bytes, state: LineHits) -> Iterator[Hit]:
    """Yields the hits of one block of whole lines, in order; those of common literals wait in ``state.late``."""
    if b"\x1b[" in block:
        block = _ANSI.sub(b"", block)
    rare: list[tuple[int, int]] = []
    common: list[tuple[int, int]] = []
    for literal, at, _ in state.matcher.find(block):
        count = state.seen[literal] = state.seen.get(literal, 0) + 1
        (rare if count <= FRONT else common).append((literal, at))
    yield from _hits(block, state.lines, rare)
    if common:
        state.late.append((block, state.lines, common[-TAIL:]))
        while sum(len(places) for _, _, places in state.late) - len(state.late[0][2]) >= TAIL:
            state.late.popleft()
    state.lines += block.count(b"\n") or 1


def _hits(block: bytes, lines_before: int, places: list[tuple[int, int]]) -> Iterator[Hit]:
    """One hit a line; ``places`` are (literal, offset) in order."""
    counted = 0
    number = lines_before + 1
    current: Hit | None = None
    for literal, at in places:
        if current is not None and at <= current.end:
            current.literals.add(literal)
            continue
        if current is not None:
            yield current
        start = block.rfind(b"\n", 0, at) + 1
        end = block.find(b"\n", at)
        end = len(block) if end < 0 else end
        number += block.count(b"\n", counted, start)
        counted = start
        current = Hit(number, _segment(block, start, end, at), {literal}, block, end)
    if current is not None:
        yield current


def _segment(block: bytes, start: int, end: int, at: int) -> bytes:
    """The line, or, where progress bars rewrote it with carriage returns, the piece that holds the hit."""
    if end > start and block[end - 1 : end] == b"\r":
        end -= 1
    left = block.rfind(b"\r", start, at) + 1 or start
    right = block.find(b"\r", at, end)
    return block[left : end if right < 0 else right]
