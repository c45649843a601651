"""Parts of one checkpoint that contradict each other; each beside a healthy one that looks much the same."""

from __future__ import annotations

import argparse
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ddaudit.checkpoint.blank import zeros_crc
from tests.checkpoint import generate as g
from tests.checkpoint.audit import audit, ids

OPTIMIZER = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
MODEL_RANK = "iter_0000006/mp_rank_{:02d}/model_optim_rng.pt"


def edit(path: Path, change: Callable[[Any], Any]) -> Path:
    """Loads, changes in place or anew, and saves under the same name."""
    value = torch.load(path, weights_only=False)
    changed = change(value)
    return g.save(value if changed is None else changed, path)


def exchange(one: Path, other: Path) -> None:
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)


# ---- whose file is it


def test_exchanged_optimizer_files_of_two_ranks_say_whose_they_were(tmp_path: Path) -> None:
    root = g.deepspeed(tmp_path / "run")
    exchange(*(root / "global_step6" / OPTIMIZER.format(rank) for rank in (0, 1)))
    found = [f for f in audit(root).findings if f.id == "checkpoint.shard.exchanged"]
    assert {f.where.rank for f in found} == {0, 1}
    assert "was saved as zero_pp_rank_1_mp_rank_00_optim_states" in found[0].text


def test_exchanged_random_states_only_degrade(tmp_path: Path) -> None:
    folder = g.hf(tmp_path / "checkpoint-6")
    exchange(folder / "rng_state_0.pth", folder / "rng_state_1.pth")
    result = audit(folder)
    assert result.word == "DEGRADED"
    assert "rng.exchanged" in ids(result)


def test_a_schedule_under_the_name_of_the_loaders_state_is_named(tmp_path: Path) -> None:
    folder = g.accelerate(tmp_path / "checkpoint_1")
    exchange(folder / "scheduler.bin", folder / "dl_state_dict.bin")
    assert "shard.exchanged" in ids(audit(folder))


def test_a_file_renamed_to_another_step_is_no_exchange(tmp_path: Path) -> None:
    g.save(g.training_state(), tmp_path / "step_4.pt")
    (tmp_path / "step_4.pt").rename(tmp_path / "model_final_6.pt")
    assert not ids(audit(tmp_path / "model_final_6.pt"))


# ---- how was the job laid out


def args_of(rank: int, **fields: Any) -> Callable[[Path], Path]:
    def change(state: dict[str, Any]) -> None:
        state["args"] = argparse.Namespace(**{**vars(state["args"]), **fields})

    return lambda root: edit(root / MODEL_RANK.format(rank), change)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_states_another_world_size_is_named(rank: int, tmp_path: Path) -> None:
    root = g.megatron(tmp_path / "run", tp=4)
    args_of(rank, world_size=16)(root)
    result = audit(root)
    found = next(f for f in result.findings if f.id == "checkpoint.world.ranks-differ")
    assert result.word == "WRONG"
    assert (found.where.rank, found.measured, found.limit) == (rank, 16, 4)
    assert "world.disagrees" not in ids(result)


@pytest.mark.parametrize(("sizes", "odd"), [((2, 2, 4, 4), False), ((4, 4, 2, 4), True), ((2, 4), True)])
def test_files_left_from_a_larger_job_are_stale_and_no_contradiction(
    sizes: tuple[int, ...], odd: bool, tmp_path: Path
) -> None:
    for rank, size in enumerate(sizes):
        g.save(g.training_state(world_size=size), tmp_path / f"rank{rank}.pt")
    assert ("world.ranks-differ" in ids(audit(tmp_path))) is odd


# ---- how far was it


def counted(iteration: int, consumed: int, scheduled: int) -> Callable[[Path], Path]:
    """A Megatron checkpoint of 8 samples each iteration, its counters set."""
    args = argparse.Namespace(
        tensor_model_parallel_size=1, pipeline_model_parallel_size=1, world_size=2, data_parallel_size=2,
        micro_batch_size=4, global_batch_size=8, consumed_train_samples=consumed, iteration=0, seed=1, bf16=True,
    )  # fmt: skip
    return lambda root: g.megatron(
        root, tp=1, step=iteration, args=args, opt_param_scheduler={"num_steps": scheduled}, optimizer=None
    )


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ((6, 48, 48), None),
        ((6, 24, 24), "step.samples-mismatch"),  # batch ramp-up makes fewer samples: nobody can say
        ((6, 16, 48), "sampler.position-mismatch"),
        ((6, 480, 48), "sampler.position-mismatch"),
        ((6, 48, 56), "step.schedule-mismatch"),
        ((6, 48, 44), "step.schedule-mismatch"),  # no whole number of updates was skipped
        ((6, 48, 40), "step.samples-mismatch"),
    ],
)
def test_two_counters_of_samples_stand_against_the_third(
    numbers: tuple[int, int, int], kind: str | None, tmp_path: Path
) -> None:
    about = {"step.samples-mismatch", "sampler.position-mismatch", "step.schedule-mismatch"}
    assert ids(audit(counted(*numbers)(tmp_path / "run"))) & about == ({kind} if kind else set())


