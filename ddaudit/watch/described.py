"""What is known of a DataLoader, its data set and its sampler, without reading from them."""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["describe", "sampler_of", "subset_of"]


def describe(loader: Any) -> dict[str, Any]:
    """Facts about a loader and its data set, without reading from it."""
    dataset = loader.dataset
    subset = subset_of(dataset)
    base = dataset if subset is None else dataset.dataset
    return {
        "dataset": type(dataset).__name__,
        "dataset_id": id(base),
        "own_dataset_id": id(dataset),
        "samples": _length(dataset),
        "batches": _length(loader),
        "batch_size": getattr(loader, "batch_size", None),
        "drop_last": bool(getattr(loader, "drop_last", False)),
        "workers": int(getattr(loader, "num_workers", 0)),
        "persistent": bool(getattr(loader, "persistent_workers", False)),
        "iterable": not hasattr(dataset, "__getitem__"),
        "subset": None if subset is None else hashlib.sha256(repr(subset).encode()).hexdigest()[:16],
        "subset_sorted": None if subset is None else hashlib.sha256(repr(sorted(subset)).encode()).hexdigest()[:16],
    }


def subset_of(dataset: Any) -> list[int] | None:
    """Indices of a Subset, None for any other data set."""
    if not (hasattr(dataset, "indices") and hasattr(dataset, "dataset")):
        return None
    found = [int(i) for i in dataset.indices]
    return found if len(found) <= 1 << 22 else None


def sampler_of(loader: Any) -> dict[str, Any]:
    """The innermost sampler that shuffles or shards."""
    sampler = _first(loader, "batch_sampler", "sampler")  # no `or`: a sampler without length has no truth value
    for _ in range(4):
        inner = _first(sampler, "sampler", "batch_sampler")
        if inner is None:
            break
        sampler = inner
    wanted = ("num_replicas", "rank", "seed", "shuffle", "epoch", "drop_last", "replacement", "total_size")
    facts = {k: v for k in wanted if isinstance(v := getattr(sampler, k, None), int | bool)}
    names = [kind.__name__ for kind in type(sampler).__mro__]
    return {"type": names[0], "distributed": "DistributedSampler" in names, **facts}


def _first(owner: Any, *names: str) -> Any:
    """The first attribute of these names that is there and not None."""
    return next((v for n in names if (v := getattr(owner, n, None)) is not None), None)


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except TypeError:
        return None
