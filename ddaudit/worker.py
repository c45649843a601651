"""What one process of a step runs: a JSON order in, events out.

The forkserver (:mod:`ddaudit.launch.server`) calls :func:`main` in a fresh fork. Everything a rank knows goes to
``events/<step>/<host>-<rank>.jsonl`` line by line: ``start``, ``enter`` and ``phase`` (name, seconds) around start-up,
what the probe records, ``error`` (kind, type, message, traceback), ``collectives`` when the launcher asks where the
rank is, and ``end``. A rank without an ``end`` event did not finish, whatever its exit code says.
"""

from __future__ import annotations

import os
import platform
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddaudit import flightrecorder, packs
from ddaudit.context import ProbeContext
from ddaudit.errors import LaunchProblem, PackProblem, Problem, RunbookProblem
from ddaudit.evidence.events import EventWriter
from ddaudit.network import choose_interface, clock_id
from ddaudit.redact import learn
from ddaudit.registry import ProbeSpec
from ddaudit.runbook.model import Plan, PlannedStep

__all__ = ["FINISHED", "RELEASE", "REPORT", "Order", "Store", "WorkerExit", "main"]

#: Bytes on a rank's control socket. Launcher to rank: say where you are; leave now. Rank to launcher: I finished.
REPORT, RELEASE, FINISHED = b"r", b"x", b"f"

MESSAGE_CHARS = 4_000
TRACEBACK_CHARS = 20_000
#: Freed before an error is reported, so that a rank that ran out of memory can still say so.
RESERVE_BYTES = 4 << 20


class WorkerExit(IntEnum):
    """Exit codes by which a rank tells its launcher how it ended, beside the probe's own ``sys.exit`` codes."""

    FINISHED = 0
    ERROR = 65
    PROBLEM = 66
    NO_EVENTS = 67


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Store(_Strict):
    """Where ranks meet: a TCPStore on ``host:port``. ``listen_fd`` is its bound socket, in rank 0 only. ``interface``
    is the network interface of this host that leads to the others; None where all ranks are of one host."""

    host: str
    port: int
    listen_fd: int | None = None
    interface: str | None = None


class Order(_Strict):
    """What one rank is told. ``step`` carries resolved parameters; the plan adds device, seed and packs.

    ``folder`` names the step's folder below ``events/``, ``logs/`` and ``scratch/``: the step's id, or an attempt's.
    ``deadline`` is ``time.monotonic()`` (one clock for all processes of a host) at which the launcher ends the step.
    """

    run_dir: Path
    plan: Path
    step: PlannedStep
    folder: str
    host: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    deadline: float
    store: Store | None = None
    scratch_root: Path | None = None
    """The run folder whose ``scratch`` all hosts share; None: each host has its own."""
    home: Path | None = None
    """The folder on this host that takes what the rank writes, where the run folder may be elsewhere."""
    facts: Mapping[str, Any] = Field(default_factory=dict)
    secrets: tuple[str, ...] = Field((), repr=False)
    """Values that no event may hold; told over the socket and never written."""

    @property
    def name(self) -> str:
        """``<host>-<rank>``, the stem of this rank's files."""
        return f"{self.host}-{self.rank}"

    @property
    def events_path(self) -> Path:
        return (self.home or self.run_dir) / "events" / self.folder / f"{self.name}.jsonl"

    @property
    def log_path(self) -> Path:
        return (self.home or self.run_dir) / "logs" / self.folder / f"{self.name}.log"

    @property
    def stack_path(self) -> Path:
        return self.log_path.with_suffix(".stack")

    @property
    def scratch(self) -> Path:
        return (self.scratch_root or self.run_dir) / "scratch" / self.folder

    def make_folders(self) -> None:
        """Makes the step's folders, one level at a time: a run folder that was removed must not come back."""
        for folder in (self.events_path.parent, self.log_path.parent, self.scratch):
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)


def main(order: Order, control: socket.socket) -> int:
    """Runs the order to its end and returns the exit code; never raises.

    A rank that finished waits for the launcher's word before it leaves: one that left early would break its peers'
    connections, and the true culprit would hide among "connection closed by peer" errors.
    """
    reserve = bytearray(RESERVE_BYTES)
    learn(order.secrets)
    try:
        events = EventWriter(order.events_path)
        link = _Link(control, events)
        try:
            _run(order, events)
            events.emit("end")
        except BaseException as error:
            del reserve
            return _report(error, events)
        link.finish()
    except OSError as error:
        # A full disk, a read-only or a vanished run folder: nothing this rank measures can be kept.
        print(f"ddaudit: cannot write events: {error}", file=sys.stderr)  # noqa: T201 - the rank's own log
        return WorkerExit.NO_EVENTS
    return WorkerExit.FINISHED


def _run(order: Order, events: EventWriter) -> None:
    """Loads the probe, joins the process group where the probe needs one, and runs it."""
    torch = sys.modules.get("torch")
    events.emit(
        "start",
        host=order.host,
        rank=order.rank,
        world_size=order.world_size,
        pid=os.getpid(),
        python=platform.python_version(),
        torch=getattr(torch, "__version__", None),
        main_thread=f"{threading.get_ident():#018x}",
        clock=clock_id(),
    )
    with _phase(events, "load"):
        plan = Plan.model_validate_json(order.plan.read_text("utf-8"))
        spec = _find_probe(plan, order)
        params = _params(spec, order)
    context = ProbeContext(
        step=order.step.id,
        rank=order.rank,
        world_size=order.world_size,
        local_rank=order.local_rank,
        host=order.host,
        device=plan.device,
        run_dir=order.run_dir,
        scratch=order.scratch,
        events=events,
        deadline=order.deadline,
        seed=plan.seed,
        facts=order.facts,
        packs=tuple(str(p) for p in plan.packs),
    )
    if spec.where == "ranks":
        _join(order, context)
    with _phase(events, "probe"):
        spec.function(context, params)


