"""Python tracebacks as ranks print them: labelled, interleaved, chained, in threads, or cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddaudit.triage.readers.lines import Line, LineReader
from ddaudit.triage.readers.scan import Hit

__all__ = ["FINAL", "Traceback", "follow"]

#: A traceback longer than this (deep recursion) is cut; the final line is then found on its own.
MAX_LINES = 400
FINAL = re.compile(
    r"(?P<kind>(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Failure|Problem|Exceeded|Fault|Iteration|NotFound))"
    r"(?:: ?(?P<message>.*))?$"
)
_ANY_FINAL = re.compile(r"(?P<kind>(?:[A-Za-z_]\w*\.)+[A-Z]\w+|[A-Z]\w+)(?:: ?(?P<message>.*))?$")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<func>.+)')


@dataclass(slots=True)
class Traceback:
    """The frames (outermost first) and the final line of one traceback."""

    frames: tuple[str, ...]
    final: Line
    kind: str
    message: str
    lines: frozenset[int]


def follow(head: Line, hit: Hit, reader: LineReader) -> Traceback | None:
    """Reads on from ``Traceback (most recent call last):`` along the lines with the same label.

    Lines of other ranks in between are stepped over. Returns None when the block ends first.
    """
    indent = len(head.body) - len(head.body.lstrip())
    frames: list[str] = []
    members: list[int] = [head.number]
    for line in _same_writer(head, hit, reader):
        body = line.body[indent:] if line.body[:indent].isspace() or not indent else line.body
        members.append(line.number)
        if frame := _FRAME.match(body):
            frames.append(f"{frame['func']} ({frame['file']}:{frame['line']})")
        elif body and not body[0].isspace() and (final := FINAL.match(body) or _ANY_FINAL.match(body)):
            members.extend(_rest_of_message(line))
            return Traceback(tuple(frames), line, final["kind"], final["message"] or "", frozenset(members))
        elif body and not body[0].isspace():
            return None
    return None


def _rest_of_message(line: Line) -> list[int]:
    return [line.number]


def _same_writer(head: Line, hit: Hit, reader: LineReader) -> Iterator[Line]:
    want = (head.rank, head.local_rank, head.task)
    for number, raw in hit.following(MAX_LINES):
        line = reader.read(number, raw)
        bare = not line.label.strip()
        same = (line.rank, line.local_rank, line.task) == want
        if (
            same
            or (bare and line.body[:1].isspace())
            or (bare and want == (None, None, None) and line.rank is not None)
        ):
            yield line
