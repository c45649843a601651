"""Small checkpoints of each framework's form; faults are edits of these. Only this file and its users need torch."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import struct
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

STEP, MICRO, RANKS = 6, 4, 2


def weights(rows: int = 8) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"emb.weight": torch.randn(rows, 16), "norm.weight": torch.ones(16), "head.weight": torch.randn(5, 16)}


def optimizer(params: dict[str, torch.Tensor], step: float = STEP) -> dict[str, Any]:
    """torch.optim's form, by number."""
    state = {
        i: {"step": torch.tensor(float(step)), "exp_avg": p.float() * 0.1, "exp_avg_sq": p.float() ** 2}
        for i, p in enumerate(params.values())
    }
    return {"state": state, "param_groups": [{"lr": 0.1, "params": list(range(len(params)))}]}


def training_state(**change: Any) -> dict[str, Any]:
    """A whole state of a hand-written trainer; None removes a key."""
    params = weights()
    state = {
        "model": params,
        "optimizer": optimizer(params),
        "scheduler": {"last_epoch": STEP, "base_lrs": [0.1]},
        "sampler": {"epoch": 0, "seed": 5, "next_index": STEP * MICRO},
        "global_step": STEP,
        "world_size": 1,
        "micro_batch_size": MICRO,
        "grad_accum_steps": 1,
        "rng": {"torch": torch.zeros(16, dtype=torch.uint8)},
    }
    return {k: v for k, v in {**state, **change}.items() if v is not None}


def save(value: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)
    return path


