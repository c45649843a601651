"""The published JSON Schema of runbooks accepts every page that ships, and refuses what lint refuses."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```toml (runbook|step)[^\n]*\n(.*?)^```", re.M | re.S)


@pytest.fixture(scope="module")
def validators() -> dict[str, Any]:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs" / "runbook.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    kinds = {"runbook": "header", "step": "step"}
    return {
        kind: jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})
        for kind, name in kinds.items()
    }


@pytest.mark.parametrize("page", sorted((ROOT / "runbooks").glob("*.md")), ids=lambda p: p.stem)
def test_every_shipped_page_is_valid(validators: dict[str, Any], page: Path) -> None:
    fences = FENCE.findall(page.read_text(encoding="utf-8"))
    assert len(fences) > 1
    for kind, text in fences:
        assert [f"{e.json_path}: {e.message}" for e in validators[kind].iter_errors(tomllib.loads(text))] == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("step", 'probe = "trian"'),
        ("step", 'probe = "train"\nwith = { parralel = "data" }'),
        ("step", 'probe = "train"\nseverity = "huge"'),
        ("step", "checks = [1]"),
        ("step", "retry = 1"),
        ("runbook", 'mode = "swep"\nid = "a"'),
        ("runbook", "title = 'no id'"),
    ],
)
def test_a_mistake_is_refused(validators: dict[str, Any], kind: str, text: str) -> None:
    assert list(validators[kind].iter_errors(tomllib.loads(text)))
