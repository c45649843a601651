"""Ends of text files that a rank left: its log, its stacks."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from ddaudit.launch.stall import answering

__all__ = ["main_thread_stack", "own_frame", "size", "tail"]

TAIL_BYTES = 12_000
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')


def tail(path: Path, limit: int = TAIL_BYTES) -> str:
    """The last ``limit`` bytes as text; empty when there is no such file."""
    try:
        with answering(path.parents[2]), path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit))
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def size(path: Path) -> int:
    """Bytes of a file; 0 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def main_thread_stack(stacks: str, ident: str | None) -> str:
    """The frames of thread ``ident`` (as in ``Thread 0x00007f...``) in a faulthandler dump, newest dump first."""
    if ident is None:
        return ""
    for block in reversed(stacks.split("\n\n")):
        head, _, frames = block.partition("\n")
        if ident in head:
            return frames
    return ""


def own_frame(stack: str) -> str | None:
    """``file:line in function`` of the innermost frame outside the standard library and installed packages; the
    innermost of all where every frame is a library's."""
    libraries = tuple(
        {p for k, p in sysconfig.get_paths().items() if k in ("stdlib", "platstdlib", "purelib", "platlib")}
    )
    frames = list(_FRAME.finditer(stack))
    chosen = next((f for f in frames if not f["file"].startswith((*libraries, "<"))), frames[0] if frames else None)
    return f"{Path(chosen['file']).name}:{chosen['line']} in {chosen['name']}" if chosen else None
