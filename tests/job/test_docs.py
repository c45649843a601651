"""docs/job.md shows the example that `ddaudit new job` writes, and explains every key and finding."""

from __future__ import annotations

import re
from pathlib import Path

from ddaudit import packs
from ddaudit.evidence import JobPlan
from ddaudit.job import EXAMPLE, JobFile, Layout, ModelShape, RunSettings, parse_job

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "job.md").read_text()


def test_the_page_shows_the_example_and_it_is_valid():
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    assert block == EXAMPLE
    assert parse_job(block, "docs/job.md").job.has_baseline


def test_every_key_has_a_row():
    rows = set(re.findall(r"^\| `([\w.]+)`", PAGE, flags=re.M))
    wanted = {*JobFile.model_fields} - {"layout", "model"}
    wanted |= {f"layout.{name}" for name in Layout.model_fields} | {f"model.{name}" for name in ModelShape.model_fields}
    assert rows == wanted
    assert set(RunSettings.model_fields) < set(JobFile.model_fields)


def test_every_finding_id_of_a_plant_is_explained():
    registry = packs.load(entries=False, environment=False).registry
    mine = [c for c in registry.checks.values() if any(n.type.kind == JobPlan.kind for n in c.needs.values())]
    ids = {id for spec in mine for plant in spec.plants for id in plant.expected}
    assert {id for id in ids if f"`{id}`" not in PAGE} == set()
