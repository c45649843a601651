"""Warm-up reaches the peak, decay ends where it says, and a factor never exceeds one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddaudit.training.schedule import FINAL_FRACTION, factor

SCHEDULES = ["constant", "linear", "cosine"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warm_up_rises_evenly_to_the_peak(schedule: str) -> None:
    assert [factor(u, schedule=schedule, warmup=4, total=20) for u in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay_ends_at_the_final_fraction(schedule: str) -> None:
    assert factor(19, schedule=schedule, warmup=4, total=20) == pytest.approx(FINAL_FRACTION)


@given(st.sampled_from(SCHEDULES), st.integers(0, 30), st.integers(1, 30), st.integers(0, 100))
def test_the_factor_stays_between_zero_and_one(schedule: str, warmup: int, total: int, update: int) -> None:
    assert 0.0 < factor(update, schedule=schedule, warmup=warmup, total=total) <= 1.0
