"""Imports go downward only. The table is the floor plan of docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FLOORS = {
    "errors": 0, "jsonio": 0, "findings": 0, "limits": 0, "evidence": 0, "redact": 0, "lazy": 0,
    "plants": 1, "registry": 1, "packs": 1, "context": 1, "device": 1, "inert": 1, "runbook": 1, "record": 1,
    "flightrecorder": 1, "job": 1, "api": 1, "network": 1,
    "training": 2, "probes": 2, "checkpoint": 2, "watch": 2, "triage": 2, "forecast": 2,
    "launch": 3, "worker": 3,
    "engine": 4, "report": 4,
    "cli": 5,
    "calls": 6,
}  # fmt: skip

#: On the second floor, probes drive the rooms that know their subject; nothing else there knows a neighbour.
SIDEWAYS = {("probes", r) for r in ("training", "checkpoint", "watch", "triage", "forecast")} | {("launch", "worker")}
#: Rooms of one floor that may share, because one is the other's vocabulary.
WITHIN = {0, 1}


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "ddaudit" and len(parts) > 1 else None


def imports(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "ddaudit" else [node.module]
            found += [(node.lineno, n) for n in names]
    return found


def test_imports_go_downward_only():
    wrong = []
    for path in sorted((ROOT / "ddaudit").rglob("*.py")):
        relative = path.relative_to(ROOT / "ddaudit")
        mine = relative.parts[0].removesuffix(".py")
        if mine in ("__init__", "__main__"):
            continue
        for line, name in imports(path):
            other = room(name)
            if other in (None, mine, "__version__"):
                continue
            downward = FLOORS[other] < FLOORS[mine]
            aside = FLOORS[other] == FLOORS[mine] and (FLOORS[mine] in WITHIN or (mine, other) in SIDEWAYS)
            if not (downward or aside):
                wrong.append(f"{relative}:{line} {mine} -> {other}")
    assert wrong == []


def test_every_room_has_a_floor():
    rooms = {
        p.name.removesuffix(".py")
        for p in (ROOT / "ddaudit").iterdir()
        if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert rooms - {"__init__", "__main__"} <= set(FLOORS)


IMPURE = {"torch", "h5py", "time", "random", "os", "subprocess", "socket", "threading", "urllib", "shutil"}


#: The second door is the table of faults that the built-in pack's plants are made from; it imports no torch.
DOORS = {"ddaudit.api", "ddaudit.training.faults"}


def test_checks_use_the_door_only():
    """A check is pure: no torch, no clock, no I/O; of ddaudit it knows the pack door alone."""
    wrong = [
        f"{path.name}:{line} {name}"
        for path in sorted((ROOT / "checks").rglob("*.py"))
        for line, name in imports(path)
        if name.partition(".")[0] in IMPURE or (name.startswith("ddaudit") and name not in DOORS)
    ]
    assert wrong == []


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def module_graph() -> dict[str, set[str]]:
    """Module-level imports inside the package (those under TYPE_CHECKING or in functions make no cycle at run time).

    ``from package import module`` needs the module; ``from package import name`` needs what the package exports.
    """
    paths = {module_name(p): p for p in (ROOT / "ddaudit").rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module in paths:
                targets = [f"{node.module}.{a.name}" for a in node.names]
                graph[name] |= {t if t in paths else node.module for t in targets} - {name}
    return graph


def test_there_is_no_import_cycle():
    graph = module_graph()
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            # A package's __init__ re-exports its members; members importing siblings through it would be a cycle.
            for target in sorted(graph[name]):
                visit(target, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())
