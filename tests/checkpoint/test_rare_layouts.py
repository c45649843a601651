"""Frameworks that few people use: a good checkpoint of each is no alarm, a damaged one is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint import generate_more as more
from tests.checkpoint.audit import BAD, audit, ids

MAKERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "torchsnapshot": ("torchsnapshot", more.torchsnapshot),
    "composer": ("composer", more.composer),
    "nemo": ("nemo", more.nemo),
    "verl": ("verl", lambda root: more.verl(root / "global_step_6", ranks=1)),
    "zarr": ("zarr", more.zarr),
    "ZeRO 3": ("deepspeed", more.deepspeed3),
}

PAIR = {"verl of 2 ranks": ("verl", more.verl)}


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: next(iter(folder.rglob(name))).unlink()


def cut(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = next(iter(folder.rglob(name)))
        path.write_bytes(path.read_bytes()[:-100])

    return edit


def exchange(one: str, two: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        a, b = next(iter(folder.rglob(one))), next(iter(folder.rglob(two)))
        first = a.read_bytes()
        a.write_bytes(b.read_bytes())
        b.write_bytes(first)

    return edit


DAMAGE = [
    ("torchsnapshot", "BROKEN", "complete.file-missing", without("emb.weight")),
    ("torchsnapshot", "BROKEN", "file.truncated", cut("emb.weight")),
    ("composer", "BROKEN", "file.truncated", cut("ep0-ba6-rank0.pt")),
    ("nemo", "BROKEN", "complete.file-missing", without("__1_0.distcp")),
    ("verl of 2 ranks", "BROKEN", "complete.shard-missing", without("optim_world_size_2_rank_1.pt")),
    ("zarr", "WRONG", "shard.hole", without("1.0")),
    ("zarr", "BROKEN", "file.truncated", cut("0.0")),
    ("ZeRO 3", "WRONG", "shard.exchanged", exchange("*_rank_0_mp*optim*", "*_rank_2_mp*optim*")),
]


@pytest.mark.parametrize("name", MAKERS)
def test_a_good_checkpoint_is_recognised_and_no_alarm(name: str, tmp_path: Path):
    layout, make = MAKERS[name]
    result = audit(make(tmp_path))
    assert result.facts.layout == layout and result.facts.tensors > 2
    assert result.word not in BAD, ids(result)


@pytest.mark.parametrize(("name", "word", "kind", "edit"), DAMAGE)
def test_a_damaged_one_is_named(name: str, word: str, kind: str, edit: Callable[[Path], None], tmp_path: Path):
    folder = (MAKERS | PAIR)[name][1](tmp_path)
    edit(folder)
    result = audit(folder)
    assert kind in ids(result) and result.word == word, (result.word, ids(result))
