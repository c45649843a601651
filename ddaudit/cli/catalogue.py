"""What is loaded, as plain rows: the common source of ``list``, ``show`` and their JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddaudit.errors import Problem, UsageProblem

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ddaudit.limits import Limit
    from ddaudit.packs import Packs
    from ddaudit.registry import CheckSpec, ProbeSpec

__all__ = ["KINDS", "bounds", "check_row", "pack_of", "probe_row", "rows", "runbook_row"]

KINDS = ("checks", "probes", "runbooks", "packs", "plants")


def rows(kind: str, packs: Packs) -> list[dict[str, Any]]:
    """Every item of a kind, JSON-ready, ordered by id (packs: by loading)."""
    registry = packs.registry
    if kind == "checks":
        return [check_row(spec, packs) for _, spec in sorted(registry.checks.items())]
    if kind == "probes":
        return [probe_row(spec, packs) for _, spec in sorted(registry.probes.items())]
    if kind == "runbooks":
        return [runbook_row(id, packs) for id in sorted(packs.runbooks)]
    if kind == "plants":
        return [row for _, spec in sorted(registry.checks.items()) for row in _plant_rows(spec)]
    if kind == "packs":
        return _pack_rows(packs)
    raise UsageProblem(f"nothing is called {kind!r}", expected=f"one of {', '.join(KINDS)}")


def check_row(spec: CheckSpec, packs: Packs) -> dict[str, Any]:
    """One check with what it reads, its default limits and its plants."""
    return {
        "id": spec.id,
        "asks": spec.asks,
        "question": spec.question,
        "evidence": [need.type.kind + ("?" if need.optional else "") for need in spec.needs.values()],
        "limits": {name: _limit(limit) for name, limit in spec.metrics().items()},
        "plants": [plant.name for plant in spec.plants],
        "findings": list(dict.fromkeys(id for plant in spec.plants for id in plant.expected)),
        "pack": pack_of(spec.source.file, packs),
        "source": str(spec.source),
        "doc": spec.doc,
    }


def probe_row(spec: ProbeSpec, packs: Packs) -> dict[str, Any]:
    """One probe with its parameters."""
    return {
        "id": spec.name,
        "where": spec.where,
        "produces": [kind.kind for kind in spec.produces],
        "params": _params(spec.params),
        "pack": pack_of(spec.source.file, packs),
        "source": str(spec.source),
        "doc": spec.doc,
    }


def runbook_row(id: str, packs: Packs) -> dict[str, Any]:
    """One runbook; one that cannot be read says why in ``problem``."""
    from ddaudit.runbook import load_runbook

    path = packs.runbooks[id]
    row: dict[str, Any] = {"id": id, "pack": pack_of(str(path), packs), "source": str(path)}
    try:
        page = load_runbook(path)
    except Problem as problem:
        return {**row, "title": None, "problem": str(problem)}
    return {
        **row,
        "title": page.title,
        "mode": page.mode,
        "owner": page.owner,
        "budget_s": page.budget,
        "tags": list(page.tags),
        "params": {name: param.model_dump(mode="json") for name, param in page.params.items()},
        "steps": [step.id for step in page.steps],
        "problem": None,
    }


def pack_of(file: str, packs: Packs) -> str:
    """Name of the pack that a file belongs to: the innermost folder that holds it."""
    holding = [p for p in packs.packs if Path(file).is_relative_to(p.folder)]
    return max(holding, key=lambda p: len(p.folder.parts)).name if holding else "builtin"


def bounds(limit: Limit) -> str:
    """``fail above 3, warn above 2``."""
    names = ("fail_above", "fail_below", "warn_above", "warn_below")
    given = [(name.replace("_", " "), getattr(limit, name)) for name in names]
    return ", ".join(f"{words} {value:g}" for words, value in given if value is not None)


def _limit(limit: Limit) -> dict[str, Any]:
    return limit.model_dump(mode="json", exclude_none=True)


def _params(model: type[BaseModel]) -> list[dict[str, Any]]:
    schema = model.model_json_schema()
    required = set(schema.get("required", ()))
    return [
        {
            "name": name,
            "type": _type(entry, schema.get("$defs", {})),
            "default": entry.get("default"),
            "required": name in required,
            "help": entry.get("description", ""),
        }
        for name, entry in schema.get("properties", {}).items()
    ]


def _type(entry: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A JSON-schema type in the words of a TOML writer."""
    if "$ref" in entry:
        inner = definitions.get(entry["$ref"].rpartition("/")[2], {})
        return f"table of {', '.join(inner.get('properties', {}))}" if inner.get("properties") else "table"
    if "enum" in entry:
        return " | ".join(str(value) for value in entry["enum"])
    if "anyOf" in entry:
        kinds = [_type(option, definitions) for option in entry["anyOf"] if option.get("type") != "null"]
        return " | ".join(dict.fromkeys(kinds))
    if entry.get("type") == "array":
        return f"list of {_type(entry.get('items', {}), definitions)}"
    spelled = {"object": "table", "number": "number", "string": "text"}
    kind = str(entry.get("type", "any"))
    return spelled.get(kind, kind)


def _plant_rows(spec: CheckSpec) -> list[dict[str, Any]]:
    return [
        {
            "id": spec.id,
            "plant": plant.name,
            "expect": list(plant.expected),
            "probe": plant.probe,
            "ranks": plant.ranks,
            "type": plant.types,
        }
        for plant in spec.plants
    ]


def _pack_rows(packs: Packs) -> list[dict[str, Any]]:
    checks = [pack_of(spec.source.file, packs) for spec in packs.registry.checks.values()]
    probes = [pack_of(spec.source.file, packs) for spec in packs.registry.probes.values()]
    books = [pack_of(str(path), packs) for path in packs.runbooks.values()]
    return [
        {
            "id": pack.name,
            "source": str(pack.folder),
            "builtin": pack.builtin,
            "checks": checks.count(pack.name),
            "probes": probes.count(pack.name),
            "runbooks": books.count(pack.name),
            "templates": len(list((pack.folder / "templates").glob("*.j2"))),
            "failures": [f"{f.file}: {f.error}" for f in packs.failures if f.pack == pack.name],
        }
        for pack in packs.packs
    ]
