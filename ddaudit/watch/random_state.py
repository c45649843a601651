"""Digests of the random generators of this process. Reading a state draws nothing from it."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from ddaudit.watch.fingerprint import hash_bytes

__all__ = ["streams", "torch_stream", "worker_streams"]


def torch_stream() -> int:
    """Digest of torch's CPU generator."""
    return hash_bytes(torch.get_rng_state().numpy().data)


def streams() -> dict[str, int]:
    """Digest of each generator that code draws from by default."""
    found = {"torch": torch_stream(), "python": hash_bytes(repr(random.getstate()[1]).encode())}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        state = numpy.random.get_state()
        found["numpy"] = hash_bytes(state[1].tobytes(), repr(state[2:]).encode())
    return found


def worker_streams(dataset: Any) -> dict[str, int]:
    """The default generators, and those that a data set keeps in its own attributes."""
    found = streams()
    for name, value in vars(dataset).items() if hasattr(dataset, "__dict__") else ():
        kind = type(value)
        if isinstance(value, torch.Generator):
            found[f"dataset.{name}"] = hash_bytes(value.get_state().numpy().data)
        elif isinstance(value, random.Random):
            found[f"dataset.{name}"] = hash_bytes(repr(value.getstate()[1]).encode())
        elif kind.__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
            found[f"dataset.{name}"] = hash_bytes(repr(value.bit_generator.state).encode())
        elif kind.__module__.startswith("numpy.random") and hasattr(value, "get_state"):
            found[f"dataset.{name}"] = hash_bytes(value.get_state()[1].tobytes())
    return found
