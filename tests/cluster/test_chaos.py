"""Five of the faults of ``benchmarks/chaos.py``, each at another moment of a run: the report can be read and names the
right one, nothing is left running, nothing lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.chaos import strike

FAULTS = {
    "clock-skew": "start",
    "stop-agent": "probe",
    "kill-conductor": "between",
    "storage-hangs": "judge",
    "late-agent": "join",
}


@pytest.mark.parametrize(("fault", "moment"), FAULTS.items(), ids=FAULTS)
def test_a_fault_is_survived(fault: str, moment: str, tmp_path: Path):
    result = strike(random.Random(), tmp_path, only=[fault], moments=[moment])
    assert result.good, result
