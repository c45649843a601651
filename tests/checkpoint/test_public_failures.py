"""Failures that people reported publicly, each as files: the auditor names them, and is quiet on the healthy twin.

Keys follow the groups: A torn or mislaid, B coverage and naming, C optimizer, D data position, E schedule, scaler and
random state, F pointers and security. Not shown here, because files alone cannot show them: A10 (which tag a script
asks for), B02 (whether one value was meant for each rank), C05 (a list inside another rank's memory), D08 and E05 (a
library version's own fault), D11 (whether the data are one epoch), D16 (whether validation ran). Comparisons (B08,
B09, B12, B15, C08) are in test_identity.py.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checkpoint import generate as g
from tests.checkpoint.audit import audit, ids

Build = Callable[[Path], Path]
CASES: dict[str, tuple[str, str, Build]] = {}


def case(key: str, word: str, kind: str) -> Callable[[Build], Build]:
    """``word``: the overall verdict or worse; ``kind``: a finding that must be there."""

    def register(build: Build) -> Build:
        CASES[f"{key} {build.__name__.replace('_', ' ')}"] = (word, kind, build)
        return build

    return register


def cut(path: Path, share: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


# ---- A: torn, partial, mislaid


@case("A01", "BROKEN", "complete.marker-missing")
def killed_before_the_trainer_state_was_written(root: Path) -> Path:
    g.hf(root / "checkpoint-5", step=5)
    torn = g.hf(root / "checkpoint-10", step=10)
    for name in ("optimizer.pt", "scheduler.pt", "trainer_state.json", "training_args.bin"):
        (torn / name).unlink()
    return root


@case("A02", "BROKEN", "file.truncated")
def killed_while_writing_one_file(root: Path) -> Path:
    return cut(g.save(g.lightning(), root / "last.ckpt"), 0.7)


@case("A03", "BROKEN", "complete.metadata-missing")
def pointer_ahead_of_an_asynchronous_save(root: Path) -> Path:
    g.dcp_training(root / "step_4", step=4)
    folder = g.dcp_training(root / "step_6")
    (folder / ".metadata").unlink()
    cut(folder / "__1_0.distcp", 0.5)
    (root / "latest").symlink_to("step_6")
    return root


@case("A04", "BROKEN", "complete.metadata-missing")
def shards_and_common_state_without_metadata(root: Path) -> Path:
    folder = g.megatron_dist(root / "iter_0000006")
    (folder / ".metadata").unlink()
    (folder / "metadata.json").unlink()
    (root / "latest_checkpointed_iteration.txt").write_text("6")
    return root


@case("A05", "BROKEN", "complete.rank-file-missing")
def one_workers_file_never_arrived(root: Path) -> Path:
    g.save(g.training_state(world_size=2), root / "state_rank0.pt")
    return root


@case("A05b", "WRONG", "step.rank-mismatch")
def one_workers_file_is_of_another_step(root: Path) -> Path:
    g.save(g.training_state(world_size=2), root / "state_rank0.pt")
    g.save(g.training_state(world_size=2, global_step=4), root / "state_rank1.pt")
    return root


@case("A06", "BROKEN", "complete.file-missing")
def half_of_the_shards_are_on_another_node(root: Path) -> Path:
    folder = g.dcp_training(root / "step_6", ranks=4)
    for rank in (2, 3):
        (folder / f"__{rank}_0.distcp").unlink()
    return folder


@case("A06b", "BROKEN", "complete.metadata-missing")
def the_other_nodes_half_has_no_metadata(root: Path) -> Path:
    folder = g.dcp_training(root / "step_6", ranks=4)
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        (folder / name).unlink()
    return folder


@case("A07", "BROKEN", "complete.shard-missing")
def each_node_kept_its_own_zero_shards(root: Path) -> Path:
    g.deepspeed(root, ranks=4)
    for rank in (2, 3):
        (root / "global_step6" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").unlink()
    return root


@case("A08", "WRONG", "integrity.crc")
def two_ranks_wrote_the_same_file(root: Path) -> Path:
    path = g.save(g.training_state(), root / "checkpoint.pt")
    data, other = bytearray(path.read_bytes()), torch.randn(5, 16).numpy().tobytes()
    at = data.find(g.weights()["head.weight"].numpy().tobytes())
    data[at : at + len(other)] = other
    path.write_bytes(bytes(data))
    return path


@case("A09", "BROKEN", "pointer.dangling")
def latest_names_a_tag_that_is_not_there(root: Path) -> Path:
    g.deepspeed(root)
    (root / "latest").write_text("global_step20")
    return root


@case("A09b", "DEGRADED", "pointer.missing")
def latest_is_missing(root: Path) -> Path:
    g.deepspeed(root)
    (root / "latest").unlink()
    return root


@case("A11", "NOT-RESUMABLE", "complete.unfinished-marker")
def the_unfinished_marker_was_left(root: Path) -> Path:
    folder = root / "model--loss=1.0-step=6"
    g.megatron_dist(folder / "weights")
    (folder / "context").mkdir()
    (folder / "context" / "io.json").write_text("{}")
    (root / "model--loss=1.0-step=6-unfinished").write_text("")
    return root


@case("A12", "BROKEN", "safetensors.truncated")
def a_numbered_folder_with_cut_weights(root: Path) -> Path:
    g.safetensors(g.weights(), root / "6" / "model.safetensors")
    (root / "6" / "training_state.json").write_text('{"global_step": 6}')
    cut(root / "6" / "model.safetensors", 0.9)
    return root / "6"


@case("A13", "BROKEN", "file.truncated")
def hdf5_shorter_than_its_superblock_says(root: Path) -> Path:
    import h5py

    root.mkdir(exist_ok=True)
    with h5py.File(root / "m.h5", "w") as file:
        file["model_weights/a"] = [1.0] * 1000
    return cut(root / "m.h5", 0.7)


@case("A14", "BROKEN", "file.lfs-pointer")
def weights_are_git_lfs_pointers(root: Path) -> Path:
    g.hf(root / "checkpoint-6")
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1000\n"
    (root / "checkpoint-6" / "model.safetensors").write_text(text)
    return root / "checkpoint-6"


def sharded(root: Path, count: int) -> Path:
    table = {}
    for index, (name, _tensor) in enumerate(g.weights().items()):
        file = f"model-{index % count + 1:05d}-of-{count:05d}.safetensors"
        table[name] = file
    for file in set(table.values()):
        g.safetensors({n: g.weights()[n] for n, f in table.items() if f == file}, root / file)
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
    return root


@case("A15", "BROKEN", "complete.file-missing")
def the_index_names_a_file_that_is_not_there(root: Path) -> Path:
    (sharded(root, 3) / "model-00002-of-00003.safetensors").unlink()
    return root


@case("A16", "DEGRADED", "file.stale")
def files_of_an_older_save_lie_beside(root: Path) -> Path:
    sharded(root, 3)
    return sharded(root, 2)


@case("A17", "BROKEN", "safetensors.trailing")
def bytes_follow_the_last_tensor(root: Path) -> Path:
    path = g.safetensors(g.weights(), root / "model.safetensors")
    path.write_bytes(path.read_bytes() + b"\0" * 16)
    return path


@case("A18", "BROKEN", "file.truncated")
def the_archives_writer_died_at_close(root: Path) -> Path:
    path = g.save(g.training_state(), root / "checkpoint.pt")
    data = path.read_bytes()
    path.write_bytes(data[: data.find(b"PK\x01\x02")])
    return path


# ---- B: coverage, naming, conversion


def edited(root: Path, edit: Callable[[object], None]) -> Path:
    folder = g.dcp_training(root / "step_6")
    metadata = g.edit_metadata(folder)
    edit(metadata)
    g.write_metadata(folder, metadata)
    return folder


@case("B01", "WRONG", "shard.hole")
def chunks_cover_half_of_a_tensor(root: Path) -> Path:
    return edited(root, lambda m: m.state_dict_metadata["model.emb.weight"].chunks.pop())


@case("B03", "BROKEN", "shard.out-of-bounds")
def a_chunk_begins_at_the_tensors_end(root: Path) -> Path:
    def edit(metadata: object) -> None:
        metadata.state_dict_metadata["model.emb.weight"].chunks[1].offsets = torch.Size([8, 0])

    return edited(root, edit)


@case("B04", "BROKEN", "shard.out-of-bounds")
def offsets_have_one_dimension_more(root: Path) -> Path:
    def edit(metadata: object) -> None:
        metadata.state_dict_metadata["model.emb.weight"].chunks[1].offsets = torch.Size([0, 4, 0])

    return edited(root, edit)


@case("B05", "DEGRADED", "shard.repeated")
def two_expert_shards_hold_the_same_bytes(root: Path) -> Path:
    half = torch.randn(4, 64)
    return g.dcp(root / "step_6", {"model.experts.weight": torch.cat([half, half])}, {})


@case("B06", "BROKEN", "weights.empty")
def zero_3_placeholders_were_exported(root: Path) -> Path:
    g.safetensors({n: torch.zeros(0) for n in g.weights()}, root / "model.safetensors")
    return root


@case("B07", "DEGRADED", "file.stale")
def a_bogus_single_file_beside_the_shards(root: Path) -> Path:
    g.safetensors({"emb.weight": torch.zeros(1, 1)}, sharded(root, 2) / "model.safetensors")
    return root


@case("B10", "DEGRADED", "weights.tie-broken")
def tied_weights_with_different_values(root: Path) -> Path:
    g.safetensors(
        {"model.embed_tokens.weight": torch.ones(4, 2), "lm_head.weight": torch.zeros(4, 2)}, root / "model.safetensors"
    )
    (root / "config.json").write_text('{"tie_word_embeddings": true}')
    return root


@case("B11", "DEGRADED", "weights.mixed-prefix")
def some_names_carry_a_wrapper_prefix(root: Path) -> Path:
    names = {("_orig_mod." if i % 4 else "") + f"layers.{i}.weight": torch.ones(2, 2) for i in range(8)}
    return g.save(g.training_state(model=names, optimizer=g.optimizer(names)), root / "checkpoint.pt")


@case("B14", "DEGRADED", "weights.dtype-drift")
def weights_are_not_in_the_configured_dtype(root: Path) -> Path:
    g.hf(root / "checkpoint-6")
    (root / "checkpoint-6" / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    return root / "checkpoint-6"


@case("B16", "WRONG", "step.directory-mismatch")
def a_converted_checkpoint_says_another_iteration(root: Path) -> Path:
    return g.megatron(root, iteration=1, optimizer=None)


# ---- C: optimizer


@case("C01", "WRONG", "step.optimizer-mismatch")
def moments_were_dropped_on_an_earlier_resume(root: Path) -> Path:
    state = g.training_state(optimizer=g.optimizer(g.weights(), step=2))
    return g.save(state, root / "checkpoint.pt")


@case("C03", "NOT-RESUMABLE", "optimizer.absent")
def the_optimizer_was_never_saved(root: Path) -> Path:
    return g.save(g.training_state(optimizer=None), root / "checkpoint.pt")


@case("C04", "NOT-RESUMABLE", "optimizer.absent")
def the_converter_dropped_the_optimizer(root: Path) -> Path:
    return g.megatron_dist(root / "iter_0000006", optimizer=False, sharding="fully_sharded_model_space")


@case("C07", "DEGRADED", "universal.not-adam")
def the_universal_form_of_another_optimizer(root: Path) -> Path:
    folder = g.deepspeed(root) / "global_step6"
    for path in folder.glob("zero_pp*"):
        path.unlink()
    for name, weight in g.weights().items():
        for word in ("fp32", "momentum_buffer"):
            g.save({"param": weight}, folder / "zero" / name / f"{word}.pt")
    return folder


@case("C09", "NOT-RESUMABLE", "optimizer.uncovered")
def parameter_groups_list_more_parameters_than_states(root: Path) -> Path:
    state = g.training_state()
    state["optimizer"]["param_groups"][0]["params"] = list(range(10))
    return g.save(state, root / "checkpoint.pt")


@case("C10", "DEGRADED", "weights.no-master")
def the_master_weights_were_not_saved(root: Path) -> Path:
    low = {n: w.bfloat16() for n, w in g.weights().items()}
    return g.save(g.training_state(model=low), root / "checkpoint.pt")


@case("C11", "WRONG", "optimizer.master-mismatch")
def weights_are_not_the_rounded_master(root: Path) -> Path:
    return g.deepspeed(root, module={n: (w + 1).bfloat16() for n, w in g.weights().items()})


@case("C12", "WRONG", "values.not-finite-optimizer")
def moments_in_half_precision_overflowed(root: Path) -> Path:
    state = g.training_state()
    for entry in state["optimizer"]["state"].values():
        entry["exp_avg_sq"] = (entry["exp_avg_sq"] * 1e6).half()
        entry["exp_avg"] = entry["exp_avg"].half()
    return g.save(state, root / "checkpoint.pt")


@case("C13", "WRONG", "values.not-finite-optimizer")
def one_moment_is_not_a_number(root: Path) -> Path:
    state = g.training_state()
    state["optimizer"]["state"][0]["exp_avg"][2, 3] = float("nan")
    return g.save(state, root / "checkpoint.pt")


# ---- D: data position


@case("D01", "NOT-RESUMABLE", "sampler.missing")
def the_loader_was_never_passed_to_the_save(root: Path) -> Path:
    return g.dcp_training(root / "step_6", without=("sampler",))


@case("D03", "DEGRADED", "sampler.one-for-all")
def all_ranks_wrote_one_loader_file(root: Path) -> Path:
    return g.accelerate(root / "c")


@case("D04", "WRONG", "sampler.position-mismatch")
def the_position_is_off_by_the_other_ranks(root: Path) -> Path:
    return g.accelerate(root / "c", loader=11)


def titan(root: Path, samples: dict[int, int], ranks: int) -> Path:
    folder = root / "step-6"
    params = g.weights()
    tensors = dict(params)
    for name, weight in params.items():
        tensors.update({f"optimizer.state.{name}.{w}": weight**2 for w in ("exp_avg", "exp_avg_sq")})
        tensors[f"optimizer.state.{name}.step"] = torch.tensor(6.0)
    tensors["train_state.step"] = torch.tensor(6, dtype=torch.int32)
    values = {
        f"dataloader.dp_rank_{r}": pickle.dumps({"_num_yielded": n // 4, "_sampler_iter_state": {"samples_yielded": n}})
        for r, n in samples.items()
    }
    return g.dcp(folder, tensors, {**values, "dataloader.world_size": ranks, "lr_scheduler.last_epoch": 6})


@case("D05", "WRONG", "sampler.ranks-differ")
def ranks_have_read_differently_far(root: Path) -> Path:
    return titan(root, {0: 24, 1: 20}, 2)


@case("D06", "NOT-RESUMABLE", "sampler.rank-missing")
def some_ranks_have_no_loader_state(root: Path) -> Path:
    return titan(root, {0: 24, 1: 24}, 4)


@case("D07", "BROKEN", "complete.rank-file-missing")
def only_rank_zero_saved_its_part(root: Path) -> Path:
    g.save(g.training_state(world_size=4), root / "training_state-rank0.pt")
    return root


@case("D09", "WRONG", "step.epoch-rate")
def the_epoch_counts_accumulation_twice(root: Path) -> Path:
    return g.hf(root / "checkpoint-6", epoch=4 * 0.6)


@case("D10", "WRONG", "sampler.ranks-differ")
def an_incomplete_tail_gave_ranks_different_shares(root: Path) -> Path:
    for rank, samples in enumerate((24, 20, 20)):
        state = {"sampler": {"next_index": samples, "epoch": 0, "seed": 1}, "global_step": 6, "world_size": 3}
        g.save({**g.training_state(), **state}, root / f"state_rank{rank}.pt")
    return root


@case("D12", "DEGRADED", "sampler.no-epoch")
def a_loader_state_without_epoch_in_a_later_epoch(root: Path) -> Path:
    state = g.training_state(epoch=1, sampler=None, dataloader={"_num_yielded": 2, "_sampler_iter_yielded": 2})
    return g.save(state, root / "checkpoint.pt")


@case("D13", "WRONG", "step.epoch-completed")
def the_last_checkpoint_claims_a_finished_epoch(root: Path) -> Path:
    state = g.lightning()
    state["loops"]["fit_loop"]["epoch_progress"]["current"] = {"ready": 1, "completed": 1}
    return g.save(state, root / "last.ckpt")


@case("D14", "DEGRADED", "step.loops")
def loop_counters_are_two_apart(root: Path) -> Path:
    state = g.lightning()
    state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["completed"] = 4
    return g.save(state, root / "last.ckpt")


@case("D17", "WRONG", "step.optimizer-mismatch")
def the_step_counts_micro_batches(root: Path) -> Path:
    return g.save(g.training_state(global_step=24, grad_accum_steps=4), root / "checkpoint.pt")


# ---- E: schedule, scaler, random state


@case("E01", "WRONG", "step.schedule-mismatch")
def the_schedule_ran_once_for_every_process(root: Path) -> Path:
    return g.save(g.training_state(scheduler={"last_epoch": 24, "base_lrs": [0.1]}), root / "checkpoint.pt")


@case("E02", "WRONG", "step.schedule-mismatch")
def the_schedule_is_one_behind(root: Path) -> Path:
    return g.save(g.training_state(scheduler={"last_epoch": 5, "base_lrs": [0.1]}), root / "checkpoint.pt")


@case("E03", "NOT-RESUMABLE", "schedule.missing")
def the_schedule_was_not_saved(root: Path) -> Path:
    return g.save(g.training_state(scheduler=None), root / "checkpoint.pt")


@case("E04", "DEGRADED", "scaler.missing")
def an_fp16_run_without_its_scaler(root: Path) -> Path:
    return g.save(g.training_state(fp16=True), root / "checkpoint.pt")


@case("E06", "DEGRADED", "scaler.keys")
def the_scaler_lost_its_counter(root: Path) -> Path:
    return g.save(g.training_state(scaler={"scale": 256.0, "growth_factor": 2.0}), root / "checkpoint.pt")


@case("E07", "DEGRADED", "rng.collapsed")
def expert_ranks_share_one_random_stream(root: Path) -> Path:
    return g.megatron_dist(root / "iter_0000006", ep=4)


@case("E08", "DEGRADED", "rng.missing")
def the_random_state_was_left_out(root: Path) -> Path:
    return g.megatron_dist(root / "iter_0000006", rng=False)


@case("E09", "DEGRADED", "rng.incomplete")
def three_of_four_random_states(root: Path) -> Path:
    (g.hf(root / "checkpoint-6", ranks=4) / "rng_state_2.pth").unlink()
    return root / "checkpoint-6"


# ---- F: pointers, retention, security


@case("F01", "DEGRADED", "pointer.order")
def the_highest_step_is_older_than_a_lower_one(root: Path) -> Path:
    for step, age_s in ((6, 0), (12, 90_000)):
        for path in g.hf(root / f"checkpoint-{step}", step=step).iterdir():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age_s))
    return root


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /nowhere/canary",)


@case("F02", "SECURITY", "security.code")
def the_metadata_pickle_calls_a_function(root: Path) -> Path:
    folder = g.dcp_training(root / "step_6")
    metadata = g.edit_metadata(folder)
    metadata.planner_data = {"x": Evil()}
    g.write_metadata(folder, metadata)
    return folder


@case("F03", "SECURITY", "security.code")
def a_random_state_file_calls_a_function(root: Path) -> Path:
    g.save({"cpu": Evil()}, g.hf(root / "checkpoint-6") / "rng_state_0.pth")
    return root / "checkpoint-6"


@case("F04", "SECURITY", "security.code")
def a_corrupt_entry_stands_before_the_payload(root: Path) -> Path:
    path = g.save({"model": g.weights(), "hook": Evil()}, root / "checkpoint.pt")
    data = bytearray(path.read_bytes())
    at = data.rfind(b"checkpoint/.format_version") - 46
    struct.pack_into("<I", data, at + 16, 0xDEADBEEF)
    path.write_bytes(bytes(data))
    return path


WORDS = ("OK", "DEGRADED", "UNKNOWN", "NOT-RESUMABLE", "WRONG", "BROKEN", "SECURITY")


@pytest.mark.parametrize("name", CASES)
def test_a_reported_failure_is_named(name: str, tmp_path: Path):
    word, kind, build = CASES[name]
    result = audit(build(tmp_path))
    assert kind in ids(result), (result.word, ids(result))
    assert WORDS.index(result.word) >= WORDS.index(word), (result.word, ids(result))


HEALTHY: dict[str, tuple[set[str], Build]] = {
    "a whole state in one file": (set(), lambda r: g.save(g.training_state(), r / "checkpoint.pt")),
    "a scaler that was restored to another scale": (
        set(),
        lambda r: g.save(
            g.training_state(fp16=True, scaler={"scale": 2.0, "growth_factor": 2.0, "_growth_tracker": 0}), r / "c.pt"
        ),
    ),
    "DCP with optimizer keys by name": (set(), lambda r: g.dcp_training(r / "step_6")),
    "DCP by four ranks, some without rows": (set(), lambda r: g.dcp_training(r / "step_6", ranks=4)),
    "DCP cut along columns": (set(), lambda r: g.dcp_training(r / "step_6", cut=1)),
    "HF Trainer": (set(), lambda r: g.hf(r / "checkpoint-6")),
    "Accelerate of one process": (set(), lambda r: g.accelerate(r / "c", ranks=1, last_epoch=6)),
    "Lightning in the middle of an epoch": ({"rng.missing"}, lambda r: g.save(g.lightning(), r / "last.ckpt")),
    "DeepSpeed ZeRO-1": ({"rng.missing"}, lambda r: g.deepspeed(r)),
    "Megatron legacy": (set(), lambda r: g.megatron(r)),
    "Megatron dist": (set(), lambda r: g.megatron_dist(r / "iter_0000006")),
    "torchtitan": ({"rng.missing"}, lambda r: titan(r, {0: 24, 1: 24}, 2)),
    "safetensors by index": (set(), lambda r: sharded(r, 2)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_twin_stays_quiet(name: str, tmp_path: Path):
    allowed, build = HEALTHY[name]
    assert ids(audit(build(tmp_path))) <= allowed


@pytest.mark.parametrize(("ranks", "tp", "kind"), [(4, 1, "sampler.target"), (2, 2, "optimizer.target")])
def test_a_changed_target_layout_is_told(ranks: int, tp: int, kind: str, tmp_path: Path):
    """C06 and D15: the files are good, the plan for the next job is what does not fit."""
    folder = (
        g.megatron_dist(tmp_path / "iter_0000006") if kind == "optimizer.target" else g.hf(tmp_path / "checkpoint-6")
    )
    assert kind in ids(audit(folder, target=(ranks, tp, 1)))
    assert kind not in ids(audit(folder))


def test_nothing_is_written_beside_the_checkpoint(tmp_path: Path):
    folder = g.dcp_training(tmp_path / "step_6")
    copy = shutil.copytree(folder, tmp_path / "copy")
    audit(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {p.name: p.read_bytes() for p in Path(copy).iterdir()}


#: Reported failures that a checkpoint's own files cannot show, or that lie in a loader whose files are good.
NOT_IN_THE_FILES = {
    "A10": "several tags with different weights are each whole; which one a script asks for is not in them",
    "B02": "a key that collapsed when all ranks wrote it looks like a key that one rank wrote (see D03, D05, D06)",
    "B08": "an alias missing from a converted file: `diff` names it beside the source",
    "B12": "a weight missing everywhere: `diff` names it beside an earlier checkpoint (with moments: weights.missing)",
    "B15": "a vocabulary padded twice: `diff` names the shape beside the reference",
    "C02": "the loader used no planner; the file is right (healthy twin: DCP)",
    "C05": "lengths of lists in the common state against ranks' shards need the framework's own plan",
    "C08": "permuted values of one parameter: `diff` locates the first element beside the source",
    "D02": "no position keys: D01",
    "D08": "the sampler's epoch is reset by the library on resume; the files are those of a good save",
    "D11": "an offset that is applied again each epoch happens after loading",
    "D16": "validation samples that count 0 do not change training",
    "E05": "the loader changes a scale that was stored rightly",
}
ELSEWHERE = {"B09": "test_promises", "B13": "test_promises", "C06": "target", "D15": "target"}


def test_every_reported_failure_is_shown_or_listed():
    shown = {name[:3] for name in CASES}
    entries = {f"{k}{i:02d}" for k, n in zip("ABCDEF", (18, 16, 13, 17, 9, 4), strict=True) for i in range(1, n + 1)}
    assert len(entries) == 77
    assert entries - shown - NOT_IN_THE_FILES.keys() - ELSEWHERE.keys() == set()
    assert not shown & NOT_IN_THE_FILES.keys()
