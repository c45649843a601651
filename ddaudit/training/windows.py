"""Alternating windows of one run, each with one suspect taken out: the A/B probes behind a named bottleneck.

Windows alternate with normal ones (normal, A, normal, B, ...) round after round, so that a machine that drifts drifts
in both. The first step of a window is recorded as settling. A run with windows is no training result: a window without
collectives lets the replicas drift apart.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ddaudit.evidence.windows import SETTLING, window_code
from ddaudit.training.data import Window

if TYPE_CHECKING:
    from ddaudit.training.loop import Trainer

__all__ = ["run_windows"]

LENGTH = 3
"""Steps of a window, the settling one included."""


@dataclass
class _Shelf:
    """How this run reads its next window, and the one it read last."""

    read: Callable[[], Window]
    window: Window | None = None

    def next(self) -> Window:
        self.window = self.read()
        return self.window

    def last(self) -> Window:
        return self.next() if self.window is None else self.window


def run_windows(trainer: Trainer) -> None:
    """Goes through ``trainer.params.rounds`` rounds of the windows that the run asks for; a normal one comes first."""
    shelf = _Shelf(trainer.window)
    trainer.window = shelf.next  # type: ignore[method-assign]
    for _ in range(trainer.params.rounds):
        for name in trainer.params.windows:
            for window in ("normal", name):
                with _MAKERS[window](trainer, shelf):
                    for step in range(LENGTH):
                        trainer.window_code = SETTLING if step == 0 else window_code(window)
                        _update(trainer, window, shelf)
    trainer.window_code = 0


def _update(trainer: Trainer, window: str, shelf: _Shelf) -> None:
    """One update. Data that the window replaces is read before the clocks start, and ranks start together then."""
    if window == "solo":
        for turn in range(trainer.place.world_size):
            if turn == trainer.place.rank:
                trainer.account.reopen()
                trainer.update()
            _meet(trainer)
        return
    if window in ("memory-input", "swap"):
        mine = shelf.next()
        if window == "swap":
            shelf.window = _neighbours(trainer, mine)
        _meet(trainer)
        trainer.account.reopen()
    trainer.update()


def _meet(trainer: Trainer) -> None:
    if trainer.place.world_size > 1:
        dist.barrier()


def _neighbours(trainer: Trainer, mine: Window) -> Window:
    """The window of the next rank."""
    if trainer.place.world_size == 1:
        return mine
    windows: list[Window] = [mine] * trainer.place.world_size
    dist.all_gather_object(windows, mine)
    return windows[(trainer.place.rank + 1) % len(windows)]


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Sets an attribute for the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _plain(trainer: Trainer, shelf: _Shelf) -> AbstractContextManager[None]:
    return nullcontext()


def _replay(trainer: Trainer, shelf: _Shelf) -> AbstractContextManager[None]:
    return _replaced(trainer, "window", shelf.last)


def _no_logging(trainer: Trainer, shelf: _Shelf) -> AbstractContextManager[None]:
    return _replaced(trainer.parallel.ledger, "muted", True)


@contextmanager
def _no_sync(trainer: Trainer, shelf: _Shelf) -> Iterator[None]:
    parallel = trainer.parallel
    with _no_logging(trainer, shelf), _replaced(parallel, "synchronising", parallel.alone):
        yield
    # Ranks that ran apart begin the next window together.
    _meet(trainer)


def _sync_once(trainer: Trainer, shelf: _Shelf) -> AbstractContextManager[None]:
    known_good = type(trainer.parallel).synchronising
    return _replaced(trainer.parallel, "synchronising", lambda last: known_good(trainer.parallel, last))


@contextmanager
def _no_gc(trainer: Trainer, shelf: _Shelf) -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        with _replaced(gc, "collect", lambda generation=2: 0):
            yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _one_thread(trainer: Trainer, shelf: _Shelf) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _replaced(torch, "set_num_threads", lambda number: None):
            yield
    finally:
        torch.set_num_threads(before)


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt(3), and below its defaults."""
TRIM_BYTES, MMAP_MAX = 128 << 10, 65536


@contextmanager
def _keep_memory(trainer: Trainer, shelf: _Shelf) -> Iterator[None]:
    """Where the C library has mallopt: blocks come from the heap, and the heap is never given back."""
    mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        mallopt(M_MMAP_MAX, MMAP_MAX)
        mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _no_timers(trainer: Trainer, shelf: _Shelf) -> Iterator[None]:
    watch, ledger = trainer.watch, trainer.parallel.ledger
    with (
        _replaced(watch, "span", lambda name: nullcontext()),
        _replaced(ledger, "waiting", lambda group: nullcontext()),
        _replaced(ledger, "timed", False),
    ):
        yield


@contextmanager
def _idle_workers(trainer: Trainer, shelf: _Shelf) -> Iterator[None]:
    """Stops this rank's own loader workers, by their ids, for the block."""
    stopped = trainer.feed.workers()
    with ExitStack() as stack:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)
        with _replay(trainer, shelf):
            yield


def _no_plant(trainer: Trainer, shelf: _Shelf) -> AbstractContextManager[None]:
    from ddaudit.training.planting import Plants  # it imports the loop, which imports this

    return _replaced(Plants, "resting", True)


_MAKERS: dict[str, Callable[[Trainer, _Shelf], AbstractContextManager[None]]] = {
    "normal": _plain,
    "memory-input": _replay,
    "swap": _replay,
    "no-sync": _no_sync,
    "solo": _no_sync,
    "no-logging": _no_logging,
    "sync-once": _sync_once,
    "no-gc": _no_gc,
    "one-thread": _one_thread,
    "keep-memory": _keep_memory,
    "no-timers": _no_timers,
    "idle-workers": _idle_workers,
    "no-plant": _no_plant,
}
