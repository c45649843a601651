"""The processes of a run of ``benchmarks/chaos.py``, as forks, each at a place: its host's name, network and clock."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

import ddaudit.api
import ddaudit.engine.session
import ddaudit.report  # noqa: F401 - imported here, so that forks need not
from benchmarks._chaos_storage import Storage, hang_with
from ddaudit.launch import agent, link, server
from tests.cluster import netns
from tests.engine.forks import Fork
from tests.launch.drive import session_members

__all__ = ["Member", "Place", "cut"]

CLONE_NEWNET = 0x40000000
#: An agent gives a silent conductor 10 minutes; here less.
SILENCE_S = 12.0


class ForkedServer:
    """Stands for the ``Popen`` of a host's launch server: the same program in a fork, which need not import it all."""

    def __init__(self, command: list[str], *, stdout: IO[bytes], pass_fds: Sequence[int], **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._become(command, stdout.fileno(), pass_fds[0])

    def _become(self, command: list[str], output: int, control: int) -> NoReturn:
        code = 99
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(signum, signal.SIG_DFL)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.closerange(3, control)  # as exec does
            os.closerange(control + 1, 1024)
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
            code = server.main(command[command.index("--control-fd") :])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait(self, timeout_s: float | None = None) -> int:
        until = time.monotonic() + (3600.0 if timeout_s is None else timeout_s)
        while self.returncode is None:
            if (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
                self.returncode = os.waitstatus_to_exitcode(ended[1])
            elif time.monotonic() > until:
                raise subprocess.TimeoutExpired("server", timeout_s or 0.0)
            else:
                time.sleep(0.01)
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Place:
    """Where a process of a run believes to be: the name of its host, its network, and how wrong its clock is."""

    host: str = "node0"
    namespace: str | None = None
    ahead_s: float = 0.0
    tmp: Path | None = None
    storage: Storage | None = None

    def enter(self) -> None:
        os.environ.update(SLURMD_NODENAME=self.host, OMP_NUM_THREADS="1", DDAUDIT_STORAGE_PATIENCE_S="8")
        if self.tmp is not None:
            self.tmp.mkdir(exist_ok=True)
            os.environ["TMPDIR"] = tempfile.tempdir = str(self.tmp)
        if self.storage is not None:
            hang_with(self.storage.root, self.storage.pipe)
        agent.SILENCE_S = SILENCE_S
        if self.namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            there = os.open(f"/var/run/netns/{self.namespace}", os.O_RDONLY)
            assert libc.setns(there, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        if self.ahead_s:
            real, ahead_s = time.time, self.ahead_s
            time.time = lambda: real() + ahead_s
        used = {name: getattr(subprocess, name) for name in ("DEVNULL", "TimeoutExpired")}
        link.subprocess = SimpleNamespace(Popen=ForkedServer, **used)  # type: ignore[attr-defined]


class Member(Fork):
    """``ddaudit ARGV`` at a place, as a fork of this process: it starts without importing everything again."""

    def __init__(self, argv: list[str], folder: Path, place: Place | None = None) -> None:
        super().__init__(argv, folder, (place or Place()).enter, None)

    def wait_for(self, limit_s: float) -> None:
        """Until it has left; ``code`` stays None when it does not."""
        until = time.monotonic() + max(1.0, limit_s)
        while self.code is None and time.monotonic() < until:
            if self.poll() is None:
                time.sleep(0.05)

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.02)
        return int(self.code or 0)

    def poll(self) -> int | None:
        if self.code is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.code = os.waitstatus_to_exitcode(ended[1])
        return self.code

    def kill_if_there(self, signum: int) -> None:
        if self.poll() is None:
            self.kill(signum)

    def end(self) -> None:
        for member in session_members(self.pid):
            with suppress(ProcessLookupError):
                os.kill(int(member.split()[0]), signal.SIGKILL)
        self.wait()


def cut(host: netns.Host, direction: str) -> None:
    """Cuts a host off: what it receives (``in``), what it sends (``out``), or ``both``."""
    if direction == "both":
        host.cut()
    else:
        chain = {"in": "INPUT", "out": "OUTPUT"}[direction]
        host.run("iptables", "-A", chain, "-o" if direction == "out" else "-i", "eth0", "-j", "DROP")
