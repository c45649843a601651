"""The forkserver: a small process with torch already imported that forks one process per rank.

``python -m ddaudit.launch.server --control-fd N --parent PID --preload [MODULE ...]`` speaks JSON lines over an
inherited socket. Requests: ``run`` (orders), ``where`` (every living rank writes its collective position), ``report``
(its stack too), ``kill``, ``exit``. Events: ``ready``, ``started``, ``finished``, ``ended``, ``failed``, ``over`` (all
processes of the step are gone).

It is not :mod:`multiprocessing`'s forkserver, which imports the user's main module again, pickles its orders and hides
a failed preload. The end of the socket, or SIGTERM by the kernel when ddaudit dies, ends the server and all ranks.
CUDA and NVML are not touched here: a forked child could not use them afterwards.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from ddaudit import worker
from ddaudit.launch import process
from ddaudit.worker import FINISHED, RELEASE, REPORT, Order, Store, WorkerExit

__all__ = ["STACK_SIGNAL", "main"]

#: Makes a rank write all its Python stacks; faulthandler does it in C, so a rank stuck with the GIL answers as well.
STACK_SIGNAL = signal.SIGUSR2
#: Added to a rank's OOM score: under memory pressure the kernel should take a rank, not the process that reports it.
OOM_SCORE_ADJ = 500
IGNORED = (signal.SIGINT, signal.SIGHUP)


@dataclass
class _Rank:
    rank: int
    pid: int
    control: socket.socket
    finished: bool = False


class Server:
    """One thread, one selector: requests, dying children and finishing ranks."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.ranks: dict[int, _Rank] = {}
        self.running = False
        self.failed = False
        self._serving = True
        self._inbox = b""
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serves until the launcher hangs up, says ``exit``, or dies; leaves no process behind."""
        self._catch_signals()
        self._selector.register(self.control, selectors.EVENT_READ, self._on_request)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_wake)
        try:
            while self._serving:
                for key, _ in self._selector.select():
                    key.data(key.fileobj)
        finally:
            self._end_everything()

    def say(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "t": time.time(), **fields}) + "\n"
        try:
            self.control.sendall(line.encode())
        except (BrokenPipeError, ConnectionResetError):
            self._serving = False  # the launcher is gone

    def _catch_signals(self) -> None:
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(signum, lambda *_: None)
        for signum in IGNORED:
            signal.signal(signum, signal.SIG_IGN)

    def _on_wake(self, wake: socket.socket) -> None:
        if signal.SIGTERM in wake.recv(4096):
            self._serving = False
        self._reap()

    def _on_request(self, control: socket.socket) -> None:
        data = control.recv(1 << 20)
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        requests = [json.loads(line) for line in lines]
        for request in requests:
            if request["op"] == "run":
                self._run(request)
            elif request["op"] in ("where", "report"):
                self._ask(stacks=request["op"] == "report")
            elif request["op"] == "kill":
                self._kill_all()
        if not data or any(request["op"] == "exit" for request in requests):
            self._serving = False

    def _run(self, request: dict[str, Any]) -> None:
        """Forks the ranks of one step. All meet at a loopback socket that is bound here, before the fork, to a port
        the kernel picks: it cannot be taken by anybody else in between, as a port merely chosen could."""
        orders = [Order.model_validate(order) for order in request["orders"]]
        torch = sys.modules.get("torch")
        assert torch is None or not torch.cuda.is_initialized(), "CUDA was initialised before the fork"
        self.running, self.failed = True, False
        with socket.create_server(("127.0.0.1", 0), backlog=max(16, 2 * len(orders))) as meeting:
            for order in orders:
                fd = meeting.fileno() if order.rank == 0 else None
                store = Store(host="127.0.0.1", port=meeting.getsockname()[1], listen_fd=fd)
                try:
                    self._fork(order.model_copy(update={"store": store}), meeting)
                except OSError as error:
                    self.say("failed", error=f"cannot start rank {order.rank}: {error.strerror}")
                    self._kill_all()
                    break
        self._check_over()

    def _fork(self, order: Order, meeting: socket.socket) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_rank(order, theirs, ours, meeting, parent)
        theirs.close()
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the child does it too: whoever comes first, nobody sees it in our group
        self.ranks[pid] = _Rank(order.rank, pid, ours)
        self._selector.register(ours, selectors.EVENT_READ, lambda _, pid=pid: self._on_rank(pid))
        self.say("started", rank=order.rank, pid=pid)

    def _become_rank(
        self, order: Order, control: socket.socket, ours: socket.socket, meeting: socket.socket, parent: int
    ) -> NoReturn:
        """The child's side of a fork: sheds everything of the server, then runs the order. Never returns."""
        code: int = WorkerExit.ERROR
        try:
            _shed_signals()
            os.setpgid(0, 0)
            process.die_with_parent(parent)
            process.children_die_with_me()
            self._shed_sockets([ours] if order.rank == 0 else [ours, meeting])
            try:
                _redirect(order)
            except OSError as error:
                print(f"ddaudit: cannot write the rank's log: {error}", file=sys.stderr)  # noqa: T201 - server log
                os._exit(WorkerExit.NO_EVENTS)
            code = worker.main(order, control)
        except BaseException:
            traceback.print_exc()
        finally:
            # No interpreter shutdown: it would join loader processes and threads that may be stuck.
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (OSError, ValueError):
                    code = code or WorkerExit.NO_EVENTS
            os._exit(code)

    def _shed_sockets(self, extra: list[socket.socket]) -> None:
        """Closes what a child inherited: a peer's socket kept open would hide that the server is gone."""
        for other in (self.control, self._wake_read, self._wake_write, *(r.control for r in self.ranks.values())):
            other.close()
        for other in extra:
            other.close()
        self._selector.close()

    def _on_rank(self, pid: int) -> None:
        if (rank := self.ranks.get(pid)) is None:
            return  # reaped in this very round
        word = _word(rank)
        if not word:
            self._selector.unregister(rank.control)
        elif word == FINISHED:
            rank.finished = True
            self.say("finished", rank=rank.rank)
            if not self.failed and all(r.finished for r in self.ranks.values()):
                for other in self.ranks.values():
                    _tell(other, RELEASE)

    def _ask(self, *, stacks: bool) -> None:
        for rank in self.ranks.values():
            if stacks:
                os.kill(rank.pid, STACK_SIGNAL)  # still a child of ours, so the pid cannot be somebody else's
            _tell(rank, REPORT)

    def _kill_all(self) -> None:
        """Freezes all ranks first, so that none gets to fail over a peer that was killed a moment before it."""
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.ranks:
                process.kill_group(pid, signum)
                os.kill(pid, signum)  # in case it left its group

    def _reap(self) -> None:
        """Collects ended children. A rank's group is killed while its zombie still holds the group's id."""
        while (pid := _dead_child()) is not None:
            if pid in self.ranks:
                process.kill_group(pid)
            _, status, usage = os.wait4(pid, 0)
            if rank := self.ranks.pop(pid, None):
                self._bury(rank, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
        self._check_over()

    def _bury(self, rank: _Rank, code: int, cpu_s: float, max_rss_kib: int) -> None:
        if rank.control.fileno() in self._selector.get_map():
            rank.finished = rank.finished or _word(rank) == FINISHED
            self._selector.unregister(rank.control)
        rank.control.close()
        self.failed = self.failed or code != 0 or not rank.finished
        self.say(
            "ended",
            rank=rank.rank,
            code=code if code >= 0 else None,
            signal=signal.Signals(-code).name if code < 0 else None,
            finished=rank.finished,
            cpu_s=cpu_s,
            max_rss_bytes=max_rss_kib * 1024,
        )

    def _check_over(self) -> None:
        """Says ``over`` once the step's ranks and everything they left behind (adopted by us) are gone."""
        if not self.running or self.ranks:
            return
        left = process.strays(os.getpid())
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if not left:
            self.running = False
            self.say("over")

    def _end_everything(self) -> None:
        """Kills all groups and strays, and waits for them so that none is left as an orphan."""
        self._kill_all()
        while left := process.strays(os.getpid()):
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _dead_child() -> int | None:
    """Pid of a child that ended and is not yet collected; it stays a zombie, so the pid stays its own."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return info.si_pid if info else None


def _word(rank: _Rank) -> bytes:
    """What the rank says; empty when it says nothing or closed its end."""
    try:
        return rank.control.recv(1, socket.MSG_DONTWAIT)
    except (BlockingIOError, ConnectionError):
        return b""


def _tell(rank: _Rank, word: bytes) -> None:
    try:
        rank.control.send(word, socket.MSG_DONTWAIT)
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
        return  # it is gone or does not listen; its end is reported by the reaper


def _shed_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGCHLD, signal.SIGTERM, *IGNORED):
        signal.signal(signum, signal.SIG_DFL)


def _redirect(order: Order) -> None:
    """Sends the rank's output to its log and its stacks, asked for or at a crash, to its stack file."""
    order.make_folders()
    log = os.open(order.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    stacks = order.stack_path.open("a", encoding="utf-8")
    faulthandler.enable(stacks)
    faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(str(OOM_SCORE_ADJ))
    except OSError:
        pass  # containers may forbid it; then the kernel chooses by size alone


def _preload(names: list[str]) -> dict[str, Any]:
    """Imports torch and the named modules. A failure is told: a forkserver that hides it makes every rank slow, without
    a word. Without torch no rank can run; any other module that fails is left to the ranks that want it."""
    began = time.perf_counter()
    missing: dict[str, str] = {}
    for name in ["torch", *names] if names else []:
        try:
            importlib.import_module(name)
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
    version = getattr(sys.modules.get("torch"), "__version__", None) if "torch" not in missing else None
    return {"torch": version, "missing": missing, "seconds": time.perf_counter() - began}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ddaudit.launch.server")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--preload", nargs="*", default=[], help="modules that ranks find imported, torch first")
    options = parser.parse_args(argv)
    process.die_with_parent(options.parent, signal.SIGTERM)
    process.adopt_orphans()
    server = Server(socket.socket(fileno=options.control_fd))
    # Python 3.12 warns about forking with threads alive. Ours are idle BLAS threads, which libraries handle at fork.
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    loaded = _preload(options.preload)
    # Shared objects stay shared: without this the first collection in a child touches, so copies, every page.
    gc.collect()
    gc.freeze()
    server.say("ready", **loaded)
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
