"""The pytest fixture ``ddaudit_watch``: a training script's audit as a test.

    def test_training_is_right(ddaudit_watch):
        ddaudit_watch(["torchrun", "--nproc-per-node", "2", "train.py", "--max-steps", "40"], global_batch=64)

The test fails with the findings when the gate fails, and also when nothing was measured: a gate that saw
nothing did not pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ddaudit.record import Record

__all__ = ["ddaudit_watch"]


@pytest.fixture
def ddaudit_watch(tmp_path: Path) -> Iterator[Callable[..., Record]]:
    """Watches a command: ``ddaudit_watch(argv, *, runbook="pre-merge", hang_s=150.0, **claims)`` gives the record.

    Claims are those of ``--expect`` (``global_batch``, ``accumulation``, ...). Commands of one test share their run
    folders, so that a second one that resumes the first is judged together with it.
    """
    numbers = iter(range(1, 1 << 30))

    def watch(argv: Sequence[str], *, runbook: str = "pre-merge", hang_s: float = 150.0, **claims: int) -> Record:
        # Imported here: every pytest session loads this file, few use the fixture.
        from ddaudit import packs
        from ddaudit.cli.watch import EXPECTED
        from ddaudit.engine.watched import Watched, watch_command
        from ddaudit.errors import UsageProblem

        if unknown := claims.keys() - EXPECTED.keys():
            raise UsageProblem(f"claims {sorted(unknown)}", expected=f"some of {', '.join(EXPECTED)}")
        expected = {EXPECTED[name]: value for name, value in claims.items()}
        run = f"watch-{next(numbers)}"
        asked = Watched(argv, tmp_path / "ddaudit-runs", run, runbook=runbook, hang_s=hang_s, expected=expected)
        record, folder = watch_command(dataclasses.replace(asked, to_stderr=True), packs.load())
        _conclude(record, folder)
        return record

    yield watch


def _conclude(record: Record, folder: Path) -> None:
    bad = [f"{f.status} {f.id}: {f.text}" for f in record.findings if f.bad]
    if record.exit_code == 3:
        pytest.fail("ddaudit measured nothing: " + "; ".join(f.text for f in record.findings[:1]), pytrace=False)
    if record.exit_code:
        lines = "\n".join(bad) or f"the script ended with {record.exit_code}"
        pytest.fail(f"{lines}\n(run folder: {folder})", pytrace=False)
