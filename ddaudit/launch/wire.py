"""Frames between the agents of a run: a JSON object each, with bytes behind it where a file travels."""

from __future__ import annotations

import errno
import json
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ddaudit.errors import LaunchProblem

__all__ = ["Channel", "Lost", "listen"]

HEAD = struct.Struct("!II")
#: The orders of one node's ranks are the largest message; a piece of a file the largest payload.
MAX_MESSAGE_BYTES = 64 << 20
MAX_PAYLOAD_BYTES = 1 << 20
#: How long a peer's kernel may leave bytes unacknowledged, and how long a full buffer may block a send.
STALL_S = 15.0


class Lost(Exception):
    """The peer hung up, fell silent, or speaks another language."""


class Channel:
    """One connected TCP socket. Reads what has arrived; a send blocks for as long as the peer's buffer is full."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._inbox = bytearray()
        connection.settimeout(STALL_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_USER_TIMEOUT, int(STALL_S * 1000)),
            (socket.TCP_KEEPIDLE, 5),
            (socket.TCP_KEEPINTVL, 3),
            (socket.TCP_KEEPCNT, 3),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def own_address(self) -> str:
        """This host's address on the path to the peer."""
        return str(self._socket.getsockname()[0])

    @property
    def peer_address(self) -> str:
        return str(self._socket.getpeername()[0])

    def send(self, message: Mapping[str, Any], payload: bytes = b"") -> None:
        """Raises Lost when the peer is gone."""
        text = json.dumps(message).encode()
        assert len(text) <= MAX_MESSAGE_BYTES and len(payload) <= MAX_PAYLOAD_BYTES
        try:
            self._socket.sendall(HEAD.pack(len(text), len(payload)) + text + payload)
        except OSError as error:
            raise Lost(f"the connection broke ({error.strerror or error})") from error

    def receive(self) -> list[tuple[dict[str, Any], bytes]]:
        """The whole frames that have arrived; call it when the socket is readable.

        Raises:
            Lost: the peer closed the connection, or sent what is no frame.
        """
        try:
            data = self._socket.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Lost(f"the connection broke ({error.strerror or error})") from error
        if not data:
            raise Lost("it closed the connection")
        self._inbox += data
        frames = []
        while (frame := self._frame()) is not None:
            frames.append(frame)
        return frames

    def _frame(self) -> tuple[dict[str, Any], bytes] | None:
        if len(self._inbox) < HEAD.size:
            return None
        length, extra = HEAD.unpack_from(self._inbox)
        if length > MAX_MESSAGE_BYTES or extra > MAX_PAYLOAD_BYTES:
            raise Lost("it does not speak ddaudit's protocol")
        end = HEAD.size + length + extra
        if len(self._inbox) < end:
            return None
        text, payload = bytes(self._inbox[HEAD.size : HEAD.size + length]), bytes(self._inbox[HEAD.size + length : end])
        del self._inbox[:end]
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            raise Lost("it does not speak ddaudit's protocol") from None
        if not isinstance(message, dict):
            raise Lost("it does not speak ddaudit's protocol")
        return message, payload

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def listen(host: str, port: int) -> socket.socket:
    """Listens on the meeting point's address; on all where that is not this host's own, or a name of its loopback.
    Port 0 lets the kernel pick one.

    Raises:
        LaunchProblem: the host is not known, or the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        what = f"the meeting point {host!r} is no known host ({error.strerror})"
        raise LaunchProblem(what, fix="use its IP address") from None
    exact = str(address[0])
    doubtful = host != exact and (exact.startswith("127.") or exact == "::1")
    for number, bound in enumerate(("", "") if doubtful else (exact, "")):
        try:
            return socket.create_server((bound, port), family=family, backlog=1024)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL and number == 0:
                continue
            fix = "choose another port in --rdzv-endpoint; an earlier run may still hold this one"
            raise LaunchProblem(f"cannot listen on port {port}: {error.strerror}", where=host, fix=fix) from None
    raise AssertionError("one of the addresses was tried last")
