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
#: Attributes of a data set under which it keeps others, or what changes its samples.
OWNERS = ("dataset", "datapipe", "transform", "augment", "augmentation")
MAX_OWNERS = 32


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
    """The default generators, and those that a data set keeps: in its own attributes, in the data sets that it wraps
    and in its transforms."""
    found = streams()
    seen: set[int] = set()
    waiting = [("dataset", dataset)]
    while waiting and len(seen) < MAX_OWNERS:
        path, owner = waiting.pop(0)
        if id(owner) in seen or not hasattr(owner, "__dict__"):
            continue
        seen.add(id(owner))
        for name, value in list(vars(owner).items()):
            digest = _generator(value)
            if digest is not None:
                found[f"{path}.{name}"] = digest
            elif name.rstrip("s") in OWNERS:
                several = value[:MAX_OWNERS] if isinstance(value, list | tuple) else [value]
                waiting += [(f"{path}.{name}", part) for part in several]
    return found


def _generator(value: Any) -> int | None:
    """Digest of a generator of torch, Python or NumPy; None for anything else."""
    kind = type(value)
    if isinstance(value, torch.Generator):
        return hash_bytes(value.get_state().numpy().data)
    if isinstance(value, random.Random):
        return hash_bytes(repr(value.getstate()[1]).encode())
    if not kind.__module__.startswith("numpy.random"):
        return None
    if hasattr(value, "bit_generator"):
        return hash_bytes(repr(value.bit_generator.state).encode())
    return hash_bytes(value.get_state()[1].tobytes()) if hasattr(value, "get_state") else None


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
