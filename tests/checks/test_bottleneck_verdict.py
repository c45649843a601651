"""A cause is named only where the window without it agrees with the books; else nobody is accused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddaudit.api import SETTLING, Array, TrainingTrace, window_code
from tests.checks.test_bottleneck import AXES
from tests.checks.traces import REGISTRY, asked, trace

ORDER = (
    "memory-input",
    "no-sync",
    "no-logging",
    "solo",
    "no-gc",
    "one-thread",
    "keep-memory",
    "sync-once",
    "idle-workers",
)
NAMES = [name for _ in range(3) for other in ORDER for name in ("normal", other)]
CODES = np.array([0] + [code for name in NAMES for code in (SETTLING, window_code(name), window_code(name))])
STEPS = len(CODES)


def lying_in(*names: str) -> np.ndarray[Any, Any]:
    """Which steps lie in windows of these names, settling ones left out."""
    return np.isin(CODES, [window_code(name) for name in names])


def run(ranks: int = 2, late_s: Any = None, wire_s: Any = 0.001, **lines: Any) -> TrainingTrace:
    """Ranks that compute 50 ms, read 2 ms and launch for 1 ms; ``late_s`` [rank, step] of compute comes on top on one
    of them, and all meet once a step for ``wire_s`` [step] but in windows without collectives."""
    parts = {"input_s": 0.002, "host_s": 0.001, "forward_s": 0.05} | lines
    parts = {n: np.array(np.broadcast_to(np.asarray(v, dtype=float), (ranks, STEPS))) for n, v in parts.items()}
    if late_s is not None:
        parts["forward_s"] += late_s
    own = sum(parts.values())
    meets = ~lying_in("no-sync", "solo")
    start = np.arange(STEPS, dtype=float)
    arrived = start + own
    left = np.broadcast_to(arrived.max(axis=0) + wire_s, arrived.shape)
    blocked = np.where(meets, left - arrived, 0.0)
    group = np.where(meets, 0, -1) * np.ones((ranks, 1), dtype=np.int64)
    more = {"window": CODES, "step_s": own + blocked, "comm_wait_s": blocked, "sync_s": blocked, **parts}
    given = trace(ranks, STEPS, job={"parallel": "data", "accumulation": 1}, **more)
    stamps = {
        "stamp_group": Array(group[:, :, None].astype(np.int64), "1", AXES),
        "arrived": Array(np.where(meets, arrived, np.nan)[:, :, None], "s", AXES),
        "left": Array(np.where(meets, left, np.nan)[:, :, None], "s", AXES),
    }
    return TrainingTrace(facts={**given.facts, "groups": [list(range(ranks))]}, arrays={**given.arrays, **stamps})


def test_a_run_without_windows_is_not_measured() -> None:
    (finding,) = asked("bottleneck.verdict", trace(2, 8, step_s=0.1, input_s=0.01, forward_s=0.09))
    assert finding.status.value == "SKIP"


def test_a_healthy_run_says_so_and_names_popular_suspects_that_cost_nothing() -> None:
    (finding,) = asked("bottleneck.verdict", run())
    assert finding.text.startswith("healthy")
    assert "no change by" in finding.text
    assert "garbage collection 0.0 ms" in finding.text


def test_a_slow_rank_is_named_with_its_price_where_it_is_slow_alone_too() -> None:
    (finding,) = asked("bottleneck.verdict", run(late_s=[[0.0], [0.04]]))
    assert (finding.id, finding.where.rank) == ("perf.straggler-rank", 1)
    assert finding.measured == pytest.approx(40.0, abs=0.5)


def test_a_rank_that_is_fast_on_its_own_is_not_accused() -> None:
    late = np.where(lying_in("solo"), 0.0, 0.04) * np.array([[0.0], [1.0]])
    (finding,) = asked("bottleneck.verdict", run(late_s=late))
    assert finding.status.value == "PASS"
    assert finding.text.startswith("not proven")
    assert "one rank at a time" in finding.text


def test_slow_input_is_named_where_batches_from_memory_are_faster() -> None:
    read = np.where(lying_in("memory-input"), 0.0, 0.06)
    (finding,) = asked("bottleneck.verdict", run(input_s=read))
    assert (finding.id, finding.where.rank) == ("perf.input-bound", None)
    assert finding.measured == pytest.approx(60.0, abs=1.0)


def test_input_that_memory_does_not_cure_is_not_named() -> None:
    (finding,) = asked("bottleneck.verdict", run(input_s=0.06))
    assert finding.text.startswith("not proven")
    assert "batches from memory" in finding.text


def test_a_slow_wire_is_named_where_steps_without_it_are_shorter() -> None:
    (finding,) = asked("bottleneck.verdict", run(wire_s=0.12))
    assert finding.id == "perf.communication-bound"
    assert finding.measured == pytest.approx(120.0, abs=1.0)


def test_collectives_of_the_loop_are_priced_by_whole_steps_where_these_are_precise() -> None:
    calls = np.where(lying_in("no-logging"), 0.0, 200.0)
    given = run(wire_s=np.where(lying_in("no-logging"), 0.001, 0.05))
    extra = Array(np.broadcast_to(calls, (2, STEPS)), "1", ("rank", "step"))
    (finding,) = asked("bottleneck.verdict", replace(given, arrays={**given.arrays, "extra_collectives": extra}))
    assert finding.id == "perf.forced-sync"
    assert finding.measured == pytest.approx(49.0, abs=1.0)


def test_a_slow_wire_between_hosts_is_named_by_its_interface() -> None:
    given = run(wire_s=0.12)
    wires = {host: {"eth0": (5, 26_400_000), "ib0": (7, 100)} for host in ("a", "b")}
    (finding,) = asked("bottleneck.verdict", replace(given, facts={**given.facts, "wires": wires}))
    assert "bytes went over a eth0 sent 26.4 MB, b eth0 sent 26.4 MB" in finding.text
    (finding,) = asked("bottleneck.verdict", replace(given, facts={**given.facts, "wires": {"a": {"lo": (5, 5)}}}))
    assert "went over" not in finding.text


def test_ranks_that_wait_for_data_in_turns_are_limited_by_input_and_nobody_is_accused() -> None:
    turns = (np.arange(STEPS) % 2 == np.arange(2)[:, None]) & ~lying_in("memory-input")
    (finding,) = asked("bottleneck.verdict", run(input_s=0.002 + np.where(turns, 0.04, 0.0)))
    assert (finding.id, finding.where.rank) == ("perf.input-bound", None)
    assert finding.measured == pytest.approx(40.0, abs=2.0)


def test_workers_that_get_unequal_shares_of_the_cores_do_not_make_a_straggler() -> None:
    waits = np.where(lying_in("memory-input"), 0.0, np.array([[0.06], [0.025]]))
    (finding,) = asked("bottleneck.verdict", run(input_s=0.002 + waits))
    assert (finding.id, finding.where.rank) == ("perf.input-bound", None)
    assert finding.measured == pytest.approx(60.0, abs=2.0)


def test_one_rank_whose_loader_alone_is_slow_is_the_straggler() -> None:
    waits = np.where(lying_in("memory-input"), 0.0, np.array([[0.003], [0.06]]))
    (finding,) = asked("bottleneck.verdict", run(input_s=waits))
    assert (finding.id, finding.where.rank) == ("perf.straggler-rank", 1)


def test_restarts_of_workers_are_proven_by_the_steps_that_follow_them() -> None:
    every_fourth = (np.arange(STEPS) % 4 == 0).astype(float)
    given = run_with({"workers_started": np.tile(2 * every_fourth, (2, 1)), "workers": np.full((2, STEPS), 2.0)}, 0.0)
    noise = np.random.default_rng(0).normal(0.0, 0.004, STEPS)
    slow = run(input_s=0.002 + 0.04 * every_fourth, forward_s=0.05 + noise)
    (finding,) = asked("bottleneck.verdict", TrainingTrace(facts=given.facts, arrays={**given.arrays, **slow.arrays}))
    assert finding.id == "perf.worker-respawn"
    assert "after a restart" in finding.text


def test_a_synchronisation_of_each_micro_batch_is_priced_by_the_wire_alone() -> None:
    rounds = np.where(lying_in("sync-once"), 1.0, 8.0)
    arrays = run_with({"grad_syncs": np.tile(rounds, (2, 1))}, 0.0).arrays
    given = run(wire_s=0.005 * rounds)
    job = {**given.facts["job"], "accumulation": 8, "grad_syncs_per_step": 1.0}
    facts = {**given.facts, "job": job}
    (finding,) = asked("bottleneck.verdict", TrainingTrace(facts=facts, arrays={**arrays, **given.arrays}))
    assert finding.id == "sync.every-micro-step"
    assert finding.measured == pytest.approx(35.0, abs=1.0)


def test_work_of_the_host_on_rank_0_is_told_from_a_slow_device() -> None:
    (finding,) = asked("bottleneck.verdict", run(host_s=[[0.04], [0.001]]))
    assert (finding.id, finding.where.rank) == ("perf.host-work-on-rank0", 0)


def test_garbage_collection_in_turns_goes_before_the_lateness_it_causes() -> None:
    turns = (np.arange(STEPS) % 2 == np.arange(2)[:, None]) & ~lying_in("no-gc")
    pauses = np.where(turns, 0.04, 0.0)
    (finding,) = asked("bottleneck.verdict", run_with({"gc_s": pauses}, pauses))
    assert finding.id == "perf.gc-uncoordinated"
    assert finding.measured == pytest.approx(40.0, abs=1.0)


@pytest.mark.parametrize(
    ("series", "window", "cause"),
    [
        ({"extra_collectives": 200.0}, "no-logging", "perf.forced-sync"),
        ({"threads": 40.0, "core_mask": 3.0}, "one-thread", "perf.cpu-oversubscribed"),
        ({"threads": 11.0, "core_mask": 3.0}, "one-thread", "perf.cpu-oversubscribed"),
        ({"minor_faults": 20_000.0}, "keep-memory", "perf.memory-stall"),
    ],
)
def test_settings_are_priced_by_their_window_and_named_where_it_saves(
    series: dict[str, float], window: str, cause: str
) -> None:
    slower = np.where(lying_in(window), 0.0, 0.03)
    told = {name: np.full((2, STEPS), value) for name, value in series.items()}
    (finding,) = asked("bottleneck.verdict", run_with(told, slower))
    assert finding.id == cause
    assert finding.measured == pytest.approx(30.0, abs=1.0)
    (cheap,) = asked("bottleneck.verdict", run_with(told, 0.0))
    assert cheap.status.value == "PASS"


def run_with(told: dict[str, Any], late_s: Any) -> TrainingTrace:
    """A run that also recorded ``told``, none of which is a line of the books."""
    given = run(late_s=late_s)
    arrays = {name: Array(np.asarray(values), "1", ("rank", "step")) for name, values in told.items()}
    return TrainingTrace(facts=given.facts, arrays={**given.arrays, **arrays})


def test_threads_that_workers_have_anyway_are_not_blamed_for_what_they_read_slowly() -> None:
    told = {
        "threads": np.full((2, STEPS), 12.0),
        "workers": np.full((2, STEPS), 2.0),
        "core_mask": np.full((2, STEPS), 3.0),
    }
    (finding,) = asked("bottleneck.verdict", run_with(told, np.where(lying_in("idle-workers"), 0.0, 0.03)))
    assert finding.id != "perf.cpu-oversubscribed"
    storm = told | {"threads": np.full((2, STEPS), 24.0)}
    (finding,) = asked("bottleneck.verdict", run_with(storm, np.where(lying_in("idle-workers"), 0.0, 0.03)))
    assert finding.id == "perf.cpu-oversubscribed"


def test_memory_that_grows_steadily_is_named_and_one_jump_is_not() -> None:
    steady = 4e8 + np.arange(24) * 1e6
    (finding,) = asked("memory.growth", trace(1, 24, rss_bytes=steady))
    assert finding.id == "perf.memory-growth"
    assert finding.measured == pytest.approx(1.0)
    jump = 4e8 + 5e7 * (np.arange(24) > 18)
    (quiet,) = asked("memory.growth", trace(1, 24, rss_bytes=jump))
    assert quiet.status.value == "PASS"


def test_a_price_never_reads_as_more_than_the_step_it_is_saved_from():
    told = REGISTRY.checks["bottleneck.verdict"].function.__globals__["_saves"]
    assert told(0.010, 0.040) == "Removing it saves 10.0 ms of the 40.0 ms step"
    assert told(0.050, 0.040) == (
        "Removing it saves 50.0 ms a step on average, more than the 40.0 ms that a usual step takes"
    )
