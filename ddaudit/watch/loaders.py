"""What a DataLoader hands to the script: every batch with its samples' fingerprints and indices, epoch and wait."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate

from ddaudit.watch import fingerprint
from ddaudit.watch.described import describe, sampler_of, subset_of
from ddaudit.watch.models import Call
from ddaudit.watch.patching import Guard, wrap

__all__ = ["Batch", "Loader", "Loaders"]

PENDING = 256
MAX_SAMPLES = 4096
MAX_BYTES = 32 << 20
#: Batches in a row recognised by their memory after which copies of them are not looked for.
DIRECT = 64
#: Attributes by which iterators carry what is known of them.
READING, AHEAD = "_ddaudit_reading", "_ddaudit_ahead"


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
    assumed: bool = False
    """Whether it was not looked at, because every batch before it went into the next call of a model."""
    state: str = "fetched"

    def holds(self, tensor: Tensor) -> bool:
        """True when the tensor lies in the memory of one of this batch's tensors."""
        if tensor.layout is not torch.strided or not tensor.numel():
            return False
        at = tensor.data_ptr()
        return any(low <= at < high and alive() is not None for low, high, alive in self.spans)


@dataclass(eq=False)
class Reading:
    """One iterator of a loader; hung on the iterator, so that it dies with it."""

    known: Loader
    epoch: int
    ahead: deque[Any]
    """Indices of batches that were asked for and are not given out yet."""
    prints: list[int] | None = None
    """Fingerprints of the samples that are being collated."""
    stacks: bool = False
    """Whether batches are made by stacking, so that their rows hold the samples' bits."""


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
        self._direct = self._newest = 0
        """Batches in a row that were recognised by their memory, so that no copies need to be looked for; and those of
        them that went into a model before the next one was fetched."""
        self.on_fetch: Callable[[str], None] | None = None
        """Called before and after a batch is fetched, as long as anyone wants to know."""
        self.reads: Callable[[Loader], bool] = lambda loader: True
        """Whether contents of a loader's samples are read where their indices are known."""

    def forget(self) -> None:
        """Lets go of every loader and batch."""
        self.known.clear()
        self.pending.clear()
        self._kept.clear()
        self.in_order = False
        self._direct = self._newest = 0

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
        known, sampler = self.known.get(id(loader)), sampler_of(loader)
        if known is None:
            self._kept.append(loader)
            known = self._made_anew(describe(loader), sampler) or Loader(
                len({x.number for x in self.known.values()}), describe(loader), subset_of(loader.dataset)
            )
            self.known[id(loader)] = known
        known.facts["sampler"] = sampler
        known.iterators_s += seconds
        reading = Reading(known, known.epochs, _ahead(iterator))
        setattr(iterator, READING, reading)
        known.epochs += 1
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is not None and getattr(fetcher, "auto_collation", False):
            self._listen(reading, fetcher)

    def _made_anew(self, facts: dict[str, Any], sampler: dict[str, Any]) -> Loader | None:
        """The loader of which this one is the next epoch, for scripts that make one each epoch: alike in everything and
        read to its end."""
        for known in reversed(list(self.known.values())):
            before = known.facts.get("sampler", {})
            alike = all(before.get(k) == sampler.get(k) for k in ("type", "shuffle", "num_replicas", "rank"))
            if alike and {k: v for k, v in known.facts.items() if k != "sampler"} == facts:
                return known if known.finished[-1:] == [known.epochs - 1] else None
        return None

    def _listen(self, reading: Reading, fetcher: Any) -> None:
        """Sees samples before they are collated (padding would make a sample's bits depend on its batch)."""
        collate = fetcher.collate_fn
        reading.stacks = collate is default_collate

        def collating(samples: Any) -> Any:
            if not reading.ahead or self.reads(reading.known):
                self.guard.call("collate", self._samples, reading, samples)
            return collate(samples)

        fetcher.collate_fn = collating

    def _samples(self, reading: Reading, samples: Any) -> None:
        reading.prints = None
        if not isinstance(samples, Sequence) or not 0 < len(samples) <= MAX_SAMPLES:
            return
        if not (reading.stacks and fingerprint.only_tensors(samples[0])):
            reading.prints = fingerprint.samples(samples)

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_index(iterator: Any) -> Any:
            found = original(iterator)
            reading = getattr(iterator, READING, None)
            if reading is None:  # in the constructor, which fetches ahead
                self.guard.call("next-index", lambda: _ahead(iterator).append(found))
            else:
                reading.ahead.append(found)
            return found

        return next_index

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def following(iterator: Any) -> Any:
            if self.on_fetch is not None:
                self.guard.call("fetch-before", self.on_fetch, "before")
            began = time.perf_counter()
            try:
                batch = original(iterator)
            except StopIteration:
                self.guard.call("loader-end", self._ended, iterator)
                raise
            seconds = time.perf_counter() - began
            if self.on_fetch is not None:
                self.guard.call("fetch-after", self.on_fetch, "after")
            self.guard.call("batch", self._fetched, iterator, batch, seconds)
            return batch

        return following

    def _ended(self, iterator: Any) -> None:
        reading = getattr(iterator, READING, None)
        if reading is not None and reading.known.batches_of(reading.epoch):
            reading.known.finished.append(reading.epoch)

    def _fetched(self, iterator: Any, batch: Any, seconds: float) -> None:
        reading = getattr(iterator, READING, None)
        if reading is None:
            return
        known = reading.known
        known.count(reading.epoch)
        known.waits_s += seconds
        self.wait_s += seconds
        indices = known.base_indices(_integers(reading.ahead.popleft()) if reading.ahead else [])
        if indices and self._newest >= DIRECT and not self.reads(known):
            where = known.number, reading.epoch
            self.pending.append(Batch(*where, [], indices[:MAX_SAMPLES], len(indices), seconds, assumed=True))
            return
        found = list(fingerprint.leaves(batch))
        prints, reading.prints = reading.prints, None
        if prints is None:
            prints = fingerprint.rows(found) if not indices or self.reads(known) else []
        size = len(indices) or len(prints) or next((int(t.shape[0]) for t in found if t.dim()), 1)
        spans = [span for t in found if (span := _span(t)) is not None]
        copies = contents(found) if self._direct < DIRECT else frozenset()
        kept = prints[:MAX_SAMPLES], indices[:MAX_SAMPLES]
        self.pending.append(Batch(known.number, reading.epoch, *kept, size, seconds, spans, copies))

    def find(self, call: Call) -> Batch | None:
        """The newest batch whose memory one of a call's inputs lies in, or of which one is a copy."""
        if not self.pending:
            return None
        newest = self.pending[-1]
        if newest.assumed:
            return newest
        inputs = call.inputs
        for batch in reversed(self.pending):
            if any(batch.holds(t) for t in inputs):
                self._direct += 1
                self._newest = self._newest + 1 if batch is newest else 0
                return batch
        self._direct = self._newest = 0
        copies = contents([t for t in inputs if t.device.type == "cpu"])
        waiting = [b for b in self.pending if b.state in ("fetched", "train")]
        # Masks of equal length are alike in many batches: the batch with most in common counts, the oldest of equals.
        found = max(waiting, key=lambda b: (len(b.contents & copies), b.state == "fetched"), default=None)
        found = found if found is not None and found.contents & copies else None
        self.in_order = self.in_order or (found is not None and found is not self.pending[-1])
        return found


def _ahead(iterator: Any) -> deque[Any]:
    """Indices that an iterator asked for; fetching ahead begins in its constructor, before it is known."""
    found: deque[Any] | None = getattr(iterator, AHEAD, None)
    if found is None:
        found = deque()
        setattr(iterator, AHEAD, found)
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
    if tensor.is_contiguous():
        reach = tensor.numel()
    else:
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    at = tensor.data_ptr()
    return at, at + reach * tensor.element_size(), weakref.ref(tensor)


def _integers(found: Any) -> list[int]:
    """Indices of a batch; empty where the sampler gives something else (an IterableDataset gives None)."""
    if type(found) is list and set(map(type, found)) == {int}:
        return found
    items = found if isinstance(found, list | tuple) else [found]
    flat = [i for item in items for i in (item if isinstance(item, list | tuple) else [item])]
    whole = [int(i) for i in flat if hasattr(i, "__index__") and not isinstance(i, bool)]
    return whole if len(whole) == len(flat) else []
