"""The thin layer over CPU and CUDA devices: one path for both, so that what runs on gloo ranks runs on NCCL ranks.

Importing this module does not import torch; every function does so when called, and nothing here touches CUDA before
the caller asks for a CUDA device (a process that forked after touching it cannot use it).
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ddaudit.errors import LaunchProblem

if TYPE_CHECKING:
    import torch

__all__ = ["Stopwatch", "backend", "device_of", "memory_bytes", "side_stream", "synchronize"]


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


class Stopwatch:
    """Adds up the time of named spans of one step.

    On CUDA a span is a pair of events on the current stream and its length is read only in :meth:`read`, so timing
    adds no synchronisation to the step itself. Spans must not nest, except :meth:`pause`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.restart()

    def restart(self) -> None:
        """Forgets all spans and starts the whole-step clocks (wall, and CPU time of this process)."""
        self._spans: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
        self._paused_s = 0.0
        self._paused_cpu_s = 0.0
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Times the block as part of ``name``; several spans of a name add up."""
        begin = self._mark()
        try:
            yield
        finally:
            self._spans[name].append((begin, self._mark()))

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leaves the block out of ``step_s`` and ``cpu_s``: bookkeeping of ours that the training would not do."""
        synchronize(self.device)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            synchronize(self.device)
            self._paused_s += time.perf_counter() - wall
            self._paused_cpu_s += time.process_time() - cpu

    def read(self) -> dict[str, float]:
        """Waits for the device and returns seconds by span name, plus ``step_s`` and ``cpu_s`` of the whole step."""
        synchronize(self.device)
        seconds = {
            "step_s": time.perf_counter() - self._wall - self._paused_s,
            "cpu_s": time.process_time() - self._cpu - self._paused_cpu_s,
        }
        for name, pairs in self._spans.items():
            seconds[name] = sum(self._between(begin, end) for begin, end in pairs)
        return seconds

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    @staticmethod
    def _between(begin: Any, end: Any) -> float:
        return float(end - begin) if isinstance(begin, float) else float(begin.elapsed_time(end)) / 1e3
