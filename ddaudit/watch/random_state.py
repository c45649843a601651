"""Digests of the random generators of this process. Reading a state draws nothing from it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ddaudit.watch.fingerprint import MASK, hash_bytes
from ddaudit.watch.patching import wrap

if TYPE_CHECKING:
    from ddaudit.watch.recorder import Recorder

__all__ = ["streams", "torch_stream", "watch_restored", "worker_streams"]

MAX_RESTORED = 16


def torch_stream() -> int:
    """Digest of torch's CPU generator."""
    return hash_bytes(torch.default_generator.get_state().numpy())


def streams() -> dict[str, int]:
    """Digest of each generator that code draws from by default."""
    found = {"torch": torch_stream(), "python": hash(random.getstate()[1]) & MASK}  # numbers hash alike everywhere
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


def watch_restored(recorder: Recorder) -> None:
    """Notes the states that the script puts into torch's generator before its first update, as a resumed run does."""

    def restoring(original: Callable[..., Any]) -> Callable[..., Any]:
        def restore(state: Any) -> None:
            original(state)
            recorder.guard.call("rng-restored", note)

        return restore

    def note() -> None:
        kept = recorder.reporter.notes.setdefault("rng_restored", [])
        if recorder.primary is None and len(kept) < MAX_RESTORED:
            kept.append(torch_stream())

    wrap(torch.random, "set_rng_state", restoring)
    torch.set_rng_state = torch.random.set_rng_state