def test_the_iteration_that_a_run_began_with_is_not_the_one_it_is_at(tmp_path: Path) -> None:
    root = g.megatron(tmp_path / "run")
    for rank in (0, 1):
        args_of(rank, iteration=0)(root)
    assert not ids(audit(root)) - {"sampler.unsaved", "scaler.missing"}


def test_schedules_of_two_ranks_stand_at_one_place(tmp_path: Path) -> None:
    root = g.megatron(tmp_path / "run")
    edit(root / MODEL_RANK.format(1), lambda state: state["opt_param_scheduler"].update(num_steps=20))
    assert "step.rank-mismatch" in ids(audit(root))


# ---- what was zeroed


def zeroed(state: dict[str, Any], *, step: float = 6, lr: float = 0.1, sign: float = 1.0) -> dict[str, Any]:
    """The first weight as zeros (or as -0), its moments as they were."""
    state["model"]["emb.weight"] = state["model"]["emb.weight"] * 0.0 * sign
    state["optimizer"]["param_groups"][0]["lr"] = lr
    state["global_step"] = state["scheduler"]["last_epoch"] = int(step)
    state["sampler"]["next_index"] = int(step) * g.MICRO
    for entry in state["optimizer"]["state"].values():
        entry["step"] = torch.tensor(float(step))
    return state


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_weight_of_zeros_whose_moments_moved_was_lost(sign: float, tmp_path: Path) -> None:
    result = audit(g.save(zeroed(g.training_state(), sign=sign), tmp_path / "checkpoint.pt"))
    assert result.word == "WRONG"
    assert ids(result) == {"values.zeroed"}


@pytest.mark.parametrize("healthy", [{"step": 1}, {"lr": 0.0}])
def test_a_weight_that_had_no_rate_yet_may_still_be_zeros(healthy: dict[str, float], tmp_path: Path) -> None:
    assert not ids(audit(g.save(zeroed(g.training_state(), **healthy), tmp_path / "checkpoint.pt")))


def test_squares_of_zeros_under_a_mean_that_is_none_were_lost(tmp_path: Path) -> None:
    state = g.training_state()
    state["optimizer"]["state"][0]["exp_avg_sq"] *= 0
    assert "values.zeroed" in ids(audit(g.save(state, tmp_path / "checkpoint.pt")))


def test_squares_of_vanishing_gradients_are_zeros_and_healthy(tmp_path: Path) -> None:
    state = g.training_state()
    state["optimizer"]["state"][0]["exp_avg"] *= 1e-25
    state["optimizer"]["state"][0]["exp_avg_sq"] *= 0
    assert not ids(audit(g.save(state, tmp_path / "checkpoint.pt")))


def test_moments_that_are_all_zeros_after_updates_are_said(tmp_path: Path) -> None:
    state = g.training_state()
    for entry in state["optimizer"]["state"].values():
        entry["exp_avg"] *= 0
        entry["exp_avg_sq"] *= 0
    result = audit(g.save(state, tmp_path / "checkpoint.pt"))
    assert (result.word, ids(result)) == ("DEGRADED", {"optimizer.no-moments"})


def test_a_weight_of_zeros_at_the_end_of_a_schedule_was_lost(tmp_path: Path) -> None:
    state = zeroed(g.training_state(), lr=0.0)
    state["optimizer"]["param_groups"][0]["initial_lr"] = 0.1
    assert ids(audit(g.save(state, tmp_path / "checkpoint.pt"))) == {"values.zeroed"}


def test_a_weight_of_zeros_is_seen_where_matrices_are_numbered_before_vectors(tmp_path: Path) -> None:
    state = zeroed(g.training_state())
    weights = state["model"]
    state["optimizer"]["state"] = g.optimizer(
        {n: g.weights()[n] for n in sorted(weights, key=lambda n: -weights[n].dim())}
    )["state"]
    assert ids(audit(g.save(state, tmp_path / "checkpoint.pt"))) == {"values.zeroed"}


def test_parameter_numbers_that_do_not_ascend_assign_states_to_others(tmp_path: Path) -> None:
    state = g.training_state()
    state["optimizer"]["param_groups"][0]["params"] = [2, 1, 0]
    assert ids(audit(g.save(state, tmp_path / "checkpoint.pt"))) == {"optimizer.order"}


