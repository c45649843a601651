"""Every truncation and one flip of every byte, then random mutations: readers raise Malformed or answer, nothing else.

``DDAUDIT_FUZZ`` sets the number of random mutations (default 4,000; the published run used 200,000).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import struct
import sys
import time
from collections.abc import Callable

import pytest
import torch

from ddaudit.inert import BytesSource, Malformed, PickleLimits, read_json, read_pickle, read_safetensors, read_torch

MUTATIONS = int(os.environ.get("DDAUDIT_FUZZ", "4000"))


def saved(legacy: bool) -> bytes:
    buffer = io.BytesIO()
    value = {"w": torch.arange(4.0), "n": [1, "two", 3.0, None], "view": torch.zeros(2, 3).t()}
    torch.save(value, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def safetensors() -> bytes:
    text = json.dumps(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"k": "v"}}
    ).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * 8


def as_pickle(data: bytes) -> None:
    read_pickle(data, limits=PickleLimits(max_seconds=5))


SEEDS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "torch zip": (saved(False), lambda d: read_torch(BytesSource(d))),
    "torch legacy": (saved(True), lambda d: read_torch(BytesSource(d))),
    "safetensors": (safetensors(), lambda d: read_safetensors(BytesSource(d))),
    "pickle 2": (pickle.dumps({"a": [1, (2.5, "x")], "b": {1, 2}, "c": b"y"}, 2), as_pickle),
    "pickle 4": (pickle.dumps({"a": [1, (2.5, "x")], "b": {1, 2}, "c": b"y"}, 4), as_pickle),
    "json": (json.dumps({"step": 6, "log": [{"loss": 1.5}], "x": None}).encode(), read_json),
}


def survives(data: bytes, read: Callable[[bytes], object]) -> float:
    begin = time.perf_counter()
    with contextlib.suppress(Malformed):
        read(data)
    return time.perf_counter() - begin


@pytest.mark.parametrize("name", SEEDS)
def test_every_truncation_and_every_flipped_byte(name: str):
    seed, read = SEEDS[name]
    modules = set(sys.modules)
    dice = random.Random(name)
    slowest = 0.0
    for at in range(len(seed)):
        slowest = max(slowest, survives(seed[:at], read))
        flipped = bytearray(seed)
        flipped[at] ^= 1 << dice.randrange(8)
        slowest = max(slowest, survives(bytes(flipped), read))
    assert slowest < 5
    assert set(sys.modules) == modules


def mutate(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data) or 1)
    kind = dice.randrange(4)
    if kind == 0 and data:
        data[at % len(data)] = dice.randrange(256)
    elif kind == 1:
        del data[at : at + dice.randrange(1, 9)]
    elif kind == 2:
        data[at:at] = dice.randbytes(dice.randrange(1, 9))
    else:
        data[at : at + 8] = dice.choice([b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7])


@pytest.mark.parametrize("name", SEEDS)
def test_random_mutations(name: str):
    seed, read = SEEDS[name]
    dice = random.Random(name + "mutations")
    for _ in range(MUTATIONS // len(SEEDS)):
        data = bytearray(seed)
        for _ in range(dice.randrange(1, 6)):
            mutate(data, dice)
        assert survives(bytes(data), read) < 5
