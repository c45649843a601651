"""This host's network interfaces: which one leads to the peers, and how many bytes went over each."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
from pathlib import Path

from ddaudit.errors import LaunchProblem

__all__ = ["choose_interface", "clock_id", "interface_bytes", "interface_of"]

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


def clock_id() -> str | None:
    """Names the monotonic clock that this process reads: one for each boot, shared by the containers of a host."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return None
    return hashlib.sha256(boot).hexdigest()[:12]
