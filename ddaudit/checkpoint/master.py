"""16-bit weights against their float32 master copies, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.model import Checkpoint, Tensor
from ddaudit.checkpoint.roles import area_of, canonical_weight
from ddaudit.checkpoint.stream import Unreadable, blocks
from ddaudit.inert import Malformed

_MASTER_MAX_BYTES = 2 << 30  # of master weights that are read a second time
_ITEMS = 128 << 10  # compared at once


def check_master(made: Checkpoint, folder: Folder) -> None:
    """16-bit weights must be the rounded master weights (up to ``_MASTER_MAX_BYTES`` of them)."""
    budget = _MASTER_MAX_BYTES
    masters = {t.name.removesuffix(".fp32"): t for t in made.tensors.values() if t.name.endswith(".fp32")}
    low = {
        canonical_weight(t.name): t
        for t in made.tensors.values()
        if t.dtype == "bfloat16" and area_of(t.name, True) == "model"
    }
    for name, master in masters.items():
        parameter = name.split("optimizer.state.", 1)[-1]
        weight = low.get(canonical_weight(parameter))
        if weight is None or weight.numel != master.numel or master.dtype != "float32":
            continue
        if budget < master.nbytes:
            made.facts["master_unread"] = made.facts.get("master_unread", 0) + 1
            continue
        budget -= master.nbytes
        try:
            differ = _rounded_differ(weight, master, folder)
        except (Unreadable, Malformed, OSError):
            continue
        if differ:
            text = f"{weight.name}: {differ:,} of {weight.numel:,} elements are not the rounded master weights"
            made.fault(
                "optimizer.master-mismatch",
                text,
                file=master.file,
                tensor=weight.name,
                measured=differ,
                limit=0,
                unit="element",
            )


def _rounded_differ(weight: Tensor, master: Tensor, folder: Folder) -> int:
    """Elements that are not within one bf16 step of the master weight (round to nearest or stochastic)."""
    differ = 0
    low_tiles = _tiles(blocks(weight, folder.opened_anew), _ITEMS * 2)
    high_tiles = _tiles(blocks(master, folder.opened_anew), _ITEMS * 4)
    for low_bytes, high_bytes in zip(low_tiles, high_tiles, strict=True):
        low = np.frombuffer(low_bytes, dtype="<u2").astype(np.int64)
        high = np.frombuffer(high_bytes, dtype="<u4").astype(np.int64)
        finite = (high & 0x7F800000) != 0x7F800000
        differ += int(np.count_nonzero((np.abs((low << 16) - high) > 0x10000) & finite))
    return differ


def _tiles(stream: Iterator[memoryview], size: int) -> Iterator[bytes]:
    """The stream cut anew into tiles of ``size`` bytes; the last may be shorter."""
    held = bytearray()
    for block in stream:
        held += block
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)