@pytest.mark.parametrize(("size", "whole"), [(16, True), (100, False), (5056, True)])
def test_a_random_state_of_an_impossible_length_is_cut(size: int, whole: bool, tmp_path: Path) -> None:
    state = g.training_state(rng={"torch": torch.full((size,), 7, dtype=torch.uint8)})
    assert ids(audit(g.save(state, tmp_path / "checkpoint.pt"))) == (set() if whole else {"rng.malformed"})


def test_tensor_parallel_ranks_with_other_shapes_are_not_of_one_save(tmp_path: Path) -> None:
    root = g.megatron(tmp_path / "run")
    edit(root / MODEL_RANK.format(1), lambda s: s["model"].update({"emb.weight": s["model"]["emb.weight"][:-1]}))
    assert "weights.ranks-differ" in ids(audit(root))


def test_ranks_with_other_learning_rates_are_of_two_saves(tmp_path: Path) -> None:
    root = g.deepspeed(tmp_path / "run")

    def faster(state: dict[str, Any]) -> None:
        state["optimizer_state_dict"]["base_optimizer_state"]["param_groups"][0]["lr"] = 1.0

    edit(root / "global_step6" / OPTIMIZER.format(1), faster)
    assert "step.rate" in ids(audit(root))


def test_a_parameter_that_no_gradient_reached_is_healthy(tmp_path: Path) -> None:
    state = g.training_state()
    state["model"]["emb.weight"] *= 0
    for word in ("exp_avg", "exp_avg_sq"):
        state["optimizer"]["state"][0][word] *= 0
    assert not ids(audit(g.save(state, tmp_path / "checkpoint.pt")))


def test_one_shard_of_zeros_is_seen_by_its_checksum(tmp_path: Path) -> None:
    params = g.weights(rows=16)
    params["emb.weight"][8:] = 0
    tensors = {f"model.{n}": p for n, p in params.items()}
    for name, p in g.weights(rows=16).items():
        tensors[f"optimizer.state.{name}.exp_avg"] = p * 0.1
        tensors[f"optimizer.state.{name}.exp_avg_sq"] = p**2
    found = next(f for f in audit(g.dcp(tmp_path, tensors, {"step": 6})).findings if f.id.endswith("values.zeroed"))
    assert (found.where.tensor, found.where.rank) == ("model.emb.weight", 1)


def test_a_ranks_master_weights_of_zeros_are_seen(tmp_path: Path) -> None:
    root = g.deepspeed(tmp_path / "run")

    def blank(state: dict[str, Any]) -> None:
        state["optimizer_state_dict"]["single_partition_of_fp32_groups"][0] *= -0.0

    edit(root / "global_step6" / OPTIMIZER.format(1), blank)
    found = [f for f in audit(root).findings if f.id.endswith("values.zeroed")]
    assert any(f.where.key == "fp32[0]" and f.where.rank == 1 for f in found)


@pytest.mark.parametrize("length", [0, 1, 3, 64, 4097])
def test_the_checksum_of_zeros_needs_no_zeros(length: int) -> None:
    assert zeros_crc(length) == zlib.crc32(bytes(length))


# ---- what was never written


def end_in_zeros(path: Path, length: int) -> Path:
    raw = path.read_bytes()
    path.write_bytes(raw[:-length] + bytes(length))
    return path


def test_zeros_that_begin_amid_a_row_of_the_last_tensor_were_not_written(tmp_path: Path) -> None:
    path = g.safetensors({"emb.weight": torch.randn(64, 40)}, tmp_path / "model.safetensors")
    assert "file.zero-tail" in ids(audit(end_in_zeros(path, 1000)))


def test_rows_that_were_never_used_are_healthy(tmp_path: Path) -> None:
    weight = torch.randn(64, 40)
    weight[58:] = 0
    assert not ids(audit(g.safetensors({"emb.weight": weight}, tmp_path / "model.safetensors")))


def test_unused_columns_in_front_of_unused_rows_are_healthy(tmp_path: Path) -> None:
    weight = torch.randn(64, 40)
    weight[58:], weight[:, 30:] = 0, 0
    assert not ids(audit(g.safetensors({"emb.weight": weight}, tmp_path / "model.safetensors")))


def test_an_older_copy_beside_keeps_its_own_name(tmp_path: Path) -> None:
    root = g.deepspeed(tmp_path / "run", step=4)
    g.deepspeed(root, step=6)
    shutil.copytree(root / "global_step6", root / "kept_global_step6")
    assert "shard.exchanged" not in ids(audit(root / "global_step6"))
