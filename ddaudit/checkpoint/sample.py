"""A small checkpoint of two ranks, healthy or with one fault: what the checkpoint checks are proven on."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ddaudit.checkpoint.sample_writer import Named, save

__all__ = ["FAULTS", "write_sample"]

STEP, MICRO, RANKS = 6, 4, 2
State = dict[str, Any]


def _state() -> State:
    """Model, AdamW moments, schedule, sampler, scaler and counters at step 6."""
    weights = {
        "emb.weight": np.linspace(-1, 1, 2048, dtype="float32").reshape(64, 32),
        "head.weight": np.ones((3, 32), "float32"),
    }
    moments = {
        index: {"step": np.array(float(STEP), "float32"), "exp_avg": weight * 0.1, "exp_avg_sq": weight**2}
        for index, weight in enumerate(weights.values())
    }
    return {
        "model": weights,
        "optimizer": {"state": moments, "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
        "scheduler": {"last_epoch": STEP, "base_lrs": [0.1]},
        "sampler": {"epoch": 0, "seed": 5, "num_replicas": RANKS, "next_index": STEP * MICRO},
        "scaler": {"scale": 1024.0, "growth_factor": 2.0, "_growth_tracker": 3},
        "global_step": STEP,
        "world_size": RANKS,
        "micro_batch_size": MICRO,
        "grad_accum_steps": 1,
        "fp16": True,
    }


def _drop(key: str) -> Callable[[State], None]:
    def fault(state: State) -> None:
        del state[key]

    return fault


def _nan(state: State) -> None:
    state["model"]["emb.weight"][3, 4] = np.nan


def _old_optimizer(state: State) -> None:
    state["optimizer"]["state"][1]["step"] = np.array(2.0, "float32")


def _no_squares(state: State) -> None:
    for moments in state["optimizer"]["state"].values():
        del moments["exp_avg_sq"]
    state["optimizer"]["param_groups"][0].update(betas=(0.9, 0.999), eps=1e-8)


def _mixed_prefix(state: State) -> None:
    state["model"] = {f"module.{n}" if n.startswith("emb") else n: w for n, w in state["model"].items()}
    state["model"].update({f"module.layer{i}.weight": np.ones((2, 2), "float32") for i in range(4)})


def _payload(state: State) -> None:
    state["hook"] = Named("posix", "system", ("true",))


def _cut(root: Path) -> None:
    path = root / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-500])


def _flip(root: Path) -> None:
    """One bit of a weight, with the archive's CRC left as it was."""
    path = root / "checkpoint.pt"
    data = bytearray(path.read_bytes())
    at = data.find(np.linspace(-1, 1, 2048, dtype="float32").tobytes()) + 100
    data[at] ^= 1
    path.write_bytes(bytes(data))


def _zero_tail(root: Path) -> None:
    """Weights without checksums whose last pages were never written."""
    rows, data = np.linspace(-1, 1, 4096, dtype="<f4"), b""
    header = {}
    for name in ("emb.weight", "head.weight", "norm.weight"):
        header[name] = {"dtype": "F32", "shape": [64, 64], "data_offsets": [len(data), len(data) + rows.nbytes]}
        data += rows.tobytes()
    text = json.dumps(header).encode()
    whole = struct.pack("<Q", len(text)) + text + data[:5000]
    (root / "checkpoint.pt").unlink()
    (root / "model.safetensors").write_bytes(whole.ljust(8 + len(text) + len(data), b"\0"))


def _lose_rank(root: Path) -> None:
    (root / "rng_rank1.pt").unlink()


def _dangle(root: Path) -> None:
    (root.parent / "latest").write_text("step_20")


#: Fault -> change of the state before it is saved, or of the folder afterwards.
FAULTS: dict[str, tuple[Callable[[State], None] | None, Callable[[Path], None] | None]] = {
    "none": (None, None),
    "no-optimizer": (_drop("optimizer"), None),
    "no-sampler": (_drop("sampler"), None),
    "no-schedule": (_drop("scheduler"), None),
    "no-scaler": (_drop("scaler"), None),
    "nan": (_nan, None),
    "old-optimizer": (_old_optimizer, None),
    "mixed-prefix": (_mixed_prefix, None),
    "no-squares": (_no_squares, None),
    "zero-tail": (None, _zero_tail),
    "payload": (_payload, None),
    "cut": (None, _cut),
    "bit-flip": (None, _flip),
    "lost-rank": (None, _lose_rank),
    "no-rng-key": (None, None),
    "dangling": (None, _dangle),
}


def write_sample(folder: Path, fault: str = "none") -> Path:
    """Writes ``run/latest`` and ``run/step_6/`` below ``folder``; returns the root. ``fault``: a key of ``FAULTS``."""
    before, after = FAULTS[fault]
    root = folder / "run" / f"step_{STEP}"
    root.mkdir(parents=True)
    (root.parent / "latest").write_text(root.name)
    ranks = {rank: np.full(16, rank, "uint8") for rank in range(RANKS)}
    state = _state()
    if fault == "no-rng-key":  # random state in one file, and one rank's missing
        state.update({"rng_rank0": ranks[0]})
    else:
        for rank, random in ranks.items():
            save({"rng": {"torch": random}}, root / f"rng_rank{rank}.pt")
    if before is not None:
        before(state)
    save(state, root / "checkpoint.pt")
    if after is not None:
        after(root)
    return root.parent
