"""Windows alternate with normal ones, take out what they say, and put it back."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from ddaudit.errors import UsageProblem
from ddaudit.evidence import TrainingTrace
from ddaudit.evidence.windows import SETTLING, window_code
from ddaudit.training.params import TrainParams, geometry
from tests.training.ranks import trained

NAMES = ("memory-input", "no-gc", "one-thread", "keep-memory", "no-timers", "swap", "solo", "no-logging")

BEFORE = (gc.collect, torch.set_num_threads)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> TrainingTrace:
    return trained(tmp_path_factory.mktemp("windows"), steps=2, rounds=2, windows=NAMES, plant="slow-input", plant_ms=1)


def test_windows_alternate_and_their_first_steps_settle(windowed: TrainingTrace) -> None:
    expected = [0, 0]
    for name in [window for _ in range(2) for other in NAMES for window in ("normal", other)]:
        expected += [SETTLING, window_code(name), window_code(name)]
    assert windowed.series("window")[0].tolist() == expected


def test_batches_from_memory_cost_nothing_and_the_loader_reads_on(windowed: TrainingTrace) -> None:
    codes, waited = windowed.series("window")[0], windowed.series("input_s")[0]
    assert np.median(waited[codes == window_code("memory-input")]) < 0.1 * np.median(waited[codes == 0])
    ids = windowed.sample_ids[0]
    again = {tuple(row) for row in ids[codes == 0]}
    assert len(again) == int((codes == 0).sum())


def test_no_phase_is_timed_where_the_timers_are_priced(windowed: TrainingTrace) -> None:
    codes = windowed.series("window")[0]
    assert np.isnan(windowed.series("forward_s")[0][codes == window_code("no-timers")]).all()
    assert not np.isnan(windowed.series("step_s")[0]).any()


@pytest.mark.parametrize("kind", ["pipeline", "tensor"])
def test_every_kind_trains_without_timers(kind: str, tmp_path: Path) -> None:
    trace = trained(tmp_path, 2, parallel=kind, steps=1, rounds=1, windows=("no-timers",))
    off = trace.series("window")[0] == window_code("no-timers")
    assert off.any()
    assert not np.isnan(trace.series("step_s")[:, off]).any()


def test_a_plant_rests_where_its_own_price_is_asked_for(tmp_path: Path) -> None:
    plan = {"steps": 1, "rounds": 2, "windows": ("no-plant",), "plant": "slow-rank-blocked", "plant_ms": 150.0}
    trace = trained(tmp_path, 2, parallel="data", **plan)
    codes, computed = trace.series("window")[1], trace.series("forward_s")[1]
    assert computed[codes == 0].min() >= 0.150
    assert computed[codes == window_code("no-plant")].min() < computed[codes == 0].min() - 0.075


def test_everything_is_as_before_when_the_run_is_over(windowed: TrainingTrace) -> None:
    assert gc.isenabled()
    assert (gc.collect, torch.set_num_threads) == BEFORE


def test_ranks_that_need_each_other_cannot_train_apart() -> None:
    with pytest.raises(UsageProblem, match="cannot train apart, as the window 'solo' would"):
        geometry(TrainParams(parallel="tensor", windows=("no-gc", "solo")), 2)
