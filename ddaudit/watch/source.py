"""What a script's own source says about a line: whether only some ranks come there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["guarded", "is_own"]

MAX_BYTES = 2 << 20
_OURS = str(Path(__file__).resolve().parents[1])
_PACKAGES = ("site-packages", "dist-packages", "/lib/python", "<")
#: Words by which scripts ask for the rank. Comparisons with -1 ask whether there are ranks at all.
_RANK = re.compile(r"\b\w*rank\b|is_(local_|world_)?(main|master|global_zero|leader|chief)|main_process|process_index")
_ANY = re.compile(r"-\s*1\b|>= 0\b|is (not )?None")


def is_own(file: str) -> bool:
    """False for files of installed packages and of Python itself."""
    return not file.startswith(_OURS) and not any(part in file for part in _PACKAGES)


def guarded(places: Iterable[tuple[str, int]]) -> str | None:
    """``file:line under `if ...` `` for the first of the places (innermost first) that only some ranks reach by a
    condition on the rank; None where no such condition is seen."""
    for file, line in places:
        if is_own(file) and (test := _condition(file, line)) is not None:
            return f"{Path(file).name}:{line} under `{test}`"
    return None


def _condition(file: str, line: int) -> str | None:
    path = Path(file)
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        tree = ast.parse(path.read_text("utf-8", "replace"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    return next((text for test in _tests(tree, line) if (text := _asks_rank(test))), None)


def _asks_rank(test: ast.expr) -> str | None:
    text = ast.unparse(test)
    return f"if {text}"[:80] if _RANK.search(text) and not _ANY.search(text) else None


def _tests(tree: ast.AST, line: int) -> Iterator[ast.expr]:
    """Conditions around a line, and those before it in the same block at which the others return."""
    for node in ast.walk(tree):
        if not _holds(node, line):
            continue
        if isinstance(node, ast.If) and not _holds(node.test, line):
            yield node.test
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            if not isinstance(block, list) or not any(_holds(x, line) for x in block):
                continue
            for before in (x for x in block if isinstance(x, ast.If) and (x.end_lineno or 0) < line):
                if isinstance(before.body[-1], ast.Return | ast.Continue):
                    yield before.test


def _holds(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return isinstance(node, ast.Module) or (first is not None and last is not None and first <= line <= last)
