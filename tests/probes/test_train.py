"""The train probe's contract: what it takes, what it leaves behind, and that every kind also runs on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ddaudit.errors import UsageProblem
from ddaudit.evidence import TrainingTrace
from ddaudit.probes.train import train
from ddaudit.training.params import VARIANTS, TrainParams
from tests.training.ranks import deviation, trained, trained_all

EXACT: dict[str, Any] = {"steps": 3, "global_batch": 8, "optimizer": "sgd", "dtype": "fp64", "capture": True}


def test_the_probe_is_registered_for_ranks_and_produces_a_trace() -> None:
    spec = train.spec
    assert (spec.name, spec.where, spec.params, spec.produces) == ("train", "ranks", TrainParams, (TrainingTrace,))


def test_every_kind_at_degree_one_equals_one_device_and_leaves_no_group_behind(tmp_path: Path) -> None:
    kinds = {f"{kind}-{form}": (kind, form) for kind in VARIANTS for form in VARIANTS[kind]}
    runs = {name: {**EXACT, "parallel": kind, "variant": form} for name, (kind, form) in kinds.items()}
    runs["experts"] = {**EXACT, "experts": 4}
    traces = trained_all(tmp_path, 1, runs)
    far = {n: deviation(traces[n], traces["experts" if n == "expert-plain" else "single-plain"]) for n in kinds}
    assert {name: error for name, error in far.items() if not error < 1e-12} == {}
    assert {name for name in kinds if traces[name].job.grad_syncs_per_step} == set()
    assert not dist.is_initialized()


def test_bf16_sgd_and_experts_learn(tmp_path: Path) -> None:
    runs: dict[str, dict[str, Any]] = {
        "bf16": {"dtype": "bf16", "steps": 20},
        "sgd": {"optimizer": "sgd", "schedule": "linear", "steps": 20},
        "experts": {"experts": 4, "steps": 20},
    }
    for name, trace in trained_all(tmp_path, 1, runs).items():
        loss = trace.series("loss_nats")[0]
        assert trace.job.entropy_nats < loss[-5:].mean() < loss[0] - 0.3, name


def test_a_batch_that_does_not_divide_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="global_batch 16 is not 1 replicas x 5 samples x 3 passes"):
        trained(tmp_path, parallel="data", accumulation=3)


def test_a_checkpoint_is_recorded_relative_to_the_run_folder(tmp_path: Path) -> None:
    trace = trained(tmp_path, steps=2, checkpoint="end")
    (written,) = trace.checkpoints
    assert (written.path, written.update, written.action) == ("scratch/step-2", 2, "save")
    assert written.sampler_position == 32
    assert (tmp_path / "run" / written.path / ".metadata").is_file()
