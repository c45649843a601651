"""The thin layer over CPU and CUDA devices: one path for both, so that what runs on gloo ranks runs on NCCL ranks.

Importing this module does not import torch; every function does so when called, and nothing here touches CUDA before
the caller asks for a CUDA device (a process that forked after touching it cannot use it).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ddaudit.errors import LaunchProblem

if TYPE_CHECKING:
    import torch

__all__ = ["RunQueue", "Stopwatch", "backend", "device_of", "memory_bytes", "side_stream", "synchronize"]


def backend(kind: str) -> str:
    """Name of the collective library for ``"cpu"`` or ``"cuda"`` ranks."""
    return "nccl" if kind == "cuda" else "gloo"


def device_of(kind: str, local_rank: int) -> torch.device:
    """The device of one rank, made current.

    Raises:
        LaunchProblem: this host has no such CUDA device.
    """
    import torch

    if kind != "cuda":
        return torch.device(kind)
    if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise LaunchProblem(
            f"local rank {local_rank} has no CUDA device",
            expected=f"one of the {seen} that torch sees",
            fix="start fewer ranks per node, or choose --device cpu",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def synchronize(device: torch.device) -> None:
    """Waits until the device has done everything it was given. Nothing to wait for on a CPU."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def memory_bytes(device: torch.device, *, reset: bool = False) -> int | None:
    """Peak bytes the caching allocator handed out since the last reset; None on a CPU, which has no such counter."""
    if device.type != "cuda":
        return None
    import torch

    peak = int(torch.cuda.max_memory_allocated(device))
    if reset:
        torch.cuda.reset_peak_memory_stats(device)
    return peak


def side_stream(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context whose work may overlap the current stream; a CPU has one queue, so nothing changes there."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    import torch

    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


class RunQueue:
    """Seconds that the calling thread was ready to run but waited for a core, as Linux counts them
    (``/proc/thread-self/schedstat``, second number, nanoseconds). Stays at 0 where there is no such file."""

    def __init__(self) -> None:
        self.file: int | None = None
        with contextlib.suppress(OSError):
            self.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.file is not None:
            os.close(self.file)

    def read(self) -> float:
        """Seconds waited since the thread began; one system call."""
        return 0.0 if self.file is None else int(os.pread(self.file, 48, 0).split(None, 2)[1]) * 1e-9


class Span:
    """One timed block of a :class:`Stopwatch`. Marks are seconds on a CPU and events on CUDA; ``queued`` is what
    :class:`RunQueue` counted in it, and ``parent`` the span that it lies in. (A generator would cost twice the time.)
    """

    __slots__ = ("begin", "end", "name", "parent", "queued", "watch")

    def __init__(self, watch: Stopwatch, name: str) -> None:
        self.watch, self.name = watch, name
        self.parent: Span | None = None

    def __enter__(self) -> None:
        watch = self.watch
        self.parent, watch.inner = watch.inner, self
        self.begin = watch.mark()
        self.queued = watch.queue.read()

    def __exit__(self, *_: object) -> None:
        watch = self.watch
        self.queued = watch.queue.read() - self.queued
        self.end = watch.mark()
        watch.spans.append(self)
        watch.inner = self.parent

    def seconds(self) -> float:
        if isinstance(self.begin, float):
            return float(self.end - self.begin)
        return float(self.begin.elapsed_time(self.end)) / 1e3


class Stopwatch:
    """Adds up the time of named spans of one step.

    On CUDA a span is a pair of events on the current stream and its length is read only in :meth:`read`, so timing
    adds no synchronisation to the step itself. Spans may nest: the inner one's time is not the outer one's, so spans
    never count a moment twice. ``spans`` are those that ended in this step, ``inner`` the one that is open.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.queue = RunQueue()
        self.mark: Callable[[], Any] = self._event if device.type == "cuda" else time.perf_counter
        """Now: seconds, or an event on the device's current stream."""
        self.restart()

    def restart(self) -> None:
        """Forgets all spans and starts the whole-step clocks (wall, CPU time of this process, waiting for a core)."""
        self.spans: list[Span] = []
        self.inner: Span | None = None
        self._paused = {"wall": 0.0, "cpu": 0.0, "queued": 0.0}
        self._begin = self._clocks(queue_first=True)

    @property
    def begin_s(self) -> float:
        """When the step began, on the monotonic clock that all processes of a host share."""
        return self._begin["wall"]

    @property
    def calls(self) -> int:
        """Spans timed in this step."""
        return len(self.spans)

    def span(self, name: str) -> Span:
        """Times the block as part of ``name``; several spans of a name add up."""
        return Span(self, name)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leaves the block out of the whole-step clocks: bookkeeping of ours that the training would not do."""
        synchronize(self.device)
        before = self._clocks(queue_first=False)
        try:
            yield
        finally:
            synchronize(self.device)
            for clock, now in self._clocks(queue_first=True).items():
                self._paused[clock] += now - before[clock]

    def read(self) -> dict[str, float]:
        """Waits for the device and returns seconds by span name, plus ``step_s`` and ``cpu_s`` of the whole step,
        ``overhead_s`` that was paused, and where Linux tells it ``runqueue_s`` of the step, of its input and host spans
        and of all the others (``runqueue_phases_s``)."""
        synchronize(self.device)
        now = self._clocks(queue_first=False)
        spent = {clock: now[clock] - self._begin[clock] - self._paused[clock] for clock in now}
        seconds: dict[str, float] = defaultdict(float)
        queued: dict[str, float] = defaultdict(float)
        for span in self.spans:
            seconds[span.name] += span.seconds()
            queued[span.name] += span.queued
            if span.parent is not None:
                seconds[span.parent.name] -= span.seconds()
                queued[span.parent.name] -= span.queued
        seconds |= {"step_s": spent["wall"], "cpu_s": spent["cpu"], "overhead_s": self._paused["wall"]}
        if self.queue.file is not None:
            seconds["runqueue_s"] = spent["queued"]
            seconds |= {f"runqueue_{part}_s": queued.pop(f"{part}_s", 0.0) for part in ("input", "host")}
            seconds["runqueue_phases_s"] = sum(queued.values())
        return dict(seconds)

    def _clocks(self, *, queue_first: bool) -> dict[str, float]:
        """The whole-step clocks. Between two readings the thread may lose its core: the order sees to it that what
        the step's wall clock saw of such a wait, its queue clock saw too."""
        queued = self.queue.read() if queue_first else 0.0
        clocks = {"cpu": time.process_time(), "wall": time.perf_counter()}
        return clocks | {"queued": queued if queue_first else self.queue.read()}

    def _event(self) -> Any:
        """Now, as an event on the device's current stream."""
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event