def safetensors(tensors: dict[str, torch.Tensor], path: Path) -> Path:
    """The safetensors format, written here: float32 and int64 only."""
    names = {torch.float32: "F32", torch.int64: "I64", torch.bfloat16: "BF16"}
    table, body = {}, bytearray()  # grows in place: checkpoints of gigabytes are made here too
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        span = [len(body), len(body) + len(raw)]
        table[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": span}
        body += raw
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)  # as the library writes it: tensors begin at multiples of 8
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def item(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def dcp(
    folder: Path, tensors: dict[str, torch.Tensor], values: dict[str, Any], ranks: int = RANKS, cut: int = 0
) -> Path:
    """A DCP save: tensors are cut along dimension ``cut`` over the ranks, values are byte items of rank 0."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [bytearray() for _ in range(ranks)]
    described: dict[str, Any] = {}
    stored: dict[Any, Any] = {}

    def put(index: MetadataIndex, rank: int, value: Any) -> None:
        raw = item(value)
        stored[index] = _StorageInfo(f"__{rank}_0.distcp", len(files[rank]), len(raw))
        files[rank] += raw

    for name, value in values.items():
        described[name] = BytesStorageMetadata()
        put(MetadataIndex(name), 0, value)
    for name, tensor in tensors.items():
        chunks, at = [], 0
        parts = torch.chunk(tensor, ranks, min(cut, tensor.dim() - 1)) if tensor.dim() else (tensor,)
        for rank, part in enumerate(parts):
            offsets = [0] * tensor.dim()
            if tensor.dim():
                offsets[min(cut, tensor.dim() - 1)] = at
                at += part.shape[min(cut, tensor.dim() - 1)]
            chunks.append(ChunkStorageMetadata(torch.Size(offsets), part.shape))
            put(MetadataIndex(name, torch.Size(offsets), rank), rank, part.clone())
        described[name] = TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), tensor.size(), chunks)
    for rank, raw in enumerate(files):
        (folder / f"__{rank}_0.distcp").write_bytes(raw)
    write_metadata(folder, Metadata(described, {}, stored, StorageMeta(save_id="x"), version="1.0.0"))
    return folder


def write_metadata(folder: Path, metadata: Metadata) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def edit_metadata(folder: Path) -> Metadata:
    loaded: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    return loaded


def dcp_training(folder: Path, *, without: tuple[str, ...] = (), step: int = STEP, **options: Any) -> Path:
    """A whole training state in DCP, keyed by parameter names."""
    params = weights()
    tensors = {f"model.{n}": p for n, p in params.items()}
    for name, p in params.items():
        tensors[f"optimizer.state.{name}.exp_avg"] = p * 0.1
        tensors[f"optimizer.state.{name}.exp_avg_sq"] = p**2
        tensors[f"optimizer.state.{name}.step"] = torch.tensor(float(step))
    values = {
        "step": step,
        "scheduler.last_epoch": step,
        "sampler.next_index": step * MICRO,
        "sampler.epoch": 0,
        "sampler.seed": 5,
        "world.world_size": RANKS,
        "world.micro_batch_size": MICRO,
        "world.grad_accum_steps": 1,
        "rng_rank0": b"0" * 16,
        "rng_rank1": b"1" * 16,
    }
    kept = {n: v for n, v in values.items() if not n.startswith(without or ("\0",))}
    kept_tensors = {n: t for n, t in tensors.items() if not n.startswith(without or ("\0",))}
    return dcp(folder, kept_tensors, kept, **options)


def hf(folder: Path, step: int = STEP, ranks: int = RANKS, **state: Any) -> Path:
    """A Trainer checkpoint-N folder."""
    params = weights()
    safetensors(params, folder / "model.safetensors")
    save(optimizer(params, step), folder / "optimizer.pt")
    save({"last_epoch": step, "base_lrs": [0.1]}, folder / "scheduler.pt")
    for rank in range(ranks):
        save(
            {"cpu": torch.zeros(8, dtype=torch.uint8)},
            folder / (f"rng_state_{rank}.pth" if ranks > 1 else "rng_state.pth"),
        )
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "float32"}))
    save_foreign(
        folder / "training_args.bin",
        "transformers.training_args",
        "TrainingArguments",
        per_device_train_batch_size=MICRO,
        gradient_accumulation_steps=1,
        max_steps=100,
    )
    log = [{"step": s, "epoch": s / 10, "loss": 1.0} for s in range(1, step + 1)]
    common = {"global_step": step, "epoch": step / 10, "max_steps": 100, "train_batch_size": MICRO, "log_history": log}
    (folder / "trainer_state.json").write_text(json.dumps({**common, **state}))
    return folder


def accelerate(folder: Path, *, loader: int = 12, last_epoch: int = 12, ranks: int = RANKS) -> Path:
    params = weights()
    safetensors(params, folder / "model.safetensors")
    save(optimizer(params), folder / "optimizer.bin")
    save({"last_epoch": last_epoch, "base_lrs": [0.1]}, folder / "scheduler.bin")
    save(
        {"_num_yielded": loader, "_sampler_iter_yielded": loader, "_iterator_finished": False},
        folder / "dl_state_dict.bin",
    )
    for rank in range(ranks):
        save({"step": 12, "torch_manual_seed": torch.zeros(8, dtype=torch.uint8)}, folder / f"random_states_{rank}.pkl")
    save({"steps": STEP, "epoch": 0}, folder / "custom_checkpoint_0.pkl")
    return folder


def lightning(**change: Any) -> dict[str, Any]:
    params = weights()
    counters = {"ready": 6, "completed": 5, "started": 6, "processed": 6}
    epoch = {"total": {"ready": 1, "completed": 0}, "current": {"ready": 1, "completed": 0}}
    steps = {"step": {"total": {"ready": STEP, "completed": STEP}, "current": {"ready": STEP, "completed": STEP}}}
    loop = {
        "epoch_loop.batch_progress": {"total": dict(counters), "current": dict(counters), "is_last_batch": False},
        "epoch_loop.automatic_optimization.optim_progress": {"optimizer": steps},
        "epoch_progress": epoch,
        "state_dict": {},
        "epoch_loop.state_dict": {"_batches_that_stepped": 5},
    }
    state = {
        "epoch": 0,
        "global_step": STEP,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": params,
        "loops": {"fit_loop": loop},
        "callbacks": {},
        "optimizer_states": [optimizer(params)],
        "lr_schedulers": [{"last_epoch": STEP, "base_lrs": [0.1]}],
    }
    return {k: v for k, v in {**state, **change}.items() if v is not None}


def deepspeed(root: Path, ranks: int = RANKS, step: int = STEP, **state: Any) -> Path:
    """A ZeRO-1 tag folder: bf16 weights, fp32 partitions cut evenly from the flat run."""
    folder = root / f"global_step{step}"
    params = weights()
    shapes = {n: p.shape for n, p in params.items()}
    flat = torch.cat([p.reshape(-1) for p in params.values()])
    config = {
        "train_batch_size": MICRO * ranks,
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": 1,
        "scheduler": {"type": "WarmupLR"},
    }
    common = {
        "module": {n: p.bfloat16() for n, p in params.items()},
        "param_shapes": [shapes],
        "buffer_names": [],
        "lr_scheduler": {"last_batch_iteration": step - 1},
        "global_steps": step,
        "global_samples": step * MICRO * ranks,
        "skipped_steps": 0,
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "ds_config": config,
        "sampler": {"epoch": 0, "next_index": step * MICRO},
    }
    save({k: v for k, v in {**common, **state}.items() if v is not None}, folder / "mp_rank_00_model_states.pt")
    for rank, part in enumerate(torch.chunk(flat, ranks)):
        moments = {"step": torch.tensor(float(step)), "exp_avg": part * 0.1, "exp_avg_sq": part**2}
        inner = {
            "base_optimizer_state": {"state": {0: moments}, "param_groups": [{"lr": 0.1, "params": [0]}]},
            "single_partition_of_fp32_groups": [part.clone()],
            "zero_stage": 1,
            "partition_count": [ranks],
        }
        save({"optimizer_state_dict": inner}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (root / "latest").write_text(folder.name)
    return root


def megatron(root: Path, tp: int = 2, step: int = STEP, **change: Any) -> Path:
    """Megatron-LM's legacy form."""
    args = argparse.Namespace(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=1,
        world_size=tp,
        data_parallel_size=1,
        micro_batch_size=MICRO,
        global_batch_size=MICRO,
        consumed_train_samples=step * MICRO,
        seed=1,
    )
    for rank in range(tp):
        params = {n: p + rank if p.dim() > 1 else p for n, p in weights().items()}
        state = {
            "args": args,
            "checkpoint_version": 3.0,
            "iteration": step,
            "model": params,
            "optimizer": optimizer(params),
            "opt_param_scheduler": {"num_steps": step * MICRO},
            "rng_state": [{"torch": torch.zeros(8)}],
        }
        kept = {k: v for k, v in {**state, **change}.items() if v is not None}
        save(kept, root / f"iter_{step:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    return root


def megatron_dist(
    folder: Path, *, sharding: str = "dp_reshardable", ep: int = 1, rng: bool = True, optimizer: bool = True
) -> Path:
    params = weights()
    tensors = {f"decoder.{n}": p for n, p in params.items()}
    if optimizer:
        tensors.update(
            {f"optimizer.state.{w}.decoder.{n}": p**2 for n, p in params.items() for w in ("exp_avg", "exp_avg_sq")}
        )
    values = {"rng_state/shard_0.0_1.1": {"torch": b"0" * 8}} if rng else {}
    dcp(folder, tensors, values)
    args = argparse.Namespace(
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        data_parallel_size=1,
        micro_batch_size=MICRO,
        global_batch_size=MICRO,
        consumed_train_samples=STEP * MICRO,
        expert_model_parallel_size=ep,
        seed=1,
    )
    common = {
        "iteration": STEP,
        "args": args,
        "checkpoint_version": 3.0,
        "opt_param_scheduler": {"num_steps": STEP * MICRO},
        "content_metadata": {"distrib_optim_sharding_type": sharding},
    }
    save(common, folder / "common.pt")
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    return folder


def save_foreign(path: Path, module: str, name: str, **fields: Any) -> Path:
    """An object of a class that exists only while it is written: foreign names without the framework."""
    parts = module.split(".")
    names = [".".join(parts[: i + 1]) for i in range(len(parts))]
    before = {n: sys.modules.get(n) for n in names}
    for n in names:
        sys.modules[n] = types.ModuleType(n)
    kind = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, kind)
    made = kind()
    made.__dict__.update(fields)
    try:
        return save(made, path)
    finally:
        for n, old in before.items():
            if old is None:
                del sys.modules[n]
            else:
                sys.modules[n] = old