def _find_probe(plan: Plan, order: Order) -> ProbeSpec:
    loaded = packs.load(plan.packs, entries=False, environment=False, parts=("probes",))
    name = order.step.probe or ""
    if name not in loaded.registry.probes and loaded.failures:
        broken = loaded.failures[0]
        raise PackProblem(f"no probe {name!r}, and a pack did not import: {broken.error}", where=broken.file)
    spec = loaded.registry.probe(name)
    if spec.where != "ranks" and order.world_size != 1:
        raise RunbookProblem(
            f"probe {name!r} runs once per host, the step asks for {order.world_size} ranks",
            where=order.step.source,
            expected="nproc = 1",
        )
    return spec


def _params(spec: ProbeSpec, order: Order) -> BaseModel:
    try:
        return spec.params.model_validate(dict(order.step.params))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        what = f"parameter {key!r} of probe {spec.name!r}: {first['msg']}"
        raise RunbookProblem(what, where=order.step.source) from None


@contextmanager
def _phase(events: EventWriter, name: str) -> Iterator[None]:
    """Tells where the rank is (``enter``), then how long it took (``phase``)."""
    events.emit("enter", name=name)
    began = time.perf_counter()
    yield
    events.emit("phase", name=name, seconds=time.perf_counter() - began)


def _join(order: Order, context: ProbeContext) -> None:
    """Makes this process a rank: threads, seeds, device, process group, and one collective through every pair."""
    if order.store is None:
        raise LaunchProblem("the step's probe runs on ranks, but the launcher gave no place to meet")
    # Read by libtorch when the first process group is made, so setting them after the import is early enough.
    flightrecorder.switch_on()
    choose_interface(order.store.host, order.store.interface, order.host)
    with _phase(context.events, "import"):
        import torch
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(max(1, cores // order.local_world_size))
    _seed(context.seed)
    _claim_device(context)
    with _phase(context.events, "rendezvous"):
        _init_group(order.store, context, timeout_s=order.step.timeout_s)
    with _phase(context.events, "first-collective"):
        torch.distributed.all_reduce(torch.zeros(1, device=context.device))


def _seed(seed: int) -> None:
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _claim_device(context: ProbeContext) -> None:
    import torch

    if context.device != "cuda":
        return
    if context.local_rank >= torch.cuda.device_count():
        raise LaunchProblem(
            f"rank {context.rank} has no GPU: {torch.cuda.device_count()} visible, local rank {context.local_rank}",
            where=context.host,
            fix="lower nproc, or run on the CPU with `--device cpu`",
        )
    torch.cuda.set_device(context.local_rank)


def _init_group(store: Store, context: ProbeContext, timeout_s: float) -> None:
    """Joins on the launcher's TCPStore. The timeout is the step's: a backend's default of 30 minutes outlives it."""
    from datetime import timedelta

    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    timeout = timedelta(seconds=timeout_s)
    meeting = TCPStore(
        store.host,
        store.port,
        context.world_size,
        is_master=context.rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=store.listen_fd,
    )
    dist.init_process_group(
        "nccl" if context.device == "cuda" else "gloo",
        store=meeting,
        rank=context.rank,
        world_size=context.world_size,
        timeout=timeout,
    )


def _report(error: BaseException, events: EventWriter) -> int:
    """Writes the ``error`` event (last, so that it can be found at the end of the file) and chooses the exit code."""
    traceback.print_exception(error)
    _emit_position(events)
    kind = "problem" if isinstance(error, Problem) else "error"
    code = WorkerExit.PROBLEM if isinstance(error, Problem) else WorkerExit.ERROR
    events.emit(
        "error",
        kind=kind,
        type=type(error).__name__,
        message=str(error)[:MESSAGE_CHARS],
        traceback="".join(traceback.format_exception(error))[-TRACEBACK_CHARS:],
    )
    if isinstance(error, SystemExit) and isinstance(error.code, int) and 0 < error.code < 256:
        return error.code
    return code


def _emit_position(events: EventWriter) -> None:
    """Says where this rank stands; a Flight Recorder that cannot be read is said too, and never ends the rank."""
    try:
        groups, unavailable = flightrecorder.position(), None
    except (RuntimeError, AttributeError, LookupError, TypeError, ValueError, MemoryError) as error:
        groups, unavailable = {}, f"{type(error).__name__}: {error}"[:MESSAGE_CHARS]
    events.emit("collectives", groups=groups, unavailable=unavailable)


class _Link:
    """The rank's end of its control socket, served by a thread that works while the main thread is stuck in C++."""

    def __init__(self, control: socket.socket, events: EventWriter) -> None:
        self._control = control
        self._events = events
        self._released = threading.Event()
        threading.Thread(target=self._serve, name="ddaudit-link", daemon=True).start()

    def finish(self) -> None:
        """Says that this rank finished and waits until all have (the launcher ends the wait at the deadline)."""
        self._control.sendall(FINISHED)
        self._released.wait()

    def _serve(self) -> None:
        while word := self._control.recv(1):
            if word == REPORT:
                try:
                    _emit_position(self._events)
                except OSError as error:
                    print(f"ddaudit: cannot report: {error}", file=sys.stderr)  # noqa: T201 - the rank's own log
            elif word == RELEASE:
                self._released.set()
        if not self._released.is_set():
            # The launcher is gone. Its parent-death signal should have ended us; the group takes our children along.
            os.killpg(os.getpgid(0), signal.SIGKILL)
