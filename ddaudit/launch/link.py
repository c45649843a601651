"""The launcher's end of the forkserver: starts it, talks to it, ends it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ddaudit.errors import LaunchProblem
from ddaudit.launch.states import Sample, sample

__all__ = ["Link", "ServerGone", "ServerLink"]

CLOSE_WAIT_S = 3.0


class ServerGone(Exception):
    """The forkserver died; by its death the kernel killed every rank."""


class Link(Protocol):
    """What drives a step: one host's server, or the servers of several hosts."""

    def send(self, op: str, **fields: Any) -> None: ...
    def receive(self, timeout_s: float) -> list[dict[str, Any]]: ...
    def sample(self, pids: Mapping[int, int]) -> dict[int, Sample | None]: ...


class ServerLink:
    """One forkserver process and the JSON lines spoken with it.

    Create it in a thread that outlives it (the main thread): the kernel ends the server with the thread that made it.
    """

    def __init__(self, log: Path, *, preload: Sequence[str]) -> None:
        self.log = log
        self._inbox = b""
        ours, theirs = socket.socketpair()
        self._socket = ours
        self.began = time.time()
        command = [sys.executable, "-P", "-m", "ddaudit.launch.server", "--control-fd", str(theirs.fileno())]
        command += ["--parent", str(os.getpid()), "--preload", *preload]
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output, theirs:
                # Its own group: Ctrl-C in a terminal reaches ddaudit alone, which then ends the ranks in order.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs.fileno()],
                    process_group=0,
                    env=_environment(),
                )
        except OSError as error:
            ours.close()
            raise LaunchProblem(f"cannot start the launcher's server: {error.strerror}", where=str(log)) from error
        self._selector = selectors.DefaultSelector()
        self._selector.register(ours, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def sample(self, pids: Mapping[int, int]) -> dict[int, Sample | None]:
        """Looks once at the process of each rank (rank -> pid)."""
        return {rank: sample(pid) for rank, pid in pids.items()}

    def watch(self, fd: int) -> None:
        """Adds a non-blocking pipe whose bytes (thrown away) end :meth:`receive` early."""
        self._selector.register(fd, selectors.EVENT_READ)

    def send(self, op: str, **fields: Any) -> None:
        try:
            self._socket.sendall((json.dumps({"op": op, **fields}) + "\n").encode())
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ServerGone(self._obituary()) from error

    def receive(self, timeout_s: float) -> list[dict[str, Any]]:
        """Events that have arrived; waits up to ``timeout_s`` for the first.

        Raises:
            ServerGone: the server closed its end.
        """
        ready: set[Any] = {key.fileobj for key, _ in self._selector.select(timeout_s)}
        for fd in ready - {self._socket}:
            os.read(fd, 4096)
        return self.read() if self._socket in ready else []

    def read(self) -> list[dict[str, Any]]:
        """Events that have arrived; call it when the socket is readable. Raises ServerGone as :meth:`receive`."""
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            raise ServerGone(self._obituary())
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Ends the server and with it every rank; returns when both are gone."""
        self._selector.close()
        self._socket.close()
        try:
            self._process.wait(CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _obituary(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the launcher's server closed its connection"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"the launcher's server {how}; its output is in {self.log}"


def _environment() -> dict[str, str]:
    """Ours, plus the folder that ddaudit was imported from, unless it is installed: ``-P`` keeps the working folder
    out of the server's path, where a file called ``torch.py`` would be imported for torch."""
    home = str(Path(__file__).resolve().parents[2])
    known = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    installed = home in (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"])
    path = known if installed or home in known else [home, *known]
    return {**os.environ, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})}
