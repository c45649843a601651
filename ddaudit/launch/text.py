"""Ends of text files that a rank left: its log, its stacks."""

from __future__ import annotations

from pathlib import Path

__all__ = ["main_thread_stack", "tail"]

TAIL_BYTES = 12_000


def tail(path: Path, limit: int = TAIL_BYTES) -> str:
    """The last ``limit`` bytes as text; empty when there is no such file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit))
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def main_thread_stack(stacks: str, ident: str | None) -> str:
    """The frames of thread ``ident`` (as in ``Thread 0x00007f...``) in a faulthandler dump, newest dump first."""
    if ident is None:
        return ""
    for block in reversed(stacks.split("\n\n")):
        head, _, frames = block.partition("\n")
        if ident in head:
            return frames
    return ""
