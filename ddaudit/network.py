"""This host's network interfaces: which one leads to the peers, what went over each, and what was sent again."""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddaudit.errors import LaunchProblem

__all__ = ["TcpCounts", "choose_interface", "clock_id", "interface_bytes", "interface_of", "tcp_carrier", "tcp_counts"]

#: What libraries read to find the interface they should use.
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def interface_of(address: str) -> str | None:
    """The interface that has the IP address; None where none does."""
    import psutil

    wanted = _ip(address)
    for name, addresses in psutil.net_if_addrs().items():
        if wanted is not None and any(_ip(a.address) == wanted for a in addresses):
            return str(name)
    return None


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def choose_interface(meeting_host: str, interface: str | None, host: str) -> None:
    """Tells gloo and NCCL by environment which interface to use: ``interface``, or loopback for ranks of one host.

    Left alone, gloo looks its own host name up, which fails or wanders off on hosts without a working resolver, and
    NCCL takes the first interface of the list. What the environment says is kept, when there is such an interface.

    Raises:
        LaunchProblem: ``GLOO_SOCKET_IFNAME`` names an interface that this host does not have, or loopback is down.
    """
    if interface is None:
        if meeting_host == "127.0.0.1" and "lo" in _names():
            _demand_loopback(host)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return
    asked = os.environ.get("GLOO_SOCKET_IFNAME", "")
    known = _names()
    unknown = [name for name in asked.split(",") if asked and name not in known]
    if unknown:
        raise LaunchProblem(
            f"GLOO_SOCKET_IFNAME={asked}: host {host} has no interface {unknown[0]!r}",
            where=host,
            expected=f"one of {', '.join(known)}",
            fix="unset it, or name an interface that every host has",
        )
    for variable in VARIABLES:
        os.environ.setdefault(variable, interface)


def _demand_loopback(host: str) -> None:
    """New network namespaces have it down, and ranks would wait for each other until the step's deadline.

    Raises:
        LaunchProblem: The loopback interface is there but down.
    """
    import psutil

    stats = psutil.net_if_stats().get("lo")
    if stats is not None and not stats.isup:
        raise LaunchProblem(
            "the loopback interface lo is down: ranks of one host meet over it",
            where=host,
            expected="lo up, with address 127.0.0.1",
            fix="run `ip link set lo up` in the host or container",
        )


def _names() -> list[str]:
    return sorted(name for _, name in socket.if_nameindex())


def interface_bytes() -> dict[str, tuple[int, int]]:
    """Interface -> bytes (received, sent) since it came up, from /proc/net/dev; empty where that cannot be read."""
    try:
        lines = Path("/proc/net/dev").read_text("ascii", "replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, colon, numbers = line.partition(":")
        fields = numbers.split()
        if colon and len(fields) >= 9 and fields[0].isdigit() and fields[8].isdigit():
            found[name.strip()] = (int(fields[0]), int(fields[8]))
    return found


class TcpCounts(NamedTuple):
    """Segments with data that one socket sent, ``resent`` ones among them, and those of which the receiver said that it
    had them already: they were late, not lost."""

    sent: int
    resent: int
    needless: int


SocketId = tuple[int, str]
"""A socket's inode and the address of its peer."""

#: Where linux/tcp.h's ``struct tcp_info`` keeps tcpi_total_retrans, tcpi_data_segs_out (Linux 4.6) and tcpi_dsack_dups
#: (Linux 4.18; older kernels answer with a shorter struct).
RESENT_AT, SENT_AT, NEEDLESS_AT, INFO_SIZE = 100, 156, 216, 220


def tcp_counts() -> dict[SocketId, TcpCounts]:
    """What each connected TCP socket of this process has sent, whichever library opened it. The kernel counts by
    socket, so no other program's losses are among these. Empty where the kernel does not tell."""
    found: dict[SocketId, TcpCounts] = {}
    try:
        numbers = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    except OSError:
        return found
    for number in numbers:
        with suppress(OSError):  # closed meanwhile, no socket, or one without a peer
            key, counts = _asked(number)
            if counts is not None:
                found[key] = counts
    return found


def _asked(number: int) -> tuple[SocketId, TcpCounts | None]:
    """What the kernel says of one descriptor, by a copy of it that is ours to close.

    Raises:
        OSError: it is not a connected TCP socket.
    """
    copy = os.dup(number)
    try:
        one = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            raise OSError(errno.EPROTOTYPE, "not a TCP socket")
        key = os.fstat(copy).st_ino, str(one.getpeername()[0])
        return key, _counts(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_SIZE))


def _counts(info: bytes) -> TcpCounts | None:
    """The kernel's answer; None from a kernel that does not count segments with data."""
    if len(info) < SENT_AT + 4:
        return None
    late = struct.unpack_from("=I", info, NEEDLESS_AT)[0] if len(info) >= NEEDLESS_AT + 4 else 0
    return TcpCounts(struct.unpack_from("=I", info, SENT_AT)[0], struct.unpack_from("=I", info, RESENT_AT)[0], late)


def tcp_carrier(before: Mapping[SocketId, TcpCounts], after: Mapping[SocketId, TcpCounts]) -> TcpCounts | None:
    """What went to the one address that got most segments between two readings; None where nothing was sent by TCP, as
    over InfiniBand."""
    sums: dict[str, TcpCounts] = {}
    for key, now in after.items():
        more = [max(0, n - o) for n, o in zip(now, before.get(key, (0, 0, 0)), strict=True)]
        had = sums.get(key[1], (0, 0, 0))
        sums[key[1]] = TcpCounts(*(a + b for a, b in zip(had, more, strict=True)))
    most = max(sums.values(), key=lambda c: c.sent, default=None)
    return most if most is not None and most.sent else None


def clock_id() -> str | None:
    """Names the monotonic clock that this process reads: one for each boot, shared by the containers of a host."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return None
    return hashlib.sha256(boot).hexdigest()[:12]
