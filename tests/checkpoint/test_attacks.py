"""Hostile checkpoints: nothing runs, no path leaves the folder, everything ends soon, and each case has a finding."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checkpoint import generate as g
from tests.checkpoint.audit import BAD, audit, ids

Build = Callable[[Path], Path]
CASES: dict[str, tuple[str, Build]] = {}
CANARY = Path("/tmp/ddaudit-canary-never")


class Evil:
    def __init__(self, function: object = os.mkdir, *args: object) -> None:
        self.call = (function, args or (str(CANARY),))

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


def case(kind: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        CASES[build.__name__.replace("_", " ")] = (kind, build)
        return build

    return register


@case("security.code")
def a_payload_in_a_dcp_byte_item_hidden_by_later_items(root: Path) -> Path:
    return g.dcp(root / "step_6", {"model.w": torch.ones(4, 4)}, {"extra": Evil()})


@case("security.code")
def a_payload_three_layers_deep(root: Path) -> Path:
    inner = pickle.dumps({"state": Evil()})
    return g.dcp(root / "step_6", {"model.w": torch.ones(4, 4)}, {"dataloader.dp_rank_0": {"state": inner}})


@case("security.code")
def a_payload_under_a_harmless_suffix(root: Path) -> Path:
    path = root / "notes.pt"
    path.write_bytes(pickle.dumps({"model": Evil()}))
    return path


@case("security.code")
def a_payload_in_the_fourth_pickle_of_a_legacy_file(root: Path) -> Path:
    path = root / "checkpoint.pt"
    torch.save({"model": g.weights(), "x": Evil()}, path, _use_new_zipfile_serialization=False)
    return path


@case("container.pickle-trailing")
def bytes_behind_the_pickle(root: Path) -> Path:
    folder = g.dcp_training(root / "step_6")
    path = folder / ".metadata"
    path.write_bytes(path.read_bytes() + pickle.dumps(Evil()))
    return folder


@case("container.prefix")
def an_archive_behind_other_data(root: Path) -> Path:
    path = g.save(g.training_state(), root / "checkpoint.pt")
    path.write_bytes(b"PK\x03\x04" + b"\0" * 60 + path.read_bytes())
    return path


@case("container.duplicate-member")
def two_pickles_of_one_name(root: Path) -> Path:
    path = g.save(g.training_state(), root / "checkpoint.pt")
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("checkpoint/data.pkl", pickle.dumps(Evil()))
    return path


@case("container.compressed")
def a_zip_bomb(root: Path) -> Path:
    path = root / "checkpoint.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("checkpoint/data.pkl", b"N.")
        archive.writestr("checkpoint/data/0", b"\0" * (64 << 20))
    return path


@case("path.escape")
def metadata_names_a_file_outside(root: Path) -> Path:
    folder = g.dcp_training(root / "step_6")
    metadata = g.edit_metadata(folder)
    for info in metadata.storage_data.values():
        info.relative_path = "../../../etc/hostname"
    g.write_metadata(folder, metadata)
    return folder


@case("path.escape")
def an_index_names_a_file_outside(root: Path) -> Path:
    g.safetensors(g.weights(), root / "model-00001-of-00001.safetensors")
    table = {"weight_map": {"emb.weight": "/etc/passwd", "norm.weight": "../../x"}}
    (root / "model.safetensors.index.json").write_text(json.dumps(table))
    return root


@case("path.link-outside")
def a_link_leads_out(root: Path) -> Path:
    folder = g.dcp_training(root / "step_6")
    (folder / "__0_0.distcp").unlink()
    (folder / "__0_0.distcp").symlink_to("/etc/hostname")
    return folder


@case("path.special-file")
def a_fifo_waits_for_a_reader(root: Path) -> Path:
    g.hf(root / "checkpoint-6")
    (root / "checkpoint-6" / "optimizer.pt").unlink()
    os.mkfifo(root / "checkpoint-6" / "optimizer.pt")
    return root / "checkpoint-6"


@case("pointer.dangling")
def a_pointer_with_a_path_in_it(root: Path) -> Path:
    g.deepspeed(root)
    (root / "latest").write_text("../../../etc")
    return root


@case("container.too-large")
def a_doubling_object(root: Path) -> Path:
    value: list[object] = []
    for _ in range(60):
        value = [value, value]
    return g.save({"model": g.weights(), "x": value}, root / "checkpoint.pt")


@case("tensor.storage-size")
def an_object_claims_a_larger_storage(root: Path) -> Path:
    path = g.save({"model": {"w": torch.ones(8)}}, root / "checkpoint.pt")
    data = path.read_bytes()
    at = data.find(b"K\x08tq")  # the storage's item count, in front of its tuple's end
    assert at > 0
    path.write_bytes(data[:at] + b"K\xff" + data[at + 2 :])
    return path


@case("hdf5.external")
def hdf5_that_reads_other_files(root: Path) -> Path:
    import h5py

    with h5py.File(root / "m.h5", "w") as file:
        file["model_weights/a"] = [1.0]
        file.create_dataset("model_weights/b", (5,), "u1", external=[("/etc/hostname", 0, 5)])
        file["model_weights/c"] = h5py.ExternalLink("/etc/hostname", "/x")
    return root / "m.h5"


@pytest.mark.parametrize("name", CASES)
def test_an_attack_has_a_finding_and_no_effect(name: str, tmp_path: Path):
    kind, build = CASES[name]
    path = build(tmp_path)
    begin = time.process_time()
    result = audit(path)
    assert time.process_time() - begin < 5
    assert kind in ids(result)
    assert result.word in BAD
    assert not CANARY.exists()


def test_control_characters_in_names_do_not_reach_the_terminal(tmp_path: Path):
    state = g.training_state()
    state["model"]["evil\x1b[2J\u202egnp.\nw"] = torch.full((4, 4), float("nan"))
    path = g.save(state, tmp_path / "checkpoint.pt")
    done = subprocess.run(
        [sys.executable, "-m", "ddaudit.cli.checkpoint", "audit", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout
    assert "\\x1b[2J" in done.stdout


def test_a_million_tiny_containers_do_not_fill_memory(tmp_path: Path):
    path = tmp_path / "checkpoint.pkl"
    path.write_bytes(b"\x80\x02" + b"}" * 20_000_000 + b".")
    code = (
        "import sys, resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
        "from ddaudit.cli.checkpoint_audit import audit_path; print(audit_path(sys.argv[1]).word)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() in BAD


def test_every_flip_of_a_whole_folder_gives_an_answer(tmp_path: Path):
    """Random damage anywhere in a DCP folder: a verdict each time, never an exception."""
    folder = g.dcp_training(tmp_path / "step_6")
    original = {p.name: p.read_bytes() for p in folder.iterdir()}
    dice = random.Random(3)
    for _ in range(25):
        name = dice.choice(sorted(original))
        data = bytearray(original[name])
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        (folder / name).write_bytes(bytes(data[: dice.randrange(len(data))] if dice.random() < 0.3 else data))
        assert audit(folder).word
        (folder / name).write_bytes(original[name])


def test_a_header_of_impossible_length_is_no_reason_to_allocate(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{" + b" " * 100)
    assert audit(path).word == "BROKEN"


def test_the_canary_would_fire_if_the_payload_ran(tmp_path: Path):
    target = tmp_path / "fired"
    pickle.load(io.BytesIO(pickle.dumps(Evil(os.mkdir, str(target)))))
    assert target.exists()
