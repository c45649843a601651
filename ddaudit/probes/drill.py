"""A probe that breaks on purpose: small all-reduces in a loop, and one planted fault in one rank.

It proves that the launcher names the right rank, and serves as a fire drill on a new cluster: does a dead or stuck rank
there end the step in seconds, with a name, or does the job hang for half an hour?
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.errors import LaunchProblem
from ddaudit.evidence import Measures
from ddaudit.registry import probe

Fault = Literal[
    "none",
    "kill",
    "stop",
    "raise",
    "abort",
    "segfault",
    "exit",
    "leave",
    "leak",
    "problem",
    "skip-collective",
    "hang-collective",
    "hang-lock",
    "hang-native",
    "hang-loader",
    "spin",
]


class DrillParams(BaseModel):
    """What to break, where and when."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fault: Fault = Field("none", description="what the victim does; `none` is the healthy twin")
    rank: int = Field(-1, ge=-1, description="the victim; -1 is the last rank")
    steps: int = Field(20, ge=1, le=1_000_000, description="all-reduces to run")
    at_step: int | None = Field(None, ge=0, description="step of the fault; unset picks one from the run's seed")
    elements: int = Field(64, ge=1, le=1 << 24, description="float32 elements of each all-reduce")
    pause_s: float = Field(0.0, ge=0, le=60, description="sleep in each step")
    collective_timeout_s: float | None = Field(
        None, gt=0, description="own timeout of the all-reduces; unset uses the step's"
    )
    leak_bytes: int = Field(256 << 20, ge=1 << 20, description="memory limit above the present use, for `leak`")
    loader_workers: int = Field(0, ge=0, le=16, description="idle DataLoader workers to keep beside the rank")


@probe("drill", produces=[Measures], params=DrillParams, where="ranks")
def drill(context: ProbeContext, params: DrillParams) -> None:
    """All-reduces ``steps`` times and plants a launch fault in one rank, to show that it is found and named."""
    import torch
    import torch.distributed as dist

    groups = _groups(context, params)
    victim = params.rank if params.rank >= 0 else context.world_size - 1
    at = params.at_step
    if at is None:
        at = random.Random(context.seed).randrange(params.steps)  # noqa: S311 - a drill, not a secret
    workers = _idle_loader(params.loader_workers)
    for step in range(params.steps):
        hit = context.rank == victim and step == at and params.fault != "none"
        if hit:
            context.events.emit("fault", fault=params.fault, step=step)
            _FAULTS.get(params.fault, _nothing)(context, params, groups[1])
        if not (hit and params.fault == "skip-collective"):
            values = torch.ones(params.elements, device=context.device)
            dist.all_reduce(values, group=groups[0])
            if values[0].item() != context.world_size:
                raise RuntimeError(f"all-reduce of ones gave {values[0].item()} with {context.world_size} ranks")
        context.events.emit("step", step=step)
        if params.pause_s:
            time.sleep(params.pause_s)
    del workers
    context.measure("drill.steps", params.steps, "1", rank=context.rank)


def _groups(context: ProbeContext, params: DrillParams) -> tuple[object, object]:
    """The group of the loop and a second one, in which a rank can wait alone."""
    from datetime import timedelta

    import torch.distributed as dist

    short = timedelta(seconds=params.collective_timeout_s) if params.collective_timeout_s else None
    loop = dist.new_group(timeout=short) if short else dist.group.WORLD
    return loop, dist.new_group() if params.fault == "hang-collective" else None


def _idle_loader(count: int) -> object:
    """Starts DataLoader workers that stay, as a training script's do; the iterator keeps them alive."""
    if not count:
        return None
    from torch.utils.data import DataLoader

    data: Any = range(1 << 20)
    iterator = iter(DataLoader(data, batch_size=1, num_workers=count, persistent_workers=True))
    next(iterator)
    return iterator


def _nothing(context: ProbeContext, params: DrillParams, group: object) -> None:
    return None


def _signal(signum: int) -> Callable[[ProbeContext, DrillParams, object], None]:
    def send(context: ProbeContext, params: DrillParams, group: object) -> None:
        os.kill(os.getpid(), signum)

    return send


def _raise(context: ProbeContext, params: DrillParams, group: object) -> None:
    raise ValueError(f"planted in rank {context.rank}")


def _problem(context: ProbeContext, params: DrillParams, group: object) -> None:
    raise LaunchProblem("planted problem", where=context.host, fix="remove the drill")


def _exit(context: ProbeContext, params: DrillParams, group: object) -> None:
    sys.exit(7)


def _leave(context: ProbeContext, params: DrillParams, group: object) -> None:
    """Exit code 0 in the middle of the work: only the missing ``end`` event tells."""
    os._exit(0)


def _leak(context: ProbeContext, params: DrillParams, group: object) -> None:
    """Grows against an address-space limit, in touched pages, until an allocation fails."""
    import resource

    pages = int(open("/proc/self/statm", encoding="ascii").read().split()[0])  # noqa: PTH123, SIM115
    limit = pages * resource.getpagesize() + params.leak_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    kept = []
    while True:
        kept.append(bytearray(b"\x01") * (8 << 20))


def _hang_collective(context: ProbeContext, params: DrillParams, group: object) -> None:
    """Enters a collective of another group, which no peer enters: a rank whose control flow went elsewhere."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1, device=context.device), group=group)


def _hang_lock(context: ProbeContext, params: DrillParams, group: object) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _hang_native(context: ProbeContext, params: DrillParams, group: object) -> None:
    """Waits for a native lock with the interpreter's own held: no Python thread of the rank can answer any more."""
    import ctypes

    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)  # all zero is an unlocked pthread mutex
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


class _StuckDataset:
    """A map-style dataset whose worker never returns the sample."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        threading.Event().wait()
        return index


def _hang_loader(context: ProbeContext, params: DrillParams, group: object) -> None:
    from torch.utils.data import DataLoader

    next(iter(DataLoader(_StuckDataset(), num_workers=1)))  # type: ignore[arg-type]


def _spin(context: ProbeContext, params: DrillParams, group: object) -> None:
    while True:
        pass


_FAULTS: dict[str, Callable[[ProbeContext, DrillParams, object], None]] = {
    "kill": _signal(signal.SIGKILL),
    "stop": _signal(signal.SIGSTOP),
    "segfault": _signal(signal.SIGSEGV),
    "raise": _raise,
    "problem": _problem,
    "abort": lambda *_: os.abort(),
    "exit": _exit,
    "leave": _leave,
    "leak": _leak,
    "hang-collective": _hang_collective,
    "hang-lock": _hang_lock,
    "hang-native": _hang_native,
    "hang-loader": _hang_loader,
    "spin": _spin,
}
