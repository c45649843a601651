"""Hosts made of network namespaces on one bridge: own interfaces, addresses, host names and packet filters.

Namespaces carry this process's id in their names, so that several test runs do not meet, and :func:`hosts` removes
everything, whatever happened. Needs root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

__all__ = ["Host", "Hosts", "hosts", "missing"]


def missing() -> str | None:
    """Why there can be no namespaces here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None:
        return "needs iproute2"
    probe = subprocess.run(["ip", "netns", "add", f"dda{os.getpid()}x"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", f"dda{os.getpid()}x"], capture_output=True)
    return f"no namespaces here: {probe.stderr.strip()}" if probe.returncode else None


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Host:
    """One namespace. ``address`` is that of ``eth0`` on the bridge."""

    name: str
    namespace: str
    address: str
    port: str
    """The bridge's end of its cable."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """``argv`` inside the namespace, with a host name of its own."""
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.name, *argv]
        return ["ip", "netns", "exec", self.namespace, *inside]

    def start(self, argv: Sequence[str], **more: object) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(argv), text=True, start_new_session=True, **more)  # type: ignore[call-overload, no-any-return]

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            ["ip", "netns", "exec", self.namespace, *argv], check=True, capture_output=True, text=True
        )
        return done.stdout

    def pids(self) -> list[int]:
        told = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True).stdout
        return [int(pid) for pid in told.split()]

    def cap(self, mbit: int) -> None:
        """Caps what this host sends."""
        words = ["dev", "eth0", "root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms"]
        self.run("tc", "qdisc", "replace", *words)

    def lose(self, share: float, *, source: str | None = None) -> None:
        """Drops a share of the packets that arrive, of one sender where named."""
        only = ["-s", source] if source else []
        self.run("iptables", "-A", "INPUT", *only, "-m", "statistic", "--mode", "random", "--probability", f"{share}",
                 "-j", "DROP")  # fmt: skip

    def cut(self) -> None:
        """Pulls the cable."""
        ip("link", "set", self.port, "down")

    def heal(self) -> None:
        """Takes every fault away."""
        for words in (["iptables", "-F"], ["tc", "qdisc", "del", "dev", "eth0", "root"]):
            subprocess.run(["ip", "netns", "exec", self.namespace, *words], capture_output=True)
        with suppress(subprocess.CalledProcessError):
            ip("link", "set", self.port, "up")


@dataclass
class Hosts:
    members: list[Host] = field(default_factory=list)

    def __getitem__(self, index: int) -> Host:
        return self.members[index]

    def __len__(self) -> int:
        return len(self.members)

    def end_all(self) -> None:
        """SIGKILLs whatever still runs inside."""
        for host in self.members:
            for pid in host.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def hosts(count: int, *, tag: str = "") -> Iterator[Hosts]:
    """``count`` namespaces ``10.N.0.1`` and up on one bridge."""
    mark = f"{os.getpid() % 100_000:05d}{tag}"
    bridge, net = f"ddb{mark}", f"10.{77 + os.getpid() % 100}.{len(tag) and ord(tag[0]) % 250}"
    made = Hosts([Host(f"host{i}", f"dda{mark}{i}", f"{net}.{i}", f"ddv{mark}{i}") for i in range(1, count + 1)])
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for host in made.members:
            ip("netns", "add", host.namespace)
            ip("link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            ip("link", "set", host.port, "master", bridge)
            ip("link", "set", host.port, "up")
            ip("-n", host.namespace, "link", "set", "lo", "up")
            ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.namespace, "link", "set", "eth0", "up")
        yield made
    finally:
        made.end_all()
        for host in made.members:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)
            subprocess.run(["ip", "link", "del", host.port], capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)
        for host in made.members:
            Path(f"/var/run/netns/{host.namespace}").unlink(missing_ok=True)


@contextmanager
def relay(
    members: Sequence[Host], delay_ms: float, *, lose: int = 0
) -> Iterator[tuple[list[Host], Callable[[], float]]]:
    """The same hosts on a second network, ``slow0``, on which every packet takes ``delay_ms`` and every
    ``lose``-th of the first host's to the second is lost, and a function that says how long packets were really held
    (median, seconds)."""
    command = [sys.executable, str(Path(__file__).with_name("relay.py")), str(delay_ms), str(lose)]
    process = subprocess.Popen([*command, *(h.namespace for h in members)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        output = process.stdout

        def held_s() -> float:
            process.send_signal(signal.SIGUSR1)
            return float(output.readline())

        yield [replace(host, address=f"10.78.0.{number}") for number, host in enumerate(members, 1)], held_s
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
