"""Records outlive the ddaudit that wrote them: an old one is read by this version, and one of a later version that only
added fields is read too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddaudit.record import NewerRecord, Record, load_record, save_record
from ddaudit.report import FORMATS, render
from tests.report.exhibited import drawn

#: As version 0.1.0 wrote it, before steps had exhibits. Never regenerate it: that would test nothing.
OLD = Path(__file__).parent / "golden" / "record-0.1.0.json"


def folder(tmp_path: Path, data: dict[str, Any]) -> Path:
    (tmp_path / "record.json").write_text(json.dumps(data))
    return tmp_path


@pytest.fixture
def old() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(OLD.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("format", list(FORMATS))
def test_an_old_record_is_told_in_every_format_as_before(tmp_path: Path, old: dict[str, Any], format: str) -> None:
    record = load_record(folder(tmp_path, old))
    assert (record.exit_code, len(record.findings), record.steps[0].exhibits) == (1, len(old["findings"]), {})
    assert "sync.missing-on-step" in render(record, format)


def test_what_a_later_version_added_is_passed_over(tmp_path: Path, old: dict[str, Any]) -> None:
    later = old | {"energy_joule": 12.5, "steps": [{**s, "carbon": {"kg": 1}} for s in old["steps"]]}
    assert load_record(folder(tmp_path, later)) == Record.model_validate(old)


def test_a_record_of_another_schema_is_neither_read_nor_replaced(tmp_path: Path, old: dict[str, Any]) -> None:
    with pytest.raises(NewerRecord, match="update ddaudit"):
        load_record(folder(tmp_path, old | {"schema": "ddaudit/2"}))


def test_a_record_with_exhibits_is_read_back_whole(tmp_path: Path) -> None:
    record = drawn(Record.model_validate(json.loads(OLD.read_text(encoding="utf-8"))))
    save_record(record, tmp_path)
    assert load_record(tmp_path) == record
