"""What a rank writes down of an update where optimizers and trainings are not the usual ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from ddaudit.watch.loaders import Batch
from ddaudit.watch.report import Reporter
from ddaudit.watch.updates import rate


@pytest.mark.parametrize(("rates", "told"), [([0.05, 0.1], 0.05), ([0.0, 0.1], 0.1), ([0.0, 0.0], 0.0), ([0.3], 0.3)])
def test_the_rate_of_an_update_is_that_of_the_first_group_that_moves(rates: list[float], told: float):
    groups: list[dict[str, Any]] = [{"lr": x} for x in rates]
    assert rate(groups) == told


def test_what_a_later_training_evaluates_is_not_held_against_this_one(tmp_path: Path):
    """Another fold's validation rows are this fold's training rows."""
    reporter = Reporter(tmp_path, None)
    reporter.evaluated(Batch(1, 0, [10, 11], [0, 1], 2, 0.0))
    reporter.another(1, 20)
    reporter.evaluated(Batch(2, 0, [12, 13], [2, 3], 2, 0.0))
    assert list(reporter._evaluated) == [1]
