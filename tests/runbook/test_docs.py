"""docs/runbooks.md against the code: every field, fact and example in it is real, and none is missing."""

from __future__ import annotations

import re
from pathlib import Path

from ddaudit.packs import Packs
from ddaudit.probes._capture import Capture
from ddaudit.probes.command import CommandParams
from ddaudit.runbook import lint_runbook
from ddaudit.runbook.messages import fields_of
from ddaudit.runbook.model import Param, Runbook, Step
from ddaudit.runbook.when import FACTS

PAGE = (Path(__file__).parents[2] / "docs" / "runbooks.md").read_text()
OURS = {"path", "line", "toml", "prose", "steps"}


def table(heading: str) -> dict[str, str]:
    """First column -> rest of the row, of the first table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", section, flags=re.M)
    return dict(rows)


def test_the_tables_list_every_field_and_no_other() -> None:
    assert set(table("Header")) == set(fields_of(Runbook)) - OURS
    assert set(table("Step")) == set(fields_of(Step)) - OURS - {"id"}
    command = {name for name in fields_of(CommandParams) if name != "capture"}
    assert set(table("The probe `command`")) == command | {f"capture.{name}" for name in fields_of(Capture)}


def test_every_key_of_a_parameter_is_named() -> None:
    section = PAGE.partition("\n## Header\n")[2].partition("\n## ")[0]
    assert [name for name in fields_of(Param) if f"`{name}`" not in section] == []


def test_the_facts_are_those_of_conditions() -> None:
    assert table("Conditions") == {name: f"{kind} | {meaning}" for name, (kind, meaning) in FACTS.items()}


def test_the_example_is_clean(loaded: Packs, tmp_path: Path) -> None:
    (example,) = re.findall(r"^````markdown\n(.*?)^````$", PAGE, flags=re.S | re.M)
    path = tmp_path / "fabric.md"
    path.write_text(example)
    assert [str(problem) for problem in lint_runbook(path, loaded)] == []
