"""Runs steps on this machine: one forkserver per run, fresh rank processes per step."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ddaudit.errors import LaunchProblem
from ddaudit.evidence.events import EventWriter
from ddaudit.evidence.launch import LaunchFacts, RankOutcome
from ddaudit.launch.link import Link, ServerGone, ServerLink
from ddaudit.launch.stall import answering
from ddaudit.launch.steprun import TICK_S, Progress, StepRun
from ddaudit.redact import known_secrets, redact_text
from ddaudit.runbook.model import PlannedStep
from ddaudit.worker import Order

__all__ = ["TRAINING", "LocalLauncher", "host_name"]

#: `import torch` took 2 s quiet and 30 s under load (measured); a cold network file system takes minutes.
READY_S = 600.0
#: What every training rank would otherwise import for itself, at 2 s of CPU time a rank: DTensor, checkpoints, the
#: pipeline runtime, and the compiler front end that the first optimizer of a process pulls in. Modules only: running
#: an operation here would start thread pools that do not survive a fork.
TRAINING = (
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.distributed.optim",
    "ddaudit.training.loop",
)


def host_name() -> str:
    """This host's name as files and findings carry it: Slurm's node name where set (several nodes may share a host
    name in tests and containers), reduced to characters that are safe in a file name."""
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "_", redact_text(name))[:60] or "localhost"


def _silent(_: Progress) -> None:
    return None


class LocalLauncher:
    """Starts ranks for one run folder. A context manager; use it from one thread that lives as long as it does.

    With ``torch`` the server starts importing it and ``preload`` at once, in the background; steps without torch need
    neither. A module of ``preload`` that does not import is left to the ranks; torch itself must.
    """

    by_host = False
    """Whether events come to the run folder in one file a host."""

    def __init__(self, run_dir: Path, *, torch: bool, device: str = "cpu", preload: Sequence[str] = TRAINING) -> None:
        if not run_dir.is_dir():
            raise LaunchProblem("the run folder does not exist", where=str(run_dir))
        self.run_dir = run_dir.resolve()
        self.device = device
        self.host = host_name()
        self._preload = ("torch", *preload) if torch else ()
        self._interrupted = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._link: ServerLink | None = None
        self._ready: dict[str, Any] | None = None
        self._server_s = 0.0
        self._start_server()

    def interrupt(self) -> None:
        """Ends the running step (and refuses further ones). Safe to call from a signal handler."""
        self._interrupted = True
        try:
            os.write(self._wake_write, b"i")
        except (BlockingIOError, OSError):
            return  # already awake, or closed

    def run_step(
        self,
        step: PlannedStep,
        plan_path: Path,
        *,
        on_progress: Callable[[Progress], None] = _silent,
        folder: str | None = None,
        facts: Mapping[str, Any] | None = None,
        everywhere: bool = False,
    ) -> LaunchFacts:
        """Runs one step's ranks and blocks until no process of it is left; ``everywhere``: one process on each host.

        Ends when all ranks finished, shortly after one failed, at ``step.timeout_s``, or on :meth:`interrupt`. The
        facts also go to ``events/<folder>/launcher.jsonl``. ``step.params`` must be resolved; ``folder`` (default: the
        step's id) names the attempt's folder.

        Raises:
            LaunchProblem: no rank could be started, the server died, or the run folder cannot be written.
        """
        name = folder or step.id
        if not self.run_dir.is_dir():
            raise LaunchProblem("the run folder is gone", where=str(self.run_dir))
        ready = self._ready_link(step, on_progress)
        link = None if ready is None else self._joined(ready, step, on_progress, everywhere)
        orders = self._orders(step, plan_path, name, facts or {}, everywhere)
        if link is None:
            return self._never_started(orders)
        found = self._drive(link, orders, on_progress)
        self._record(name, found)
        return found

    def _joined(
        self, link: ServerLink, step: PlannedStep, on_progress: Callable[[Progress], None], everywhere: bool
    ) -> Link | None:
        """What the step is driven over, once every host that it needs is there; None when interrupted meanwhile."""
        return link

    def _clock_offsets_s(self) -> dict[str, float]:
        """By other host, what its wall clock is ahead of this one's."""
        return {}

    def _drive(self, link: Link, orders: list[Order], on_progress: Callable[[Progress], None]) -> LaunchFacts:
        """Runs the orders; whatever ends it early, such as an exception out of a callback, ends the ranks too."""
        run = StepRun(
            link,
            orders,
            interrupted=lambda: self._interrupted,
            on_progress=on_progress,
            clock_offsets_s=self._clock_offsets_s(),
            by_host=self.by_host,
        )
        whole = False
        try:
            timed_out, interrupted = run.run()
            whole = True
        except ServerGone as error:
            raise LaunchProblem(str(error), where=self.host, fix="look for memory shortage, then run again") from error
        finally:
            if not whole:
                self._drop_server()
        assert self._ready is not None
        return run.facts(
            timed_out=timed_out,
            interrupted=interrupted,
            server_s=self._server_s,
            preloaded=self._ready["torch"] is not None,
        )

    def close(self) -> None:
        """Ends the server and every rank. Idempotent."""
        self._drop_server()
        for fd in (self._wake_read, self._wake_write):
            if fd >= 0:
                os.close(fd)
        self._wake_read = self._wake_write = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _start_server(self) -> ServerLink:
        with answering(self.run_dir):
            self._link = ServerLink(self.run_dir / "logs" / "launcher.log", preload=self._preload)
        self._link.watch(self._wake_read)
        self._ready = None
        return self._link

    def _drop_server(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._ready = None, None

    def _ready_link(self, step: PlannedStep, on_progress: Callable[[Progress], None]) -> ServerLink | None:
        """The server, once it said ``ready`` (a new one if the last died); None when interrupted meanwhile."""
        link = self._link or self._start_server()
        while self._ready is None or self._interrupted:
            waited_s = time.time() - link.began
            if self._interrupted:
                return None
            if waited_s > READY_S:
                self._drop_server()
                raise LaunchProblem(f"torch was not imported within {READY_S:.0f} s", where=self.host)
            on_progress(Progress(step.id, 0.0, step.timeout_s, phase="starting"))
            try:
                events = link.receive(TICK_S)
            except ServerGone as error:
                self._drop_server()
                raise LaunchProblem(str(error), where=self.host) from error
            self._ready = next((e for e in events if e["event"] == "ready"), None)
            self._server_s = self._ready["t"] - link.began if self._ready else 0.0
        if "torch" in self._ready["missing"]:
            raise LaunchProblem(
                f"torch cannot be imported: {self._ready['missing']['torch']}",
                where=self.host,
                fix="run `python -c 'import torch'` in this environment",
            )
        return link

    def _orders(
        self, step: PlannedStep, plan: Path, folder: str, facts: Mapping[str, Any], everywhere: bool
    ) -> list[Order]:
        deadline = time.monotonic() + step.timeout_s
        placed = self._placed(step, everywhere)
        return [
            Order(
                run_dir=self.run_dir,
                plan=plan.resolve(),
                step=step,
                folder=folder,
                host=host,
                rank=rank,
                world_size=step.nproc,
                local_rank=0 if everywhere else rank - placed.index(host),
                local_world_size=placed.count(host),
                deadline=deadline,
                facts=facts,
                secrets=known_secrets() if host == self.host else (),
            )
            for rank, host in enumerate(placed)
        ]

    def _placed(self, step: PlannedStep, everywhere: bool) -> list[str]:
        """The host of each rank; a host's ranks follow each other."""
        return [self.host] * step.nproc

    def _never_started(self, orders: list[Order]) -> LaunchFacts:
        return LaunchFacts(
            world_size=len(orders),
            host=self.host,
            folder=orders[0].folder,
            timeout_s=orders[0].step.timeout_s,
            seconds=0.0,
            interrupted=True,
            ranks=tuple(RankOutcome(rank=o.rank, host=self.host, state="never-started") for o in orders),
        )

    def _record(self, folder: str, facts: LaunchFacts) -> None:
        if not self.run_dir.is_dir():  # do not bring a removed folder back to life with one file in it
            raise LaunchProblem("the run folder is gone", where=str(self.run_dir))
        try:
            launcher = self.run_dir / "events" / folder / "launcher.jsonl"
            with answering(self.run_dir), EventWriter(launcher) as events:
                events.emit_evidence(facts)
        except OSError as error:
            raise LaunchProblem(f"cannot write to the run folder: {error.strerror}", where=str(self.run_dir)) from error
