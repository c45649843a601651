"""Optimizer variables of Keras files, in the order of either Keras: what is lost or misshapen is named, what is frozen
is not."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.checkpoint.audit import audit

SHAPES = {"emb/kernel": (16, 4), "dense/kernel": (4, 4), "dense/bias": (4,)}


def path_of(slot: str, weight: str, *, new: bool) -> str:
    return f"optimizer_weights/Adam/{slot}/{weight}:0" if new else f"optimizer_weights/Adam/{weight}/{slot}:0"


def write(path: Path, *, new: bool = True, frozen: str = "", slots: str = "mv") -> h5py.File:
    file = h5py.File(path, "w")
    file.attrs["keras_version"] = "2.15.0"
    file["optimizer_weights/Adam/iter:0"] = np.int64(6)
    file.create_group("trainer_state").attrs["global_step"] = 6
    for weight, shape in SHAPES.items():
        file[f"model_weights/{weight}:0"] = np.linspace(-1, 1, np.prod(shape), dtype="f4").reshape(shape)
        for slot in slots if weight != frozen else "":
            file[path_of(slot, weight, new=new)] = np.full(shape, 0.5, "f4")
    return file


def ids(path: Path) -> set[str]:
    return {f.id.removeprefix("checkpoint.") for f in audit(path).findings if f.bad}


@pytest.mark.parametrize("new", [True, False])
def test_whole_state_is_quiet_also_with_a_frozen_layer(tmp_path: Path, new: bool):
    write(tmp_path / "all.h5", new=new).close()
    write(tmp_path / "frozen.h5", new=new, frozen="emb/kernel").close()
    for name in ("all.h5", "frozen.h5"):
        assert not {i for i in ids(tmp_path / name) if i.startswith(("optimizer.", "values."))}


@pytest.mark.parametrize("new", [True, False])
def test_a_lost_moment_is_named(tmp_path: Path, new: bool):
    with write(tmp_path / "m.h5", new=new) as file:
        del file[path_of("v", "dense/kernel", new=new)]
    found = audit(tmp_path / "m.h5")
    assert found.word == "WRONG"
    assert any(
        f.id.endswith("state-missing") and "dense.kernel" in f.text and f.where.key == "v" for f in found.findings
    )


def test_adam_without_any_squares_cannot_continue(tmp_path: Path):
    write(tmp_path / "m.h5", slots="m").close()
    assert "optimizer.state-missing" in ids(tmp_path / "m.h5")


def test_a_moment_shaped_like_no_weight_is_named(tmp_path: Path):
    with write(tmp_path / "m.h5") as file:
        for slot in "mv":
            del file[path_of(slot, "emb/kernel", new=True)]
            file[path_of(slot, "emb/kernel", new=True)] = np.ones((16, 2), "f4")
    assert "optimizer.shape" in ids(tmp_path / "m.h5")


def test_negative_squares_are_found_and_a_layer_called_v_is_not_taken_for_them(tmp_path: Path):
    with write(tmp_path / "m.h5") as file:
        file["model_weights/attn/v/kernel:0"] = np.ones((2, 2), "f4")
        file[path_of("m", "attn/v/kernel", new=True)] = -np.ones((2, 2), "f4")
        file[path_of("v", "attn/v/kernel", new=True)] = np.ones((2, 2), "f4")
    assert "values.negative-square" not in ids(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5", "a") as file:
        file[path_of("v", "dense/bias", new=True)][1] = -1
    assert "values.negative-square" in ids(tmp_path / "m.h5")
