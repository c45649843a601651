"""What a DataLoader hands to the script: every batch with its samples' fingerprints and indices, epoch and wait."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ddaudit.watch import fingerprint
from ddaudit.watch.patching import Guard, wrap

__all__ = ["Batch", "Loader", "Loaders"]

PENDING = 256
MAX_SAMPLES = 4096
MAX_BYTES = 32 << 20


@dataclass(eq=False)
class Batch:
    """One batch as fetched. ``state`` is "fetched", "train" or "eval", by what the script did with it."""

    loader: int
    epoch: int
    prints: list[int]
    indices: list[int]
    size: int
    wait_s: float
    spans: list[tuple[int, int, weakref.ref[Tensor]]] = field(default_factory=list)
    contents: frozenset[int] = frozenset()
    """Hashes of the batch's tensors, to recognise copies of them."""
    state: str = "fetched"

    def holds(self, tensor: Tensor) -> bool:
        """True when the tensor lies in the memory of one of this batch's tensors."""
        if tensor.layout is not torch.strided or not tensor.numel():
            return False
        at = tensor.data_ptr()
        return any(low <= at < high and alive() is not None for low, high, alive in self.spans)


@dataclass
class Loader:
    """What is known about one DataLoader; goes into the facts as it is."""

    number: int
    facts: dict[str, Any]
    subset: list[int] | None = None
    epochs: int = 0
    batches: int = 0
    finished: list[int] = field(default_factory=list)
    """Batches of each epoch that was read to its end."""
    iterators_s: float = 0.0
    """Time spent making iterators (starting workers)."""
    waits_s: float = 0.0
    used: dict[str, int] = field(default_factory=dict)
    _per_epoch: dict[int, int] = field(default_factory=dict)

    def count(self, epoch: int) -> None:
        """One more batch of an epoch."""
        self.batches += 1
        self._per_epoch[epoch] = self._per_epoch.get(epoch, 0) + 1

    def batches_of(self, epoch: int) -> int:
        """Batches read of an epoch so far."""
        return self._per_epoch.get(epoch, 0)

    def base_indices(self, indices: list[int]) -> list[int]:
        """Indices into the data set under a Subset."""
        if self.subset is None or any(not 0 <= i < len(self.subset) for i in indices):
            return indices
        return [self.subset[i] for i in indices]

    def report(self) -> dict[str, Any]:
        """JSON-ready facts."""
        return {
            "number": self.number,
            **self.facts,
            "epochs": self.epochs,
            "finished": self.finished,
            "batches_read": {str(k): v for k, v in self._per_epoch.items()},
            "iterators_s": self.iterators_s,
            "waits_s": self.waits_s,
            "used": self.used,
        }


