"""Each planted fault does what its table row says, and the healthy twin does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddaudit.errors import UsageProblem
from ddaudit.evidence import TrainingTrace
from tests.training.ranks import deviation, trained, trained_all

EXACT = {"steps": 3, "global_batch": 8, "optimizer": "sgd", "dtype": "fp64", "capture": True}
Traces = dict[str, TrainingTrace]

#: Faults that move a gradient by at least a hundredth, by kind: fault -> further parameters.
WRONG_GRADIENTS: dict[str, dict[str, dict[str, Any]]] = {
    "data": {
        "grad-sum": {},
        "param-unsynced": {},
        "same-shard": {},
        "accum-undivided": {"accumulation": 2},
        "accum-double-divided": {"accumulation": 2},
        "mean-of-means": {"ragged": True},
        "zero-grad-missed": {},
        "sync-skipped-step": {},
        "init-differs": {},
    },
    "sharded": {"grad-sum": {}, "param-unsynced": {}},
    "tensor": {"tp-reduce-skipped": {}},
    "pipeline": {"micro-batches-swapped": {}, "micro-batch-dropped": {}},
    "expert": {"expert-undivided": {}, "expert-token-dropped": {}, "param-unsynced": {}},
    "context": {"context-mask-off-by-one": {}, "param-unsynced": {}},
}
CELLS = [(kind, fault) for kind, faults in WRONG_GRADIENTS.items() for fault in faults]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    runs = {
        f"{kind}/{fault}": {**EXACT, "parallel": kind, "plant": fault, **more}
        for kind, faults in WRONG_GRADIENTS.items()
        for fault, more in faults.items()
    }
    data: dict[str, Any] = {**EXACT, "parallel": "data", "capture": False}
    runs |= {
        "every": {**data, "accumulation": 2, "plant": "sync-every-micro-step"},
        "fewer": {**data, "accumulation": 2, "plant": "accum-count-differs"},
        "ticks": {**data, "accumulation": 2, "plant": "lr-per-micro-batch"},
        "lr": {**data, "plant": "lr-differs"},
        "drift": {**data, "plant": "replica-drift"},
        "clip": {**data, "clip_norm": 0.05, "plant": "clip-before-sync"},
        "rng": {**data, "plant": "rng-identical"},
        "slow": {**data, "plant": "slow-rank"},
        "healthy": data,
    }
    return trained_all(tmp_path_factory.mktemp("planted"), 2, runs)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    runs = {"plain": EXACT, "ragged": {**EXACT, "ragged": True}, "experts": {**EXACT, "experts": 4}}
    return trained_all(tmp_path_factory.mktemp("alone"), 1, runs)


@pytest.mark.parametrize(("kind", "fault"), CELLS)
def test_the_fault_moves_gradients_far_out_of_the_noise(kind: str, fault: str, planted: Traces, alone: Traces) -> None:
    reference = "experts" if kind == "expert" else "ragged" if fault == "mean-of-means" else "plain"
    trace = planted[f"{kind}/{fault}"]
    assert deviation(trace, alone[reference]) > 0.01
    assert trace.job.planted == fault


def test_a_summed_gradient_is_too_large_by_the_number_of_replicas(planted: Traces, alone: Traces) -> None:
    norms = planted["data/grad-sum"].series("grad_norm")[:, 0] / alone["plain"].series("grad_norm")[0, 0]
    assert norms == pytest.approx(2.0)


def test_the_ledger_sees_missing_and_needless_synchronisation(planted: Traces) -> None:
    assert (planted["healthy"].series("grad_syncs") == 1).all()
    assert (planted["every"].series("grad_syncs") == 2).all()
    assert planted["data/sync-skipped-step"].series("grad_syncs").tolist() == [[1, 0, 1]] * 2
    for kind in ("data", "sharded", "expert", "context"):
        syncs = planted[f"{kind}/param-unsynced"].series("grad_syncs")
        assert ((syncs > 0.9) & (syncs < 1)).all(), kind


def test_ranks_that_differ_are_told_apart(planted: Traces) -> None:
    assert planted["fewer"].series("micro_batches").tolist() == [[2] * 3, [1] * 3]
    lr = planted["lr"].series("lr")
    assert lr[1] == pytest.approx(1.1 * lr[0])
    norms = planted["clip"].series("grad_norm")
    assert (norms[0] != norms[1]).all()
    digests = planted["drift"].series("param_digest")
    assert (digests[0] == digests[1]).tolist() == [True, False, False]
    busy = planted["slow"].series("forward_s")
    assert np.median(busy[1]) - np.median(busy[0]) > 0.02


def test_the_schedule_runs_ahead_when_it_ticks_per_micro_batch(planted: Traces) -> None:
    assert (planted["ticks"].series("scheduler_ticks") == 2).all()
    assert (planted["healthy"].series("scheduler_ticks") == 1).all()


def test_replicas_draw_the_same_random_numbers_only_when_planted(planted: Traces) -> None:
    same, apart = (planted[name].series("rng_digest") for name in ("rng", "healthy"))
    assert (same[0] == same[1]).all()
    assert (apart[0] != apart[1]).all()


def test_curves_of_one_device_go_wrong_as_planted(tmp_path: Path) -> None:
    runs = {name: {"steps": 24, "plant": name} for name in ("loss-flat", "loss-diverged", "loss-nan", "loss-spike")}
    runs |= {
        "leak": {"steps": 24, "plant": "loss-below-entropy"},
        "healthy": {"steps": 16},
        "wide": {"steps": 2, "plant": "init-scaled"},
        "small": {"steps": 2, "plant": "grad-vanishing"},
        "stale": {"steps": 4, "plant": "optimizer-stale"},
        "cold": {"steps": 4, "plant": "no-warmup"},
        "same": {"steps": 4, "global_batch": 4, "dataset_samples": 8, "plant": "no-reshuffle"},
        "input": {"steps": 5, "plant": "slow-input"},
    }
    traces = trained_all(tmp_path, 1, runs)
    loss = {name: trace.series("loss_nats")[0] for name, trace in traces.items()}
    assert abs(loss["loss-flat"][-4:].mean() - loss["loss-flat"][0]) < 0.1
    assert loss["loss-diverged"][-4:].mean() > loss["loss-diverged"][0] + 0.5
    assert np.isfinite(loss["loss-nan"][:3]).all()
    assert np.isnan(loss["loss-nan"][3:]).all()
    assert loss["loss-spike"][16] - np.median(loss["loss-spike"][11:16]) > 1.0
    assert np.diff(loss["healthy"]).max() < 0.5
    assert loss["leak"][-1] < traces["leak"].job.entropy_nats - 0.3
    assert loss["wide"][0] > np.log(32) + 1.0
    assert (traces["small"].series("grad_norm") < 1e-9).all()
    assert (traces["stale"].series("update_norm") == 0).all()
    assert (traces["stale"].series("zero_grads") == 0).all()
    assert len(set(traces["cold"].series("lr")[0, :2].tolist())) == 2
    assert traces["cold"].series("lr")[0, 0] == pytest.approx(0.01)
    ids = traces["same"].sample_ids[0]
    assert (ids[:2] == ids[2:]).all()
    waiting = traces["input"].series("input_s") / traces["input"].series("step_s")
    assert np.median(waiting) > 0.5


@pytest.mark.parametrize(
    ("fault", "lost"),
    [
        ("sampler", "sampler."),
        ("scheduler", "scheduler."),
        ("step", "global_step"),
        ("rng", "rng."),
        ("optimizer", "optimizer."),
    ],
)
def test_a_checkpoint_lacks_exactly_what_the_plant_names(fault: str, lost: str, tmp_path: Path) -> None:
    kept = {"steps": 1, "checkpoint": "end"}
    trained_all(tmp_path, 1, {"whole": kept, "partial": {**kept, "plant": f"ckpt-no-{fault}"}})
    whole, partial = (keys_of(tmp_path / name / "scratch/step-1") for name in ("whole", "partial"))
    assert whole - partial == {key for key in whole if key.startswith(lost)} != set()
    assert partial < whole


def keys_of(folder: Path) -> set[str]:
    from torch.distributed.checkpoint import FileSystemReader

    return set(FileSystemReader(folder).read_metadata().state_dict_metadata)


@pytest.mark.parametrize("kind", ["data", "sharded"])
def test_one_ranks_optimizer_shard_is_named_in_the_index_but_not_written(kind: str, tmp_path: Path) -> None:
    from torch.distributed.checkpoint import FileSystemReader

    settings = {"parallel": kind, "steps": 1, "checkpoint": "end"}
    runs = {"whole": settings, "partial": {**settings, "plant": "ckpt-no-optimizer-shard"}}
    trained_all(tmp_path, 2, runs)
    stored = {
        name: {
            (index.fqn, index.offset)
            for index in FileSystemReader(tmp_path / name / "scratch/step-1").read_metadata().storage_data
        }
        for name in runs
    }
    missing = stored["whole"] - stored["partial"]
    assert missing
    assert all(name.startswith("optimizer.") for name, _ in missing)
    assert keys_of(tmp_path / "whole/scratch/step-1") == keys_of(tmp_path / "partial/scratch/step-1")


def test_a_plant_that_would_change_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="expected an accumulation of 2 or more"):
        trained(tmp_path / "one", plant="accum-undivided")
    with pytest.raises(UsageProblem, match="expected a clip_norm"):
        trained(tmp_path / "two", parallel="data", plant="clip-before-sync")


def test_resuming_from_nothing_is_a_usage_problem(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="no checkpoint to resume from"):
        trained(tmp_path, resume_from="nowhere")
