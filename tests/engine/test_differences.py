"""What changed between two runs."""

from __future__ import annotations

from ddaudit.engine.baselines import learn
from ddaudit.engine.differences import diff_runs
from ddaudit.findings import Status
from tests.engine.test_baselines import run
from tests.report import records


def test_a_measure_beyond_noise_is_told_with_its_noise_and_what_that_is_taken_from() -> None:
    found = diff_runs(run(100), run(80))
    assert [(c.metric, c.worse, c.noise) for c in found.measures] == [("data.tokens_per_s", True, 0.10)]
    assert "assumed" in found.measures[0].noise_source and found.worse and found.within_noise == 1
    assert not diff_runs(run(100), run(95)).measures


def test_a_baseline_gives_measured_noise() -> None:
    baseline = learn("good", [run(v) for v in (100, 100.2, 99.8, 100.1)], created=0.0)
    found = diff_runs(run(100), run(94), baseline)
    assert [c.noise_source for c in found.measures] == ["baseline good"] and found.worse


def test_better_is_a_change_and_not_worse() -> None:
    found = diff_runs(run(100), run(150))
    assert [c.worse for c in found.measures] == [False] and not found.worse


def test_the_noise_of_the_steps_themselves_is_used_where_the_run_kept_it() -> None:
    def jittery(step_s: float):
        base = run(100, step_s)
        times = [step_s * (0.9 + 0.01 * i) for i in range(21)]
        step = base.steps[0].model_copy(update={"exhibits": {"step-spread": {"step_s": times}}})
        return base.model_copy(update={"steps": (step,)})

    found = diff_runs(jittery(0.1), jittery(0.2))
    assert found.measures[0].noise_source == "the steps of both runs" and 0.03 < found.measures[0].noise < 0.12


def test_environment_and_outcomes_are_told_and_idle_facts_are_not() -> None:
    a = run(100).model_copy(update={"findings": (records.finding(Status.PASS),)})
    facts = dict(a.facts) | {"packages": {"torch": "2.14.0"}, "load_before": [9, 9, 9]}
    b = a.model_copy(update={"facts": facts, "findings": (records.finding(Status.FAIL),)})
    found = diff_runs(a, b)
    assert found.environment == (("packages.torch", "2.13.0", "2.14.0"),)
    assert found.outcomes == (("data", "batch.effective", "", "PASS", "FAIL"),) and found.worse
    assert not diff_runs(b, a).worse


def test_runs_without_anything_in_common_are_not_comparable() -> None:
    found = diff_runs(records.empty(), run(100))
    assert not found.comparable and found.only_in_b == ("data.tokens_per_s", "data.step_s")


def test_different_work_is_named_and_not_compared() -> None:
    wider = run(50)
    step = wider.steps[0].model_copy(update={"summary": {**wider.steps[0].summary, "world_size": 4}})
    found = diff_runs(run(100), wider.model_copy(update={"steps": (step,)}))
    assert found.measures == () and "different work: data" in found.reason
