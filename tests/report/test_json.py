"""The --json object and its published schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddaudit.errors import EvidenceProblem
from ddaudit.findings import QUESTIONS
from ddaudit.report import render
from ddaudit.report.envelope import Envelope, json_schema
from tests.report import records

SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"
ALL = ["healthy", "failed", "not_a_number", "interrupted", "empty", "audit", "hostile"]


@pytest.mark.parametrize("name", ALL)
def test_every_record_gives_an_object_of_the_published_shape(name: str) -> None:
    data = json.loads(render(getattr(records, name)(), "json"), parse_constant=pytest.fail)
    Envelope.model_validate(data)
    assert [q["id"] for q in data["questions"]] == list(QUESTIONS)


def test_the_published_schema_is_the_one_the_models_give() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == json_schema(), "run: python -m ddaudit.report.envelope > docs/..."


def test_findings_keep_every_field_and_questions_point_at_them() -> None:
    data = json.loads(render(records.failed(), "json", run_dir=Path("/runs/x")))
    bad = next(f for f in data["findings"] if f["id"] == "sync.missing-on-step")
    assert bad["where"] == {
        "host": "node05", "rank": 0, "device": None, "file": None, "key": None, "tensor": None, "step": 4,
    }  # fmt: skip
    assert bad["remedy"] == {
        "text": "Leave no_sync before the last micro-batch.",
        "commands": ["grep -n no_sync train.py"],
    }
    assert (bad["measured"], bad["limit"], bad["limit_source"]) == (0, 1, "parallelism's own need")
    assert (data["verdict"], data["exit_code"], data["run"]) == ("FAIL", 1, "/runs/x")
    sync = next(q for q in data["questions"] if q["id"] == "sync")
    assert {data["findings"][i]["question"] for i in sync["findings"]} == {"sync"}
    assert len(sync["findings"]) == 9


def test_non_finite_numbers_are_words() -> None:
    data = json.loads(render(records.not_a_number(), "json"))
    assert data["findings"][0]["measured"] == "NaN"
    assert data["findings"][0]["limit"] == "Infinity"
    assert data["findings"][1]["measured"] == "-Infinity"
    assert data["created"] == "NaN" and data["seconds"] == "Infinity"


def test_extra_keys_join_at_the_top_but_never_hide_a_common_one() -> None:
    data = json.loads(render(records.record(extra={"identical": True}), "json"))
    assert data["identical"] is True
    with pytest.raises(EvidenceProblem, match="verdict"):
        render(records.record(extra={"verdict": "PASS"}), "json")


def test_hostile_text_survives_as_data_and_acts_on_no_terminal() -> None:
    text = render(records.hostile(), "json")
    assert json.loads(text)["findings"][0]["text"] == records.HOSTILE
    assert all(line.isprintable() for line in text.splitlines())
