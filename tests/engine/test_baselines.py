"""Baselines: what is noise, what is a regression, and a file that travels."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddaudit.engine.baselines import Baseline, compare, judge_baseline, learn, load_baseline, save_baseline
from ddaudit.errors import UsageProblem
from ddaudit.findings import Status
from ddaudit.record import Record, StepRecord
from tests.report import records

NUMBER = itertools.count()
HISTORIES, RUNS, TRIALS = 30, 12, 40


def run(tokens_per_s: float, step_s: float = 0.1, **fields: object) -> Record:
    summary = {"tokens_per_s": tokens_per_s, "step_s": step_s, "world_size": 2}
    step = StepRecord(id="data", title="Data", state="done", summary=summary)
    facts = {"device": "cpu", "cpus": 2, "packages": {"torch": "2.13.0"}}
    one = {"run_id": f"run-{next(NUMBER)}", "steps": (step,), "facts": facts} | fields
    return records.record([records.finding(Status.PASS)], **one)


def noisy(random_state: random.Random, noise: float) -> float:
    """One run's tokens per second: normal noise, and one run in twenty of a machine that somebody else was using."""
    value = 10_000 * (1 + random_state.gauss(0, noise))
    return value * 0.7 if random_state.random() < 0.05 else value


def flagged(baseline: Baseline, values: Sequence[float]) -> float:
    hits = [row.worse for v in values for row in compare([run(v)], baseline) if row.metric == "data.tokens_per_s"]
    return sum(hits) / len(values)


def test_in_30_noisy_histories_a_tenth_less_is_flagged_and_noise_is_not() -> None:
    state = random.Random(20261130)
    caught, alarms = [], []
    for _ in range(HISTORIES):
        noise = state.uniform(0.003, 0.018)
        baseline = learn("good", [run(noisy(state, noise)) for _ in range(RUNS)], created=0.0)
        caught.append(flagged(baseline, [10_000 * 0.9 * (1 + state.gauss(0, noise)) for _ in range(TRIALS)]))
        alarms.append(flagged(baseline, [10_000 * (1 + state.gauss(0, noise)) for _ in range(TRIALS)]))
    assert sum(caught) / HISTORIES >= 0.95
    assert sum(alarms) / HISTORIES < 0.02


def test_outliers_are_removed_and_counted() -> None:
    baseline = learn("good", [run(v) for v in (100, 101, 99, 100.5, 99.5, 50)], created=0.0)
    known = baseline.devices["cpu x2"]["data.tokens_per_s"]
    assert (known.median, known.count, known.removed) == (100, 5, 1)


def test_a_direction_is_known_and_better_is_no_regression() -> None:
    baseline = learn("good", [run(v, 1000 / v) for v in (100, 101, 99, 100)], created=0.0)
    rows = {row.metric: row for row in compare([run(150, 5.0)], baseline)}
    assert not rows["data.tokens_per_s"].worse and rows["data.tokens_per_s"].better
    assert not rows["data.step_s"].worse and rows["data.step_s"].better
    rows = {row.metric: row for row in compare([run(60, 15.0)], baseline)}
    assert rows["data.tokens_per_s"].worse and rows["data.step_s"].worse


def test_repeats_of_one_measurement_speak_by_their_median() -> None:
    baseline = learn("good", [run(v) for v in (100, 101, 99, 100)], created=0.0)
    rows = {row.metric: row for row in compare([run(100), run(55), run(101)], baseline)}
    assert rows["data.tokens_per_s"].value == 100 and not rows["data.tokens_per_s"].worse


def test_findings_name_metric_number_limit_and_where_it_came_from() -> None:
    baseline = learn("good", [run(v) for v in (100, 101, 99, 100)], created=0.0)
    found = {f.id: f for f in judge_baseline(run(80), baseline)}
    bad = found["baseline.regression"]
    assert (bad.status, bad.measured, bad.step, bad.unit) == (Status.WARN, 80, "data", "token/s")
    assert "20% worse" in bad.text and "baseline good: 100 over 4 runs" in (bad.limit_source or "")
    assert bad.remedy is not None and bad.remedy.commands and found["baseline"].status is Status.PASS


def test_another_device_type_is_not_compared_and_never_passes() -> None:
    baseline = learn("good", [run(v) for v in (100, 101, 99)], created=0.0)
    other = run(100).model_copy(update={"facts": {"device": "cpu", "cpus": 64}})
    assert [f.status for f in judge_baseline(other, baseline)] == [Status.SKIP]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([run(1), run(2)], "2 run"),
        ([run(1), run(2), run(3, exit_code=1)], "no baseline"),
        ([run(1), run(2), run(3, complete=False)], "no baseline"),
        ([run(1), run(2, run_id="x"), run(3, run_id="x")], "given twice"),
        ([run(1).model_copy(update={"steps": ()}) for _ in range(3)], "no metric"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(runs: list[Record], said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        learn("good", runs, created=0.0)


def test_a_file_travels_and_a_broken_one_is_one_line(tmp_path: Path) -> None:
    baseline = learn("good", [run(v) for v in (100, 101, 99)], created=5.0)
    save_baseline(baseline, path := tmp_path / "good.baseline.json")
    assert load_baseline(path) == baseline
    for text in ("{", "[]", '{"schema": "ddaudit-baseline/2"}', "[" * 100_000, "\x00"):
        path.write_text(text)
        with pytest.raises(UsageProblem, match="not a baseline") as problem:
            load_baseline(path)
        assert "\n" not in str(problem.value)
    with pytest.raises(UsageProblem, match="cannot be read"):
        load_baseline(tmp_path / "none.json")


def test_different_work_is_not_compared() -> None:
    baseline = learn("good", [run(v) for v in (100, 101, 99)], created=0.0)
    wider = run(50)
    step = wider.steps[0].model_copy(update={"summary": {**wider.steps[0].summary, "world_size": 4}})
    assert list(compare([wider.model_copy(update={"steps": (step,)})], baseline)) == []
