"""What groups, ranks, configurations and names promise about a checkpoint, each broken once, beside its good twin."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from ddaudit.checkpoint.collect import Options, collect
from ddaudit.checkpoint.folder import Folder
from ddaudit.cli.checkpoint_audit import audit_path
from tests.checkpoint import generate as g
from tests.checkpoint.audit import audit, ids

ADAM = {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "params": [0, 1, 2]}
Edit = Callable[[dict[str, Any]], object]


def state() -> dict[str, Any]:
    made = g.training_state()
    made["optimizer"]["param_groups"] = [dict(ADAM)]
    made["scheduler"]["_last_lr"] = [0.1]
    return made


def each(word: str) -> Edit:
    return lambda s: [entry.pop(word) for entry in s["optimizer"]["state"].values()]


FAULTS: dict[str, tuple[str, str, Edit]] = {
    "no second moments": ("WRONG", "optimizer.state-missing", each("exp_avg_sq")),
    "no steps": ("WRONG", "optimizer.state-missing", each("step")),
    "one step lost": ("WRONG", "optimizer.state-missing", lambda s: s["optimizer"]["state"][1].pop("step")),
    "one state emptied": ("NOT-RESUMABLE", "optimizer.uncovered", lambda s: s["optimizer"]["state"][0].clear()),
    "groups without state": ("NOT-RESUMABLE", "optimizer.absent", lambda s: s["optimizer"]["state"].clear()),
    "states without groups": ("NOT-RESUMABLE", "optimizer.groups", lambda s: s["optimizer"].pop("param_groups")),
    "groups emptied": ("NOT-RESUMABLE", "optimizer.groups", lambda s: s["optimizer"]["param_groups"].clear()),
    "a parameter in two groups": (
        "NOT-RESUMABLE",
        "optimizer.groups",
        lambda s: s["optimizer"]["param_groups"].append({**ADAM, "params": [2]}),
    ),
    "a rate that is no number": (
        "WRONG",
        "values.not-finite-optimizer",
        lambda s: s["optimizer"]["param_groups"][0].update(lr=float("nan")),
    ),
    "a schedule of another save": ("DEGRADED", "step.rate", lambda s: s["scheduler"].update(_last_lr=[0.02])),
    "an epoch without position": ("DEGRADED", "sampler.no-position", lambda s: s["sampler"].pop("next_index")),
    "a transposed moment": (
        "WRONG",
        "optimizer.shape",
        lambda s: s["optimizer"]["state"][0].update(exp_avg_sq=torch.ones(16, 8)),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_promise_is_named(name: str, tmp_path: Path):
    word, kind, edit = FAULTS[name]
    made = state()
    edit(made)
    result = audit(g.save(made, tmp_path / "checkpoint.pt"))
    assert kind in ids(result) and result.word == word


def test_kept_promises_are_quiet(tmp_path: Path):
    assert ids(audit(g.save(state(), tmp_path / "checkpoint.pt"))) == set()


def test_plain_sgd_has_no_state_to_lose(tmp_path: Path):
    made = state()
    made["optimizer"] = {"state": {}, "param_groups": [{"lr": 0.1, "momentum": 0, "params": [0, 1, 2]}]}
    assert "optimizer.absent" not in ids(audit(g.save(made, tmp_path / "checkpoint.pt")))


def test_moments_of_a_weight_that_is_gone_are_noticed(tmp_path: Path):
    folder = g.dcp_training(tmp_path / "step_6", without=("model.norm.weight",))
    assert {"weights.missing"} <= ids(audit(folder))


def test_a_head_without_moments_is_tied_only_if_its_values_are(tmp_path: Path):
    def save(root: Path, head: torch.Tensor) -> Path:
        weights = {**g.weights(), "head.weight": head}
        tensors = {f"model.{n}": w for n, w in weights.items()}
        moments = ("emb.weight", "norm.weight")
        tensors |= {f"optimizer.state.{n}.{w}": weights[n] ** 2 for n in moments for w in ("exp_avg", "exp_avg_sq")}
        return g.dcp(root / "step_6", tensors, {"step": 6})

    emb = g.weights()["emb.weight"]
    assert "optimizer.uncovered" not in ids(audit(save(tmp_path / "a", emb.clone())))
    assert "optimizer.uncovered" in ids(audit(save(tmp_path / "b", emb + 1)))


def test_tied_weights_written_twice_are_one_weight(tmp_path: Path):
    tied = {**g.weights(), "lm_head.weight": g.weights()["emb.weight"].clone()}
    folder = tmp_path / "m"
    g.safetensors(tied, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True, "dtype": "float32"}))
    assert ids(audit(folder)) == set()


@pytest.mark.parametrize(("said", "bad"), [(8, False), (6, False), (9999, True)])
def test_a_vocabulary_may_be_padded_but_not_cut(said: int, bad: bool, tmp_path: Path):
    g.safetensors({"embed_tokens.weight": torch.randn(8, 16)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": said, "hidden_size": 16}))
    assert ("weights.config-mismatch" in ids(audit(tmp_path))) is bad


def test_zeros_through_several_tensors_are_an_unfinished_write(tmp_path: Path):
    path = g.safetensors({f"w{i}.weight": torch.randn(64, 16) for i in range(4)}, tmp_path / "model.safetensors")
    assert ids(audit(path)) == set()
    raw = path.read_bytes()
    path.write_bytes(raw[:-10_000] + b"\0" * 10_000)
    assert "file.zero-tail" in ids(audit(path))


def test_bytes_behind_an_archive_are_noticed(tmp_path: Path):
    path = g.save(state(), tmp_path / "checkpoint.pt")
    with path.open("ab") as file:
        file.write(b"junk")
    assert ids(audit(path)) == {"file.trailing"}


def test_one_ranks_partition_over_anothers_is_noticed(tmp_path: Path):
    tag = g.deepspeed(tmp_path) / "global_step6"
    zero, one = (tag / f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in (0, 1))
    shutil.copy(zero, one)
    assert "shard.copied" in ids(audit(tmp_path))


def test_a_partitioned_weight_must_be_in_the_module(tmp_path: Path):
    short = {n: w.bfloat16() for n, w in g.weights().items() if n != "norm.weight"}
    assert "weights.missing" in ids(audit(g.deepspeed(tmp_path, module=short)))


def test_megatron_ranks_hold_different_matrices_and_the_same_keys(tmp_path: Path):
    root = g.megatron(tmp_path / "a")
    first, second = (root / "iter_0000006" / f"mp_rank_{r:02d}" / "model_optim_rng.pt" for r in (0, 1))
    shutil.copy(first, second)
    assert "shard.repeated" in ids(audit(root))
    lost = torch.load(second, weights_only=False)
    del lost["iteration"]
    g.save(lost, second)
    assert "key.missing" in ids(audit(root))


@pytest.mark.parametrize("loops", [{}, {"fit_loop": {}}])
def test_lightning_without_its_fit_loop_has_no_position(loops: dict[str, Any], tmp_path: Path):
    assert "key.missing" in ids(audit(g.save(g.lightning(loops=loops), tmp_path / "last.ckpt")))


def test_a_lightning_job_without_schedule_misses_none(tmp_path: Path):
    result = audit(g.save(g.lightning(lr_schedulers=[]), tmp_path / "last.ckpt"))
    assert "schedule.missing" not in ids(result) and result.word == "DEGRADED"


def test_a_loader_needs_a_snapshot_of_each_worker(tmp_path: Path):
    workers = {"worker_0": {"worker_id": 0}}
    main = {"_num_workers": 2, "_base_seed": 1}
    snapshot = {"_snapshot_step": 2, "_main_snapshot": main, "_worker_snapshots": workers}
    path = g.save({"_snapshot": snapshot, "_steps_since_snapshot": 0}, tmp_path / "loader.pt")
    assert "sampler.workers" in ids(audit(path))


def test_a_rank_without_rows_is_no_fault(tmp_path: Path):
    """Six rows over four ranks are two, two, two and none."""
    folder = g.dcp(tmp_path / "step_6", {"model.w": torch.randn(6, 16)}, {}, ranks=4)
    metadata = g.edit_metadata(folder)
    raw = g.item(torch.empty(0, 16))
    (folder / "__3_0.distcp").write_bytes(raw)
    offsets = torch.Size([6, 0])
    metadata.state_dict_metadata["model.w"].chunks.append(ChunkStorageMetadata(offsets, torch.Size([0, 16])))
    metadata.storage_data[MetadataIndex("model.w", offsets, 3)] = _StorageInfo("__3_0.distcp", 0, len(raw))
    g.write_metadata(folder, metadata)
    assert ids(audit(folder)) == set()


def test_names_alone_open_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = g.hf(tmp_path / "checkpoint-6")
    opened: list[str] = []
    monkeypatch.setattr(Folder, "opened_anew", lambda self, full: opened.append(full))
    facts = collect(str(folder), Options(level="names")).facts
    assert opened == [] and facts.layout == "hf-trainer" and facts.files == 8 and not facts.faults
    (folder / "rng_state_0.pth").unlink()
    (folder / "optimizer.pt").write_bytes(b"")
    kinds = {f.kind for f in collect(str(folder), Options(level="names")).facts.faults}
    assert kinds == {"rng.incomplete", "file.empty"}


def test_a_lightning_save_after_a_fit_that_ended_within_an_epoch_is_degraded(tmp_path: Path) -> None:
    state = g.lightning()
    loop = state["loops"]["fit_loop"]
    loop["epoch_progress"]["current"] = {"ready": 1, "completed": 1}
    loop["epoch_loop.batch_progress"]["current"]["completed"] = 6
    result = audit_path(str(g.save(state, tmp_path / "end.ckpt")))
    assert result.word == "DEGRADED" and any(f.id.endswith("step.epoch-left") for f in result.findings)


def test_a_lightning_schedule_by_epoch_is_held_against_the_loops_own_count(tmp_path: Path) -> None:
    words = []
    for last in (1, 0):
        state = g.lightning(lr_schedulers=[{"last_epoch": last, "base_lrs": [0.1]}])
        state["loops"]["fit_loop"]["epoch_loop.scheduler_progress"] = {"total": {"ready": 1, "completed": 1}}
        words.append(audit_path(str(g.save(state, tmp_path / f"{last}.ckpt"))).word)
    assert words == ["DEGRADED", "WRONG"]
