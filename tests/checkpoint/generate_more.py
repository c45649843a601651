"""Small checkpoints of the frameworks that few people use: torchsnapshot, Composer, NeMo 2, verl, zarr; and ZeRO 3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.checkpoint import generate as g


def torchsnapshot(folder: Path) -> Path:
    """One rank's snapshot: raw blobs, named by a manifest with their byte ranges."""
    params = g.weights()
    named = {f"model/{n}": p for n, p in params.items()}
    for i, p in enumerate(params.values()):
        named |= {f"optim/state/{i}/exp_avg": p * 0.1, f"optim/state/{i}/exp_avg_sq": p**2}
        named[f"optim/state/{i}/step"] = torch.tensor(float(g.STEP))
    manifest: dict[str, Any] = {}
    for name, tensor in named.items():
        blob = folder / "0" / name
        blob.parent.mkdir(parents=True, exist_ok=True)
        raw = tensor.contiguous().numpy().tobytes()
        blob.write_bytes(raw)
        manifest[f"0/{name}"] = {
            "type": "Tensor",
            "location": f"0/{name}",
            "serializer": "buffer_protocol",
            "dtype": "torch.float32",
            "shape": list(tensor.shape),
            "byte_range": [0, len(raw)],
            "replicated": False,
        }
    numbers = {
        "progress/global_step": g.STEP,
        "progress/micro_batch_size": g.MICRO,
        "progress/grad_accum_steps": 1,
        "sampler/epoch": 0,
        "sampler/seed": 5,
        "sampler/next_index": g.STEP * g.MICRO,
        "scheduler/last_epoch": g.STEP,
    }
    for name, number in numbers.items():
        manifest[f"0/{name}"] = {"type": "int", "serialized_value": str(number), "readable": None}
    document = {"version": "0.1.0", "world_size": 1, "manifest": manifest}
    (folder / ".snapshot_metadata").write_text(json.dumps(document))
    return folder


def composer(folder: Path) -> Path:
    """Rank 0's whole state, and its rng for both ranks."""
    params = g.weights()
    time = {"epoch": 0, "batch": g.STEP, "sample": g.STEP * g.MICRO * 2, "sample_in_epoch": g.STEP * g.MICRO * 2}
    state = {
        "model": params,
        "optimizers": {"DecoupledAdamW": g.optimizer(params)},
        "schedulers": {"LambdaLR": {"last_epoch": g.STEP, "base_lrs": [0.1]}},
        "timestamp": {"Timestamp": time},
        "dataset_state": {"train": {"epoch": 0, "sample_in_epoch": time["sample"], "shuffle_seed": 17}},
        "metadata": {"world_size": 2, "train_dataloader_batch_size": g.MICRO},
    }
    rng = [{"torch": torch.full((8,), r, dtype=torch.uint8)} for r in range(2)]
    g.save({"state": state, "rng": rng}, folder / f"ep0-ba{g.STEP}-rank0.pt")
    return folder


def nemo(root: Path) -> Path:
    """NeMo 2: a Megatron-core checkpoint under weights/, configuration under context/."""
    folder = root / f"gpt--loss=2.10-step={g.STEP - 1}-consumed_samples={g.STEP * g.MICRO}.0"
    g.megatron_dist(folder / "weights")
    (folder / "context").mkdir()
    (folder / "context" / "model.yaml").write_text("hidden_size: 16\n")
    return folder


def verl(folder: Path, ranks: int = 2) -> Path:
    """An actor's files for each rank, and the loader's state beside them."""
    params = g.weights()
    for rank in range(ranks):
        tail = f"world_size_{ranks}_rank_{rank}.pt"
        g.save({n: torch.chunk(p, ranks)[rank].clone() for n, p in params.items()}, folder / "actor" / f"model_{tail}")
        parts = {n: torch.chunk(p, ranks)[rank] for n, p in params.items()}
        g.save(g.optimizer(parts), folder / "actor" / f"optim_{tail}")
        extra = {"lr_scheduler": {"last_epoch": g.STEP}, "rng": {"cpu": torch.full((8,), rank, dtype=torch.uint8)}}
        g.save(extra, folder / "actor" / f"extra_state_{tail}")
    g.save({"_num_yielded": g.STEP, "_sampler_iter_yielded": g.STEP}, folder / "data.pt")
    return folder


def zarr(folder: Path) -> Path:
    """Arrays of two chunks each, cut along the rows."""
    for name, tensor in g.weights().items():
        rows = -(-tensor.shape[0] // 2) if tensor.shape[0] % 2 == 0 else tensor.shape[0]
        shape = list(tensor.shape)
        path = folder / f"model.{name}"
        path.mkdir(parents=True)
        info = {"zarr_format": 2, "shape": shape, "chunks": [rows, *shape[1:]], "dtype": "<f4", "order": "C"}
        (path / ".zarray").write_text(json.dumps({**info, "compressor": None, "filters": None, "fill_value": 0}))
        for number, part in enumerate(tensor.split(rows)):
            key = ".".join([str(number), *("0" for _ in shape[1:])])
            (path / key).write_bytes(part.contiguous().numpy().tobytes())
    return folder


def deepspeed3(root: Path, ranks: int = 3) -> Path:
    """ZeRO 3: each parameter cut over the ranks, the last pieces padded."""
    folder, params = root / f"global_step{g.STEP}", g.weights()
    shapes = {n: p.shape for n, p in params.items()}
    config = {"train_batch_size": g.MICRO * ranks, "train_micro_batch_size_per_gpu": g.MICRO}
    for rank in range(ranks):
        pieces = []
        for p in params.values():
            each = -(-p.numel() // ranks)
            padded = torch.cat([p.reshape(-1), torch.zeros(each * ranks - p.numel())])
            pieces.append(padded[rank * each : (rank + 1) * each])
        flat = torch.cat(pieces)
        common = {
            "module": {n: torch.empty(0) for n in params},
            "param_shapes": [shapes],
            "lr_scheduler": {"last_batch_iteration": g.STEP - 1},
            "global_steps": g.STEP,
            "global_samples": g.STEP * g.MICRO * ranks,
            "skipped_steps": 0,
            "dp_world_size": ranks,
            "mp_world_size": 1,
            "ds_config": {**config, "gradient_accumulation_steps": 1, "scheduler": {"type": "WarmupLR"}},
            "sampler": {"epoch": 0, "next_index": g.STEP * g.MICRO},
        }
        moments = {"step": torch.tensor(float(g.STEP)), "exp_avg": flat * 0.1, "exp_avg_sq": flat**2}
        inner = {
            "optimizer_state_dict": {"state": {0: moments}, "param_groups": [{"lr": 0.1, "params": [0]}]},
            "fp32_flat_groups": [flat.clone()],
            "zero_stage": 3,
            "partition_count": ranks,
        }
        head = f"zero_pp_rank_{rank}_mp_rank_00"
        g.save(common, folder / f"{head}_model_states.pt")
        g.save({"optimizer_state_dict": inner}, folder / f"{head}_optim_states.pt")
    (root / "latest").write_text(folder.name)
    return root
