"""Finding the line of a key inside a TOML fence, so that a message points at what must change."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["locate"]


def locate(toml: str, keys: Sequence[str]) -> int:
    """1-based line of a nested key within ``toml``; 0 (the fence's own line) when not even the first key is there.

    tomllib keeps no positions, so each key of the path is looked for behind its parent. The deepest key that is found
    decides; inline tables, dotted keys and ``[tables]`` all read in that order.
    """
    position = found = -1
    for key in keys:
        pattern = rf"(?:^|[\s.,{{\[]){_spelled(key)}(?=\s*[=.\]])"
        match = re.compile(pattern, re.MULTILINE).search(_without_comments(toml), max(position, 0))
        if match is None:
            break
        found = match.end() - 1
        position = match.end()
    return 0 if found < 0 else toml.count("\n", 0, found) + 1


def _spelled(key: str) -> str:
    """A TOML key may be bare or quoted."""
    return rf"[\"']?{re.escape(str(key))}[\"']?"


def _without_comments(toml: str) -> str:
    """Blanks whole-line comments, keeping every offset."""
    return re.sub(r"(?m)^[ \t]*#.*$", lambda m: " " * len(m.group()), toml)
