"""What the system says of a step."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from ddaudit.training.vitals import Vitals, cores_busy_s, throttled_s


def test_pauses_of_the_collector_count_in_the_step_where_they_are() -> None:
    vitals = Vitals()
    vitals.open()
    try:
        ballast = [[None] for _ in range(200_000)]
        vitals.begin()
        gc.collect()
        paused = vitals.end([])
        vitals.begin()
        quiet = vitals.end([os.getpid()])
    finally:
        vitals.close()
    assert len(ballast) == 200_000
    assert paused["gc_s"] > 0.001 > quiet["gc_s"]
    assert (quiet["workers"], quiet["workers_started"]) == (1.0, 1.0)
    assert vitals._collected not in gc.callbacks


def test_a_quota_is_read_in_both_versions_of_cgroups(tmp_path: Path) -> None:
    file = tmp_path / "cpu.stat"
    file.write_text("usage_usec 5\nthrottled_usec 2500000\n")
    assert throttled_s(file) == 2.5
    file.write_text("nr_periods 3\nthrottled_time 1500000000\n")
    assert throttled_s(file) == 1.5
    file.write_text("usage_usec 5\n")
    assert throttled_s(file) is None
    assert throttled_s(tmp_path / "absent") is None


def test_cores_that_are_asked_for_ran_something_since_the_start() -> None:
    assert cores_busy_s(os.sched_getaffinity(0)) > 0
    assert cores_busy_s([]) == 0
