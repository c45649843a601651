"""The forkserver: a small process with torch already imported that forks one process per rank.

``python -m ddaudit.launch.server --control-fd N --parent PID --preload [MODULE ...]`` speaks JSON lines over an
inherited socket. Requests: ``run`` (orders), ``where`` (every living rank writes its collective position), ``report``
(its stack too), ``release``, ``kill``, ``exit``. Events: ``ready``, ``meeting``, ``started``, ``finished``, ``ended``,
``failed``, ``over`` (all processes of the step are gone). A ``run`` whose ranks have peers on other hosts carries
``hold`` (ranks that finished stay until ``release``) and either ``bind``, the address of this host at which all ranks
meet (its port is told by ``meeting``), or the ``store`` that is bound elsewhere already.

It is not :mod:`multiprocessing`'s forkserver, which imports the user's main module again, pickles its orders and hides
a failed preload. The end of the socket, or SIGUSR1 by the kernel when ddaudit dies, ends the server and all ranks.
CUDA and NVML are not touched here: a forked child could not use them afterwards.
"""

from __future__ import annotations

import argparse
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
from ddaudit.launch.forked import STACK_SIGNAL, redirect, shed_signals
from ddaudit.worker import FINISHED, RELEASE, REPORT, Order, Store, WorkerExit

__all__ = ["main"]

#: Told to ddaudit alone, which ends the ranks in order; a scheduler sends TERM to every process of a job at once.
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
#: What the kernel sends when ddaudit dies.
PARENT_DIED = signal.SIGUSR1


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
        self._hold = False
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
        for signum in (signal.SIGCHLD, PARENT_DIED):
            signal.signal(signum, lambda *_: None)
        for signum in IGNORED:
            signal.signal(signum, signal.SIG_IGN)

    def _on_wake(self, wake: socket.socket) -> None:
        if PARENT_DIED in wake.recv(4096):
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
            elif request["op"] == "release":
                self._release()
            elif request["op"] == "kill":
                self._kill_all()
        if not data or any(request["op"] == "exit" for request in requests):
            self._serving = False

    def _run(self, request: dict[str, Any]) -> None:
        """Forks the ranks of one step. All meet at a socket that is bound here, before the fork, to a port the kernel
        picks (it cannot be taken by anybody else in between, as a port merely chosen could), or at another host's."""
        orders = [Order.model_validate(order) for order in request["orders"]]
        torch = sys.modules.get("torch")
        assert torch is None or not torch.cuda.is_initialized(), "CUDA was initialised before the fork"
        self.running, self.failed, self._hold = True, False, bool(request.get("hold"))
        if told := request.get("store"):
            self._fork_all(orders, Store(**told), None)
        elif (meeting := self._meeting(request.get("bind"), max(16, 2 * orders[0].world_size))) is not None:
            with meeting:
                host, port = meeting.getsockname()[:2]
                self._fork_all(orders, Store(host=host, port=port, interface=request.get("interface")), meeting)
        self._check_over()

    def _meeting(self, bind: str | None, backlog: int) -> socket.socket | None:
        """The socket at which the ranks meet, on loopback where all are of this host."""
        address = bind or "127.0.0.1"
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            meeting = socket.create_server((address, 0), family=family, backlog=backlog)
        except OSError as error:
            self.say("failed", error=f"cannot listen on {address}: {error.strerror}")
            return None
        if bind is not None:
            self.say("meeting", host=address, port=meeting.getsockname()[1])
        return meeting

    def _fork_all(self, orders: list[Order], store: Store, meeting: socket.socket | None) -> None:
        for order in orders:
            fd = meeting.fileno() if order.rank == 0 and meeting is not None else None
            mine = store.model_copy(update={"listen_fd": fd})
            try:
                self._fork(order.model_copy(update={"store": mine}), meeting)
            except OSError as error:
                self.say("failed", error=f"cannot start rank {order.rank}: {error.strerror}")
                self._kill_all()
                break

    def _fork(self, order: Order, meeting: socket.socket | None) -> None:
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
        self, order: Order, control: socket.socket, ours: socket.socket, meeting: socket.socket | None, parent: int
    ) -> NoReturn:
        """The child's side of a fork: sheds everything of the server, then runs the order. Never returns."""
        code: int = WorkerExit.ERROR
        try:
            shed_signals((*IGNORED, PARENT_DIED))
            os.setpgid(0, 0)
            process.die_with_parent(parent)
            process.children_die_with_me()
            self._shed_sockets([ours] if order.rank == 0 or meeting is None else [ours, meeting])
            try:
                redirect(order)
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
            if not self._hold and not self.failed and all(r.finished for r in self.ranks.values()):
                self._release()

    def _release(self) -> None:
        for rank in self.ranks.values():
            _tell(rank, RELEASE)

    def _ask(self, *, stacks: bool) -> None:
        for pid in self.ranks if stacks else ():
            os.kill(pid, STACK_SIGNAL)  # still a child of ours, so the pid cannot be somebody else's
        if stacks:
            # The dump walks the frames of all threads without a lock: one that runs meanwhile can crash the rank, and
            # the position wakes one.
            time.sleep(0.1)
        for rank in self.ranks.values():
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
    process.die_with_parent(options.parent, PARENT_DIED)
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
