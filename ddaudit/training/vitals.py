"""What the system says of a rank in each step: garbage collection, kernel time, page faults, quota, threads, cores."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["Vitals", "cores_busy_s", "throttled_s"]

TICK = os.sysconf("SC_CLK_TCK")
MOST_CORES = 52
"""Bits of a core mask that a float64 keeps exactly."""


class Vitals:
    """One rank's counters. :meth:`begin` and :meth:`end` enclose a step; both cost a few file reads and lie outside it.

    CPU time of others on the rank's cores counts everything the kernel ran there, so it holds the rank itself and its
    peers on the same cores: whoever reads all ranks' records can subtract them.
    """

    def __init__(self) -> None:
        self._pauses: list[tuple[float, float]] = []
        self._collecting = (0.0, 0.0)
        self._known: dict[str, float] = {}
        self._helpers: set[int] = set()

    def open(self) -> None:
        """Starts to listen to the garbage collector, and finds out where this process runs."""
        self.cores = sorted(os.sched_getaffinity(0))
        self._quota = _quota_file()
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        """Stops to listen to the garbage collector."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter(), time.thread_time()
        else:
            begin_s, cpu_s = self._collecting
            self._pauses.append((begin_s, time.thread_time() - cpu_s))

    def begin(self) -> None:
        """A step begins."""
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._begin = time.perf_counter()

    def end(self, workers: Iterable[int]) -> dict[str, float]:
        """Series of the step that ends here; ``workers`` are the process ids of the loader's workers."""
        now, usage = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        inside = [(begin_s, cpu_s) for begin_s, cpu_s in self._pauses if begin_s >= self._begin]
        self._pauses.clear()
        values = {
            "gc_s": sum(cpu_s for _, cpu_s in inside),
            "system_s": usage.ru_stime - self._usage.ru_stime,
            "minor_faults": float(usage.ru_minflt - self._usage.ru_minflt),
            "core_mask": float(sum(1 << core for core in self.cores if core < MOST_CORES)),
        }
        if inside:
            values["gc_begin_s"] = max(0.0, inside[0][0] - self._begin)
        return values | self._between(list(workers), now)

    def _between(self, workers: list[int], now: float) -> dict[str, float]:
        """Threads now, and what the counters that only grow have gained since the previous step."""
        helpers = [found for pid in workers if (found := _process(pid)) is not None]
        helpers_cpu_s = sum(cpu_s for cpu_s, _ in helpers)
        totals = {
            "between_s": now,
            "workers_cpu_s": helpers_cpu_s,
            "own_cpu_s": time.process_time() + helpers_cpu_s,
            "cores_busy_s": cores_busy_s(self.cores),
            "throttled_s": throttled_s(self._quota),
        }
        known, self._known = self._known, {name: total for name, total in totals.items() if total is not None}
        mine = _process(os.getpid())
        values = {
            "threads": float((mine[1] if mine else 1) + sum(threads for _, threads in helpers)),
            "workers": float(len(helpers)),
            "workers_started": float(len(set(workers) - self._helpers)),
        }
        self._helpers = set(workers)
        # Workers that ended take their CPU time along: less than before is no less work.
        return values | {name: max(0.0, total - known[name]) for name, total in self._known.items() if name in known}


def _process(pid: int) -> tuple[float, int] | None:
    """CPU seconds and threads of a process; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK, int(fields[17])
    except (OSError, ValueError, IndexError):
        return None


def cores_busy_s(cores: Iterable[int]) -> float | None:
    """Seconds for which these cores ran anything at all since the machine started; None where the kernel is silent."""
    wanted = {f"cpu{core}" for core in cores}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text("ascii").splitlines()]
        # user, nice, system, (idle, iowait), irq, softirq; guests are part of user time
        rows = [[int(x) for x in (*f[1:4], *f[6:8])] for f in lines if f and f[0] in wanted]
    except (OSError, ValueError):
        return None
    return sum(map(sum, rows)) / TICK


def _quota_file() -> Path | None:
    """``cpu.stat`` of this process's cgroup, version 2 or 1."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("utf-8", "replace").splitlines():
            _, controllers, group = line.split(":", 2)
            roots = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if not controllers else ()
            if "cpu" in controllers.split(","):
                roots = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct")
            for root in roots:
                file = Path(root) / group.strip("/") / "cpu.stat"
                if file.is_file() and throttled_s(file) is not None:
                    return file
    return None


def throttled_s(file: Path | None) -> float | None:
    """Seconds that a CPU quota held the cgroup's tasks back; None where there is no quota to read."""
    if file is None:
        return None
    try:
        pairs = dict(line.split(None, 1) for line in file.read_text("ascii").splitlines())
        if "throttled_usec" in pairs:
            return int(pairs["throttled_usec"]) / 1e6
        return int(pairs["throttled_time"]) / 1e9
    except (OSError, ValueError, KeyError):
        return None
