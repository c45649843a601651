"""What a forecast's pictures show, from a record that a laptop holds."""

from __future__ import annotations

from ddaudit.forecast.outlook import Question, answer
from ddaudit.job import EXAMPLE, parse_job
from ddaudit.record import Record, StepRecord
from ddaudit.report.pictures_forecast import forecast


def record(*to: int) -> Record:
    facts = answer(Question(to), job=parse_job(EXAMPLE, "job.toml"), hardware="h100-ndr")
    step = StepRecord(id="f", title="f", state="done", evidence={"forecast": facts.model_dump(mode="json")})
    return Record(ddaudit_version="1", command="run", run_id="r", created=0.0, steps=(step,))


def test_terms_and_memory_are_drawn_with_their_numbers_as_tables():
    steps, memory = forecast(record(64, 512))
    assert {steps.area, memory.area} == {"forecast"}
    assert [row[0] for row in steps.rows] == ["8", "64", "512"]
    assert "compute" in steps.heads
    assert "512 devices: helps" in steps.finding
    assert steps.drawing.startswith("<svg")
    assert "GiB of 80 GiB" in memory.finding


def test_one_size_or_evidence_of_another_version_draws_nothing():
    assert list(forecast(record(8))) == []
    whole = record(64)
    broken = whole.model_copy(
        update={"steps": (whole.steps[0].model_copy(update={"evidence": {"forecast": {"a": 1}}}),)}
    )
    assert list(forecast(broken)) == []
