"""The ``host`` probe: who else uses this host's cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.evidence.host import HostLoad, Neighbour
from ddaudit.redact import redact_text
from ddaudit.registry import probe

__all__ = ["HostParams", "host"]

SHOWN = 5


class HostParams(BaseModel):
    """``window_s``: how long to look. ``spinners`` starts that many busy processes, and ``scope`` "children" looks at
    them alone: together they plant contention without depending on what else the machine does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    window_s: float = Field(0.6, gt=0.0, le=60.0)
    scope: str = Field("machine", pattern="^(machine|children)$")
    spinners: int = Field(0, ge=0, le=64)


@probe("host", produces=(HostLoad,), params=HostParams, where="hosts")
def host(context: ProbeContext, params: HostParams) -> None:
    """Samples every process's CPU time twice and records who used how many cores in between.

    Ddaudit's own processes (this one and its ancestors) are left out. A process that came or went inside the window is
    not seen; the kernel's own total, from which ``others_cores`` is taken, has it.
    """
    with _spinning(params.spinners):
        mine = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
        children = params.scope == "children"
        begin, before, total = time.perf_counter(), _cpu_times(mine, children), psutil.cpu_times()
        time.sleep(params.window_s)
        seconds, after, later = time.perf_counter() - begin, _cpu_times(mine, children), psutil.cpu_times()
    used = {pid: (after[pid] - before[pid]) / seconds for pid in after.keys() & before.keys()}
    largest = sorted(used, key=lambda pid: -used[pid])[:SHOWN]
    # A hypervisor's steal is nobody's child: looking at children alone must not depend on other machines.
    steal = None if children else getattr(later, "steal", None)
    context.events.emit_evidence(
        HostLoad(
            host=context.host,
            seconds=seconds,
            cores=len(os.sched_getaffinity(0)),
            others_cores=sum(used.values()),
            steal_cores=None if steal is None else (steal - total.steal) / seconds,
            neighbours=tuple(n for pid in largest if (n := _neighbour(pid, used[pid])) is not None),
        )
    )


def _cpu_times(mine: set[int], children: bool) -> dict[int, float]:
    """CPU seconds of every process that is not ours, by pid; those that end meanwhile are passed over."""
    found: dict[int, float] = {}
    for process in psutil.Process().children(recursive=True) if children else psutil.process_iter():
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if process.pid not in mine:
            found[process.pid] = times.user + times.system
    return found


def _neighbour(pid: int, cores: float) -> Neighbour | None:
    try:
        process = psutil.Process(pid)
        return Neighbour(pid=pid, name=redact_text(process.name()), user=process.username(), cores=cores)
    except (psutil.NoSuchProcess, psutil.AccessDenied, KeyError):
        return None  # it ended, or its user has no name here


@contextmanager
def _spinning(count: int) -> Iterator[None]:
    """Runs busy processes for the block. They end by themselves too, should this process be killed."""
    code = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: pass"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        if started:
            time.sleep(0.2)  # an interpreter that still starts is not yet busy
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
