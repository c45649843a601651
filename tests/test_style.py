"""House budgets: short functions, short files, everything annotated, no shortcut that runs foreign code."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = [*sorted((ROOT / "ddaudit").rglob("*.py")), *sorted((ROOT / "checks").rglob("*.py"))]
MAX_FUNCTION = 40
MAX_FILE = 350


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_files_stay_within_their_budget():
    assert {str(p): n for p in PRODUCT if (n := p.read_text().count("\n")) > MAX_FILE} == {}


def test_functions_stay_within_their_budget():
    long = {
        f"{path.name}:{f.lineno} {f.name}": length
        for path in PRODUCT
        for f in functions(path)
        if (length := (f.end_lineno or 0) - f.lineno + 1) > MAX_FUNCTION
    }
    assert long == {}


def test_every_function_is_annotated():
    bare = [
        f"{path.name}:{f.lineno} {f.name}"
        for path in PRODUCT
        for f in functions(path)
        if f.returns is None or any(a.annotation is None for a in f.args.args if a.arg not in ("self", "cls"))
    ]
    assert bare == []


FORBIDDEN_CALLS = {"eval", "exec"}
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "yaml", "dill"}


def test_nothing_runs_foreign_code():
    found = []
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                found.append(f"{path.name}:{node.lineno} {node.func.id}")
            if isinstance(node, ast.keyword) and node.arg == "shell" and getattr(node.value, "value", None) is True:
                found.append(f"{path.name}:{node.value.lineno} shell=True")
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found += [f"{path.name}:{node.lineno} {n}" for n in names if n.partition(".")[0] in FORBIDDEN_MODULES]
    assert found == []


def test_no_exception_is_swallowed_whole():
    """An ``except Exception`` or bare ``except`` whose body is ``pass`` hides bugs."""
    silent = [
        f"{path.name}:{node.lineno}"
        for path in PRODUCT
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or getattr(node.type, "id", "") in ("Exception", "BaseException"))
        and all(isinstance(s, ast.Pass) for s in node.body)
    ]
    assert silent == []


@pytest.mark.parametrize(
    "tool",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy", "--cache-dir", "{tmp}"]],
    ids=["ruff-check", "ruff-format", "mypy-strict"],
)
def test_the_tree_is_clean(tool: list[str], tmp_path: Path):
    argv = [word.format(tmp=tmp_path) for word in tool]
    done = subprocess.run([sys.executable, "-m", *argv], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
