"""The books of a step: lines that add up, the term that is named, and lateness that is charged but rarely blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from checks._ledger import Ledger, _median_of_others
from ddaudit.api import Array, TrainingTrace
from tests.checks.traces import asked, ids, trace

STEPS = 8
AXES = ("rank", "step", "slot")


def met(given: TrainingTrace, lateness: Any, wire_s: float = 0.002) -> TrainingTrace:
    """The trace with one collective a step, to which ranks come ``lateness`` [rank, step] seconds after the step began;
    all leave ``wire_s`` after the last one came."""
    ranks = len(given.ranks)
    late = np.broadcast_to(np.asarray(lateness, dtype=float), (ranks, STEPS))
    arrived = (late + np.arange(STEPS))[:, :, None]
    left = np.broadcast_to(arrived.max(axis=0, keepdims=True) + wire_s, arrived.shape)
    stamps = {
        "stamp_group": Array(np.zeros(arrived.shape, dtype=np.int64), "1", AXES),
        "arrived": Array(arrived, "s", AXES),
        "left": Array(np.array(left), "s", AXES),
    }
    facts = {**given.facts, "groups": [list(range(ranks))]}
    waits = Array((left - arrived)[:, :, 0], "s", ("rank", "step"))
    return TrainingTrace(facts=facts, arrays={**given.arrays, **stamps, "comm_wait_s": waits})


def run(lateness: Any, **series: Any) -> TrainingTrace:
    """Two ranks or more whose step is 100 ms: 10 ms input, 80 ms phases, 10 ms host."""
    ranks = len(np.atleast_1d(lateness))
    told = {"step_s": 0.1, "input_s": 0.01, "forward_s": 0.08, "host_s": 0.01, **series}
    return met(trace(ranks, STEPS, **told), np.asarray(lateness).reshape(ranks, -1))


def test_books_that_close_pass_and_say_what_measuring_cost():
    given = run([0.0, 0.0], cpu_s=0.1, timer_s=0.0005, overhead_s=0.003)
    (finding,) = asked("bottleneck.ledger", given)
    assert finding.status.value == "PASS"
    assert finding.measured == pytest.approx(0.0, abs=1e-9)
    assert "0.50% of its CPU time" in finding.text
    assert "3.0 ms a step outside it" in finding.text


@pytest.mark.parametrize("step_s", [0.11, 0.09])
def test_time_that_no_line_holds_or_two_lines_hold_is_a_warning_that_names_the_rank(step_s: float):
    given = run([0.0, 0.0], step_s=[[0.1], [step_s]])
    (finding,) = asked("bottleneck.ledger", given)
    assert (finding.id, finding.where.rank) == ("perf.step-unexplained", 1)
    assert finding.measured == pytest.approx(0.01 / step_s)


def test_waiting_for_peers_is_told_from_the_wire():
    (finding,) = asked("bottleneck.split", run([0.0, 0.03]))
    assert "communication 2%" in finding.text
    assert finding.where.rank == 1
    assert "lateness of this rank 30.0 ms" in finding.text


def test_without_stamps_communication_says_that_it_holds_waiting_and_is_not_judged():
    given = trace(2, STEPS, step_s=0.1, input_s=0.01, forward_s=0.09, comm_wait_s=0.085)
    (finding,) = asked("bottleneck.split", given)
    assert finding.status.value == "PASS"
    assert "communication holds waiting for peers too" in finding.text
    assert ids("bottleneck.straggler", given) == ["SKIP bottleneck.straggler"]


def test_a_wire_that_takes_most_of_the_step_is_named():
    given = trace(2, STEPS, step_s=0.1, input_s=0.01, forward_s=0.09)
    assert ids("bottleneck.split", met(given, 0.0, wire_s=0.08)) == ["WARN perf.communication-bound"]


def test_a_host_that_takes_most_of_the_step_is_named():
    assert ids("bottleneck.split", trace(1, STEPS, step_s=0.1, input_s=0.01, forward_s=0.02, host_s=0.07)) == [
        "WARN perf.host-bound"
    ]


def test_waiting_for_a_core_is_a_line_of_its_own_and_hides_no_bottleneck():
    starved = {"runqueue_s": 0.06, "runqueue_phases_s": 0.06}
    given = trace(1, STEPS, step_s=0.1, input_s=0.03, forward_s=0.07, **starved)
    (finding,) = asked("bottleneck.split", given)
    assert finding.id == "perf.input-bound"
    assert finding.measured == pytest.approx(0.03 / 0.04)
    assert "waiting for a core 60%" in finding.text
    assert "compute 10%" in finding.text


def test_a_late_rank_is_named_only_with_a_line_of_its_own_that_is_longer():
    slower = {"step_s": 0.1, "forward_s": [[0.08], [0.08]]}
    (unproven,) = asked("bottleneck.straggler", run([0.0, 0.04], input_s=0.01, **slower))
    # Equal spans: rank 0 waited 40 ms inside its own, so rank 1 computed 40 ms longer.
    assert (unproven.id, unproven.where.rank) == ("perf.straggler-rank", 1)
    assert "its own compute is 40.0 ms longer" in unproven.text
    waits = [[0.08], [0.04]]
    (finding,) = asked("bottleneck.straggler", run([0.0, 0.04], forward_s=waits))
    assert finding.status.value == "PASS"
    assert "not proven to be its fault" in finding.text


def test_a_rank_that_waits_for_a_core_is_late_but_not_to_blame():
    starved = {"runqueue_s": [[0.0], [0.04]], "runqueue_phases_s": [[0.0], [0.04]]}
    (finding,) = asked("bottleneck.straggler", run([0.0, 0.04], **starved))
    assert finding.status.value == "PASS"
    assert "its waiting for a core is 40.0 ms longer" in finding.text


def test_a_few_steps_accuse_nobody():
    """One hiccup of the host can cover most of five short steps: that is no persistence."""
    given = run([0.0, 0.04])
    short = {name: replace(array, values=array.values[:, :6]) for name, array in given.arrays.items()}
    facts = {**given.facts, "steps": given.facts["steps"][:6]}
    (finding,) = asked("bottleneck.straggler", TrainingTrace(facts=facts, arrays=short))
    assert finding.status.value == "PASS"
    assert "5 steps are too few" in finding.text and "next probe" in finding.text


def test_lateness_that_takes_turns_is_no_straggler():
    turns = np.where(np.arange(STEPS) % 2, [[0.03], [0.0]], [[0.0], [0.03]])
    (finding,) = asked("bottleneck.straggler", run(turns))
    assert finding.status.value == "PASS"
    assert "lateness that roams costs 30.0 ms" in finding.text


def test_one_of_three_costs_what_it_comes_after_the_last_but_one():
    given = run([0.0, 0.02, 0.05])
    (finding,) = asked("bottleneck.straggler", given)
    assert finding.where.rank == 2
    assert finding.measured == pytest.approx(0.3)


def test_clocks_of_two_hosts_are_not_compared():
    given = run([0.0, 0.04])
    apart = [{**place, "host": f"node{i}"} for i, place in enumerate(given.facts["ranks"])]
    arrived = given.arrays["arrived"].values + np.array([0.0, 3600.0])[:, None, None]
    left = given.arrays["left"].values + np.array([0.0, 3600.0])[:, None, None]
    moved = {"arrived": Array(arrived, "s", AXES), "left": Array(left, "s", AXES)}
    far = TrainingTrace(facts={**given.facts, "ranks": apart}, arrays={**given.arrays, **moved})
    (finding,) = asked("bottleneck.straggler", far)
    assert (finding.id, finding.where.rank) == ("perf.straggler-rank", 1)
    assert finding.measured == pytest.approx(0.4)


def test_the_place_in_the_model_makes_a_straggler_positional():
    given = run([0.0, 0.04])
    places = [{**place, "coords": {"dp": 0, "ep": i}} for i, place in enumerate(given.facts["ranks"])]
    (finding,) = asked(
        "bottleneck.straggler", TrainingTrace(facts={**given.facts, "ranks": places}, arrays=given.arrays)
    )
    assert "positional, ep 1" in finding.text


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_the_median_of_the_others_is_that_of_a_table_without_the_rank(ranks: int) -> None:
    table = np.random.default_rng(ranks).integers(0, 5, (ranks, 11)).astype(float)
    plain = [np.median(np.delete(table, row, axis=0), axis=0) for row in range(ranks)]
    assert np.array_equal(_median_of_others(table), np.stack(plain))


def test_coming_last_by_chance_is_taken_out_of_what_a_late_rank_costs() -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.003, (2, 40))
    charged = np.clip(np.stack([noise[0], noise[1]]), 0.0, None) + np.array([[0.0], [0.01]])
    books = Ledger(np.ones((2, 40)), {}, charged, True, None)
    assert books.lost[0] == 0.0 and books.lost[1] == pytest.approx(0.01, abs=0.001)
