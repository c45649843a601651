"""The books of real steps close, lateness is charged to the rank that was late, and the timers cost next to nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddaudit.evidence import TrainingTrace
from tests.checks.traces import asked
from tests.training.ranks import trained_all

LATE_MS = 120.0
KINDS: dict[str, dict[str, Any]] = {
    "data": {"parallel": "data"},
    "zero1": {"parallel": "data", "variant": "zero1"},
    "sharded": {"parallel": "sharded"},
    "tensor": {"parallel": "tensor"},
    "pipeline": {"parallel": "pipeline"},
    "expert": {"parallel": "expert"},
    "context": {"parallel": "context"},
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingTrace]:
    runs = {name: {**kind, "steps": 5} for name, kind in KINDS.items()}
    runs["late"] = {"parallel": "data", "steps": 10, "plant": "slow-input-rank", "plant_ms": LATE_MS}
    return trained_all(tmp_path_factory.mktemp("account"), 2, runs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_add_up_to_the_step(kind: str, traces: dict[str, TrainingTrace]) -> None:
    (finding,) = asked("bottleneck.ledger", traces[kind], bottleneck__unexplained_share={"warn_above": 0.15})
    assert finding.status.value == "PASS", finding.text


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_stamp_the_same_meetings_and_leave_after_the_last_one_came(
    kind: str, traces: dict[str, TrainingTrace]
) -> None:
    stamps = traces[kind].stamps()
    assert stamps is not None
    group, arrived, left = stamps
    assert traces[kind].groups == ((0, 1),)
    assert (group[0] == group[1]).all()
    if kind != "tensor":  # its ranks issue early and may come to wait only after the others left
        # Microseconds lie between an end that a backend's thread stamps and the peer's arrival.
        early = left.min(axis=0) - arrived.max(axis=0) < -1e-3
        assert early.mean() < 0.2


def test_a_late_rank_is_charged_with_what_the_other_waited(traces: dict[str, TrainingTrace]) -> None:
    (finding,) = asked("bottleneck.straggler", traces["late"])
    assert (finding.id, finding.where.rank) == ("perf.straggler-rank", 1)
    waited_s = finding.measured * np.median(traces["late"].series("step_s")[1, 1:])
    assert waited_s * 1e3 > 0.5 * LATE_MS
    assert "its own input is" in finding.text


def test_what_the_interfaces_carried_meanwhile_is_recorded_once_a_host(traces: dict[str, TrainingTrace]) -> None:
    wires = traces[next(iter(traces))].wires
    assert list(wires) == ["here"]
    assert all(received >= 0 and sent >= 0 for received, sent in wires["here"].values())
    assert "lo" in wires["here"]


def test_the_timers_cost_a_small_share_of_the_cpu_time(traces: dict[str, TrainingTrace]) -> None:
    share = traces["data"].series("timer_s").sum() / traces["data"].series("cpu_s").sum()
    assert 0 < share < 0.05


def test_records_and_digests_are_overhead_and_no_part_of_the_step(traces: dict[str, TrainingTrace]) -> None:
    overhead = traces["data"].series("overhead_s")
    assert (overhead[:, 1:] > 0).all()