class Loaders:
    """Follows every DataLoader of the process."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.known: dict[int, Loader] = {}
        self.pending: deque[Batch] = deque(maxlen=PENDING)
        self.wait_s = 0.0
        self.in_order = False
        """Whether batches are fetched ahead, so that the oldest unused one is the next."""
        self._kept: list[Any] = []  # ids stay unique while their objects live
        self._indices: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
        self._raw: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self._owner: weakref.WeakKeyDictionary[Any, tuple[Loader, int]] = weakref.WeakKeyDictionary()
        self.on_fetch: Callable[[str], None] = lambda when: None

    def forget(self) -> None:
        """Lets go of every loader and batch."""
        self.known.clear()
        self.pending.clear()
        self._kept.clear()
        self.in_order = False

    def install(self, module: Any) -> None:
        """Hooks a module that has PyTorch's loader classes (torchdata ships a copy of them)."""
        base, single = module._BaseDataLoaderIter, module._SingleProcessDataLoaderIter
        many = module._MultiProcessingDataLoaderIter
        wrap(base, "__next__", self._next)
        wrap(base, "_next_index", self._next_index)
        for kind in (single, many):
            wrap(kind, "__init__", self._init)
        wrap(many, "_reset", self._reset)

    def install_stateful(self, module: Any) -> None:
        """torchdata's StatefulDataLoader has iterators of its own, under other names."""
        base, single = module._StatefulBaseDataLoaderIter, module._StatefulSingleProcessDataLoaderIter
        many = module._StatefulMultiProcessingDataLoaderIter
        wrap(base, "__next__", self._next)
        wrap(base, "_next_index", self._next_index)
        for kind in (single, many):
            wrap(kind, "__init__", self._init)

    def _init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            began = time.perf_counter()
            original(iterator, loader, *args, **kwargs)
            self.guard.call("loader-init", self._began, iterator, loader, time.perf_counter() - began)

        return init

    def _reset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            original(iterator, loader, first_iter)
            if not first_iter:  # persistent workers: the iterator of the epoch before goes on
                self.guard.call("loader-reset", self._began, iterator, loader, 0.0)

        return reset

    def _began(self, iterator: Any, loader: Any, seconds: float) -> None:
        known, sampler = self.known.get(id(loader)), _sampler(loader)
        if known is None:
            self._kept.append(loader)
            known = self._made_anew(describe(loader), sampler) or Loader(
                len({x.number for x in self.known.values()}), describe(loader), subset_of(loader.dataset)
            )
            self.known[id(loader)] = known
        known.facts["sampler"] = sampler
        known.iterators_s += seconds
        self._owner[iterator] = (known, known.epochs)
        known.epochs += 1
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is not None and getattr(fetcher, "auto_collation", False):
            self._listen(iterator, fetcher)

    def _made_anew(self, facts: dict[str, Any], sampler: dict[str, Any]) -> Loader | None:
        """The loader of which this one is the next epoch, for scripts that make one each epoch: alike in everything and
        read to its end."""
        for known in reversed(list(self.known.values())):
            before = known.facts.get("sampler", {})
            alike = all(before.get(k) == sampler.get(k) for k in ("type", "shuffle", "num_replicas", "rank"))
            if alike and {k: v for k, v in known.facts.items() if k != "sampler"} == facts:
                return known if known.finished[-1:] == [known.epochs - 1] else None
        return None

    def _listen(self, iterator: Any, fetcher: Any) -> None:
        """Sees samples before they are collated (padding would make a sample's bits depend on its batch)."""
        collate = fetcher.collate_fn
        alive = weakref.ref(iterator)

        def collating(samples: Any) -> Any:
            self.guard.call("collate", self._samples, alive(), samples)
            return collate(samples)

        fetcher.collate_fn = collating

    def _samples(self, iterator: Any, samples: Any) -> None:
        if iterator is not None and isinstance(samples, Sequence) and len(samples) <= MAX_SAMPLES:
            self._raw[iterator] = fingerprint.samples(samples)

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_index(iterator: Any) -> Any:
            found = original(iterator)
            self.guard.call("next-index", lambda: self._indices.setdefault(iterator, deque()).append(found))
            return found

        return next_index

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def following(iterator: Any) -> Any:
            self.guard.call("fetch-before", self.on_fetch, "before")
            began = time.perf_counter()
            try:
                batch = original(iterator)
            except StopIteration:
                self.guard.call("loader-end", self._ended, iterator)
                raise
            seconds = time.perf_counter() - began
            self.guard.call("fetch-after", self.on_fetch, "after")
            self.guard.call("batch", self._fetched, iterator, batch, seconds)
            return batch

        return following

    def _ended(self, iterator: Any) -> None:
        known, epoch = self._owner.get(iterator, (None, 0))
        if known is not None and known.batches_of(epoch):
            known.finished.append(epoch)

    def _fetched(self, iterator: Any, batch: Any, seconds: float) -> None:
        known, epoch = self._owner.get(iterator, (None, 0))
        if known is None:
            return
        known.count(epoch)
        known.waits_s += seconds
        self.wait_s += seconds
        queue = self._indices.get(iterator)
        indices = known.base_indices(_integers(queue.popleft()) if queue else [])
        found = list(fingerprint.leaves(batch))
        prints = self._raw.pop(iterator, None) or fingerprint.rows(found)
        size = len(indices) or len(prints) or next((int(t.shape[0]) for t in found if t.dim()), 1)
        spans = [span for t in found if (span := _span(t)) is not None]
        kept = prints[:MAX_SAMPLES], indices[:MAX_SAMPLES]
        self.pending.append(Batch(known.number, epoch, *kept, size, seconds, spans, contents(found)))

    def find(self, inputs: Sequence[Tensor]) -> Batch | None:
        """The newest batch whose memory one of the tensors lies in, or of which one is a copy."""
        for batch in reversed(self.pending):
            if any(batch.holds(t) for t in inputs):
                return batch
        if not self.pending:
            return None
        copies = contents([t for t in inputs if t.device.type == "cpu"])
        waiting = [b for b in self.pending if b.state in ("fetched", "train")]
        # Masks of equal length are alike in many batches: the batch with most in common counts, the oldest of equals.
        found = max(waiting, key=lambda b: (len(b.contents & copies), b.state == "fetched"), default=None)
        found = found if found is not None and found.contents & copies else None
        self.in_order = self.in_order or (found is not None and found is not self.pending[-1])
        return found


def contents(found: Sequence[Tensor]) -> frozenset[int]:
    """Hashes of tensors that are large enough to tell batches apart, and small enough to be read."""
    return frozenset(
        fingerprint.tensors([t])
        for t in found[:8]
        if t.layout is torch.strided and t.numel() > 3 and t.numel() * t.element_size() <= MAX_BYTES
    )


def _span(tensor: Tensor) -> tuple[int, int, weakref.ref[Tensor]] | None:
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    at = tensor.data_ptr()
    return at, at + reach * tensor.element_size(), weakref.ref(tensor)


def _integers(found: Any) -> list[int]:
    """Indices of a batch; empty where the sampler gives something else (an IterableDataset gives None)."""
    items = found if isinstance(found, list | tuple) else [found]
    flat = [i for item in items for i in (item if isinstance(item, list | tuple) else [item])]
    whole = [int(i) for i in flat if hasattr(i, "__index__") and not isinstance(i, bool)]
    return whole if len(whole) == len(flat) else []


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


def _sampler(loader: Any) -> dict[str, Any]:
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
