"""Planted faults of the process and its host: garbage, memory, threads, neighbours, quotas. Whatever they take from the
machine they take when the training is prepared, and give back when it ends."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddaudit.errors import UsageProblem
from ddaudit.training.data import Window
from ddaudit.training.loop import Trainer
from ddaudit.training.planting import around, is_last_rank, planter
from ddaudit.training.planting_time import length_s

Undo = Callable[[], object]


def while_training(trainer: Trainer, begin: Callable[[], Undo]) -> None:
    """Calls ``begin`` when the training is prepared, and what it returns when the training ends."""
    undo: list[Undo] = []

    def prepared(prepare: Callable[[], None]) -> None:
        prepare()
        undo.append(begin())

    def closed(close: Callable[[], None]) -> None:
        close()
        while undo:
            undo.pop()()

    around(trainer, "prepare", prepared)
    around(trainer.vitals, "close", closed)


def each_update(trainer: Trainer, act: Callable[[], object]) -> None:
    """Calls ``act`` before the forward pass of each update."""

    def acts(accumulate: Callable[[Window], Tensor], window: Window) -> Tensor:
        with trainer.watch.span("forward_s"):
            act()
        return accumulate(window)

    around(trainer.parallel, "accumulate", acts)


@planter("gc-uncoordinated")
def gc_uncoordinated(trainer: Trainer) -> None:
    seconds, place, ballast = length_s(trainer, 50.0), trainer.place, list[Any]()

    def grow() -> Undo:
        """Keeps so many objects that looking through them takes as long as asked."""
        frozen = gc.get_freeze_count()
        gc.collect()
        gc.freeze()  # what was there before is not looked through: the pause is the ballast's alone
        gc.disable()  # ballast that is being made would be looked through again and again
        count = 100_000
        for _ in range(CALIBRATIONS):
            ballast[:] = [[None] for _ in range(count)]
            took = min(_timed(gc.collect) for _ in range(3))
            if 0.95 * seconds < took < 1.05 * seconds:
                break
            count = max(1000, int(count * min(8.0, seconds / max(took, 1e-4))))
        gc.enable()

        def drop() -> None:
            ballast.clear()
            if not frozen:
                gc.unfreeze()

        return drop

    def in_turn() -> None:
        if trainer.updates_done % place.world_size == place.rank:
            gc.collect()

    while_training(trainer, grow)
    each_update(trainer, in_turn)


CALIBRATIONS = 4


def _timed(act: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    begin = time.thread_time()
    act()
    return time.thread_time() - begin


@planter("memory-growth")
def memory_growth(trainer: Trainer) -> None:
    kept: list[Tensor] = []
    size = int(length_s(trainer, 2.0) * 1e3 * 1e6 / 4)
    each_update(trainer, lambda: kept.append(torch.ones(size)))


PAGE = 4096


@planter("memory-pressure")
def memory_pressure(trainer: Trainer) -> None:
    size = int(length_s(trainer, 50.0) * 1e3 * BYTES_PER_MS)

    def fresh() -> None:
        block = torch.empty(size, dtype=torch.uint8)
        block[::PAGE] = 1  # the first touch of each page is what the kernel has to serve

    each_update(trainer, fresh)


BYTES_PER_MS = 4 << 20
"""Fresh memory that a kernel provides in a millisecond, page by page, give or take a factor of two."""


@planter("thread-storm")
def thread_storm(trainer: Trainer) -> None:
    threads = max(2, round(length_s(trainer, 50.0) * 1e3 / 50.0 * 16))

    def many() -> Undo:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        return lambda: torch.set_num_threads(before)

    while_training(trainer, many)


SPIN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
share, end = float(sys.argv[2]), time.monotonic() + 120
while time.monotonic() < end and os.getppid() == int(sys.argv[3]):
    begin = time.monotonic()
    while time.monotonic() - begin < 0.05 * share: pass
    time.sleep(0.05 * (1 - share))
"""
"""A neighbour that computes on one core for a share of the time, and ends by itself when its parent is gone."""


def _neighbours(cores: list[int], share: float) -> Undo:
    arguments = [str(share), str(os.getpid())]
    started = [subprocess.Popen([sys.executable, "-c", SPIN, str(core), *arguments]) for core in cores]
    time.sleep(0.3)  # an interpreter that still starts is not yet busy

    def end() -> None:
        for process in started:
            process.kill()
            process.wait()

    return end


def _share(trainer: Trainer) -> float:
    """Share of its core that a neighbour asks for: ``plant_ms`` as a percentage."""
    return min(1.0, length_s(trainer, 100.0) * 10.0)


@planter("core-contended")
def core_contended(trainer: Trainer) -> None:
    if trainer.place.rank == 0:
        while_training(trainer, lambda: _neighbours(sorted(os.sched_getaffinity(0)), _share(trainer)))


@planter("core-shared")
def core_shared(trainer: Trainer) -> None:
    def pinned() -> Undo:
        before = os.sched_getaffinity(0)
        last, others = max(before), before - {max(before)} or before
        os.sched_setaffinity(0, {last} if is_last_rank(trainer) else others)
        end = _neighbours([last], _share(trainer)) if is_last_rank(trainer) else None

        def undo() -> None:
            if end is not None:
                end()
            os.sched_setaffinity(0, before)

        return undo

    while_training(trainer, pinned)


CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 20_000


@planter("cpu-quota")
def cpu_quota(trainer: Trainer) -> None:
    share = min(1.0, length_s(trainer, 40.0) * 10.0)
    if is_last_rank(trainer):
        while_training(trainer, lambda: _held_back(share))


def _held_back(share: float) -> Undo:
    """Moves this process into a cgroup of its own that may use ``share`` of a core.

    Raises:
        UsageProblem: cgroups cannot be made here.
    """
    second = (CGROUPS / "cgroup.controllers").exists()
    root = CGROUPS if second else CGROUPS / "cpu"
    group = root / f"ddaudit-{os.getpid()}"
    home = _home(root, second=second)
    quota = int(share * PERIOD_US)
    try:
        group.mkdir()
        if second:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise UsageProblem(f"plant 'cpu-quota' needs a cgroup of its own: {error}", fix="run it as root") from None

    def leave() -> None:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):
            group.rmdir()

    return leave


def _home(root: Path, *, second: bool) -> Path:
    """This process's present cgroup below ``root``."""
    for controllers, group in _memberships():
        if (not controllers) if second else "cpu" in controllers.split(","):
            return root / group.strip("/")
    return root


def _memberships() -> Iterator[tuple[str, str]]:
    for line in Path("/proc/self/cgroup").read_text("utf-8", "replace").splitlines():
        _, controllers, group = line.split(":", 2)
        yield controllers, group


@planter("item-now-and-then")
def item_now_and_then(trainer: Trainer) -> None:
    def read(accumulate: Callable[[Window], Tensor], window: Window) -> Tensor:
        total = accumulate(window)
        if trainer.updates_done % 100 == 0:
            total.item()
        return total

    around(trainer.parallel, "accumulate", read)
