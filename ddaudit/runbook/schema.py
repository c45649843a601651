"""The JSON Schema of the TOML fences in a runbook page, for editors: keys, types, probes and what each takes."""

from __future__ import annotations

import json
from typing import Any

from ddaudit.registry import Registry
from ddaudit.runbook.model import Runbook, Step

__all__ = ["runbook_schema"]

#: Filled in from the page, not by its author.
FROM_PAGE = ("line", "toml", "prose", "path", "steps", "title")
STEP_FROM_PAGE = ("id", "line", "toml", "prose", "title")


def runbook_schema(registry: Registry) -> str:
    """The schema as text ending in a newline; ``$defs/header`` is ``toml runbook``, ``$defs/step`` is ``toml step``."""
    definitions: dict[str, Any] = {}
    header = _fence(Runbook.model_json_schema(by_alias=True), FROM_PAGE, definitions)
    header["properties"]["title"] = {"type": "string", "description": "Default: the page's first heading."}
    step = _fence(Step.model_json_schema(by_alias=True), STEP_FROM_PAGE, definitions)
    step["properties"]["title"] = {"type": "string", "description": "Default: the heading above the fence."}
    step["properties"]["probe"] = {"enum": sorted(registry.probes), "description": "What the step does."}
    step["allOf"] = [_probe(registry, name) for name in sorted(registry.probes)]
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:ddaudit:runbook:1",
        "title": "TOML fences of a ddaudit runbook",
        "description": "Durations may be words such as '2m', and values may be '$param' or '$step.metric'.",
        "anyOf": [{"$ref": "#/$defs/header"}, {"$ref": "#/$defs/step"}],
        "$defs": {"header": header, "step": step, **definitions},
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _fence(schema: dict[str, Any], ours: tuple[str, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    """One fence's own keys; what they refer to joins ``definitions``."""
    for name, part in schema.pop("$defs", {}).items():
        if name != "Step":
            definitions[name] = _open(part)
    schema["properties"] = {k: _worded(v) for k, v in schema["properties"].items() if k not in ours}
    schema["required"] = [k for k in schema.get("required", ()) if k not in ours]
    return schema


def _open(part: dict[str, Any]) -> dict[str, Any]:
    if "properties" in part:
        part["properties"] = {k: _worded(v) for k, v in part["properties"].items()}
    return part


def _worded(schema: dict[str, Any]) -> dict[str, Any]:
    """Any value may be a reference (``"$ranks"``) or, where it is a duration, words; those are strings."""
    if (schema.get("type") == "string" and "enum" not in schema) or "$ref" in schema:
        return schema
    words = {"pattern": "^\\$"} if "enum" in schema else {"minLength": 1}
    kept: dict[str, Any] = {key: schema.pop(key) for key in ("title", "description", "default") if key in schema}
    return {**kept, "anyOf": [schema, {"type": "string", **words}]}


def _probe(registry: Registry, name: str) -> dict[str, Any]:
    """``with`` of one probe."""
    params = registry.probes[name].params.model_json_schema()
    definitions = params.pop("$defs", {})
    fields = {k: _worded(_inlined(v, definitions)) for k, v in params.get("properties", {}).items()}
    table = {"type": "object", "properties": fields, "additionalProperties": False}
    return {
        "if": {"properties": {"probe": {"const": name}}, "required": ["probe"]},
        "then": {"properties": {"with": table}},
    }


def _inlined(value: Any, definitions: dict[str, Any]) -> Any:
    """``$ref`` replaced by what it names: a probe's definitions would clash with those of others."""
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(item, definitions) for key, item in value.items()}
    return [_inlined(item, definitions) for item in value] if isinstance(value, list) else value
