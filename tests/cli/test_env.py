"""``ddaudit env`` tells what the driver says, or why it says nothing."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from ddaudit.cli.env import _driver
from ddaudit.probes._nvml_stub import load_stub


def _ask(folder: str, faults: dict[str, int] | None, answers: Any) -> None:
    if faults is not None:
        load_stub(Path(folder), faults, os.environ["PATH"])
    answers.put(_driver())


def told(folder: Path, faults: dict[str, int] | None) -> dict[str, Any]:
    """What a fork says, since a loaded library stays loaded."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_ask, args=(str(folder), faults, answers))
    child.start()
    answer: dict[str, Any] = answers.get(timeout=60)
    child.join(60)
    return answer


def test_driver_and_devices_are_identified(tmp_path: Path) -> None:
    found = told(tmp_path, {"count": 2})
    assert found["driver"] == "580.00.stub"
    assert found["devices"]["GPU 1"].endswith("GPU-00000000-0000-0000-0000-000000000001 at 00000000:11:00.0")


def test_a_driver_that_does_not_start_says_why(tmp_path: Path) -> None:
    assert told(tmp_path, {"init_error": 18})["driver"].startswith("not measured: NVML says: ")


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="has a driver")
def test_a_host_without_a_driver_says_so(tmp_path: Path) -> None:
    assert "Not Found" in told(tmp_path, None)["driver"]
