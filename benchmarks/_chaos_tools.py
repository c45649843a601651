"""What breaks things in ``benchmarks/chaos.py``: mounts, packet filters, a clock that is wrong; and the processes of a
run as forks."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import ddaudit.api
import ddaudit.engine.session
import ddaudit.launch.agent
import ddaudit.report  # noqa: F401 - imported here, so that forks need not
from tests.cluster import netns
from tests.engine.forks import Fork
from tests.launch.drive import session_members

__all__ = ["Member", "Place", "Storage", "cut"]

ROOT = Path(__file__).resolve().parents[1]
CLONE_NEWNET = 0x40000000

SIZE_BYTES = 24 << 20
#: Python imports it at start; the ranks of a host are forks of a process that did.
WRONG_CLOCK = """import os, time
_real, _ahead_s = time.time, float(os.environ["DDAUDIT_CHAOS_AHEAD_S"])
time.time = lambda: _real() + _ahead_s
"""


@dataclass(frozen=True)
class Place:
    """Where a process of a run believes to be: the name of its host, its network, and how wrong its clock is."""

    host: str = "node0"
    namespace: str | None = None
    ahead_s: float = 0.0

    def enter(self) -> None:
        os.environ.update(SLURMD_NODENAME=self.host, OMP_NUM_THREADS="1")
        if self.namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            there = os.open(f"/var/run/netns/{self.namespace}", os.O_RDONLY)
            assert libc.setns(there, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        if self.ahead_s:
            self._set_clock()

    def _set_clock(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="clock-"))
        (folder / "sitecustomize.py").write_text(WRONG_CLOCK)
        os.environ["PYTHONPATH"] = f"{folder}:{ROOT}"
        os.environ["DDAUDIT_CHAOS_AHEAD_S"] = f"{self.ahead_s:.1f}"
        real = time.time
        time.time = lambda: real() + self.ahead_s


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

    def poll(self) -> int | None:
        if self.code is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.code = os.waitstatus_to_exitcode(ended[1])
        return self.code

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


class Storage:
    """A small file system of its own for the run folders, which can fill up, go read-only, or hang."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._undo: list[list[str]] = []
        self._ballast: Path | None = None
        self._pipe: Path | None = None

    @contextmanager
    def mounted(self) -> Iterator[None]:
        self.root.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "none", str(self.root)], check=True)
        try:
            yield
        finally:
            self.heal()
            subprocess.run(["umount", "-l", str(self.root)], check=True)

    def break_(self, how: str, run_dir: Path) -> None:
        {"full": self._fill, "read-only": self._freeze, "hangs": self._hang}[how](run_dir)

    def _fill(self, run_dir: Path) -> None:
        self._ballast = self.root / ".ballast"
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def _freeze(self, run_dir: Path) -> None:
        # A mount with files open for writing cannot be made read-only, a second one over it can.
        subprocess.run(["mount", "--bind", str(run_dir), str(run_dir)], check=True)
        self._undo.append(["umount", "-l", str(run_dir)])
        subprocess.run(["mount", "-o", "remount,ro,bind", str(run_dir)], check=True)

    def _hang(self, run_dir: Path) -> None:
        """Who opens a pipe that nobody reads waits for ever, as on a server that went away; but it can be killed."""
        for name in ("node1.jsonl", "node1-1.jsonl"):
            path = run_dir / "events" / "second" / name
            if path.exists():
                path.rename(path.with_suffix(".real"))
                os.mkfifo(path)
                self._pipe = path

    def heal(self) -> None:
        while self._undo:
            subprocess.run(self._undo.pop(), check=True)
        if self._ballast is not None:
            self._ballast.unlink(missing_ok=True)
        if self._pipe is not None:
            self._pipe.with_suffix(".real").replace(self._pipe)
        self._ballast = self._pipe = None
