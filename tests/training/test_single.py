"""One device: the curve is what theory says, and a resumed run goes on bit for bit."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ddaudit.evidence import SERIES
from ddaudit.evidence.series import WATCHED
from tests.training.ranks import trained

OF_OTHER_RUNS = {"device_bytes", "buffer_digest", "checkpoint_s", "exchange_s", "comm_hidden_s", "grad_norm_local"}
OF_OTHER_RUNS |= {"window", "gc_begin_s", "expert_tokens", "throttled_s"}


def test_the_default_run_starts_at_the_uniform_guess_and_falls_towards_the_entropy_rate(tmp_path: Path) -> None:
    trace = trained(tmp_path)
    loss = trace.series("loss_nats")[0]
    entropy = trace.job.entropy_nats
    assert entropy == pytest.approx(1.75 * math.log(2))
    assert trace.job.loss_start_nats == pytest.approx(math.log(32))
    assert loss[0] == pytest.approx(math.log(32), abs=0.05)
    assert entropy < loss[-5:].mean() < entropy + 0.5


def test_every_series_that_a_cpu_rank_can_know_is_recorded(tmp_path: Path) -> None:
    trace = trained(tmp_path, steps=3)
    recorded = {name for name in SERIES if trace.series(name) is not None}
    # Where garbage was collected, and where cgroups are mounted.
    recorded -= {"gc_begin_s", "gc_s", "throttled_s"}
    assert recorded == set(SERIES) - set(WATCHED) - OF_OTHER_RUNS
    assert not any(np.isnan(trace.series(name)[:, 1:]).any() for name in recorded)


def test_phases_fit_into_the_step(tmp_path: Path) -> None:
    trace = trained(tmp_path, steps=6)
    names = ("input", "forward", "backward", "sync", "optimizer", "loss", "host")
    phases = sum(trace.series(f"{name}_s") for name in names)
    assert (phases <= trace.series("step_s")).all()
    assert np.median(phases / trace.series("step_s")) > 0.8


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_resumed_run_repeats_losses_dropout_and_parameters_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    settings = {"steps": 6, "dropout": 0.1, "optimizer": optimizer, "dataset_samples": 64, "capture": True}
    whole = trained(tmp_path / "whole", checkpoint="step:3", **settings)
    resumed = trained(tmp_path / "resumed", resume_from=str(tmp_path / "whole/run/scratch/step-3"), **settings)
    assert list(resumed.steps) == [3, 4, 5]
    for name in ("loss_nats", "lr", "grad_norm", "param_digest", "rng_digest", "batch_digest", "epoch"):
        assert (resumed.series(name)[0] == whole.series(name)[0, 3:]).all(), name
    last = {t.name: t.values for t in whole.tensors if t.role == "param"}
    assert all((t.values == last[t.name]).all() for t in resumed.tensors if t.role == "param")
    assert [c.action for c in whole.checkpoints + resumed.checkpoints] == ["save", "load"]
    assert resumed.job.resumed_from_step == 3


def test_accumulation_equals_one_large_batch(tmp_path: Path) -> None:
    settings = {"steps": 3, "dtype": "fp64", "optimizer": "sgd"}
    one = trained(tmp_path / "one", **settings)
    four = trained(tmp_path / "four", accumulation=4, **settings)
    assert four.series("micro_batches").tolist() == [[4, 4, 4]]
    assert four.series("loss_divisor").tolist() == [[4, 4, 4]]
    assert np.abs(four.series("loss_nats") - one.series("loss_nats")).max() < 1e-12
