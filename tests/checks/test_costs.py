"""Arithmetic, memory and input by themselves, on made-up numbers."""

from __future__ import annotations

from typing import Any

import pytest

from ddaudit.api import ComputeCosts, Evidence, LoaderCosts, MatmulRate, MemoryCosts, MemoryTrade
from ddaudit.engine.judge import judge
from ddaudit.findings import Finding
from ddaudit.runbook.model import PlannedStep
from tests.checks.traces import REGISTRY


def asked(check: str, given: Evidence) -> Finding:
    step = PlannedStep(id="s", title="", source="book.md:1", runbook="b")
    (finding,) = judge(REGISTRY.checks[check], {given.kind: given}, step=step, reference={})
    return finding


def compute(counted: float) -> ComputeCosts:
    rate = MatmulRate(m=8, k=8, n=8, flops_per_s=1e9)
    return ComputeCosts(
        host="h",
        device="cpu",
        dtype="fp32",
        tokens=10,
        counted_flops=counted,
        formula_flops=1e6,
        seconds=2e-3,
        matmuls=(rate,),
    )


def test_utilisation_is_the_formula_over_the_best_measured_rate() -> None:
    finding = asked("compute.flops", compute(1e6))
    assert finding.status.value == "PASS"
    assert "MFU 50% of the 1.0 GFLOP/s" in finding.text


@pytest.mark.parametrize("counted", [1.4e6, 0.5e6])
def test_arithmetic_that_the_formula_does_not_know_is_named(counted: float) -> None:
    assert asked("compute.flops", compute(counted)).id == "perf.extra-flops"


def memory(**more: Any) -> MemoryCosts:
    trades = tuple(
        MemoryTrade(recompute=k, activation_bytes=b, seconds=s)
        for k, b, s in (("none", 40_000_000, 0.01), ("selective", 30_000_000, 0.012), ("full", 4_000_000, 0.013))
    )
    told: dict[str, Any] = {
        "host": "h",
        "device": "cpu",
        "parameter_bytes": 4_000_000,
        "gradient_bytes": 4_000_000,
        "optimizer_bytes": 8_000_000,
        "other_bytes": None,
        "resident_bytes": 10**9,
        "proportional_bytes": None,
        "available_bytes": 10**9,
        "predicted_state_bytes": 16_000_000,
        "activations": {2: 40_000_000, 4: 80_000_000},
        "trades": trades,
    }
    return MemoryCosts(**(told | more))


def test_memory_says_what_one_sample_more_takes_and_what_recomputing_trades() -> None:
    finding = asked("memory.states", memory())
    assert finding.status.value == "PASS"
    assert "20.00 MB a sample, so one more fits (50 would)" in finding.text
    assert "full saves 36.00 MB for +3.0 ms" in finding.text


def test_state_beyond_the_prediction_is_named() -> None:
    assert asked("memory.states", memory(optimizer_bytes=12_000_000)).id == "mem.state-larger"


@pytest.mark.parametrize(
    ("warm_s", "id"), [(0.2, "perf.input-bound"), (0.07, "perf.input-at-edge"), (0.01, "input.headroom")]
)
def test_headroom_below_one_starves_and_below_two_is_at_the_edge(warm_s: float, id: str) -> None:
    costs = LoaderCosts(host="h", workers=2, updates=9, cold_s=0.3, warm_s=warm_s, step_s=0.1)
    assert asked("input.headroom", costs).id == id
