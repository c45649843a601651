"""Five of the faults of ``benchmarks/chaos.py``, at random moments: readable, named, nothing left, nothing lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.chaos import strike


@pytest.mark.parametrize("fault", ["clock-skew", "stop-agent", "kill-conductor", "storage-hangs", "late-agent"])
def test_a_fault_at_a_random_moment_is_survived(fault: str, tmp_path: Path):
    result = strike(fault, random.Random(), tmp_path)
    assert result.good, result
