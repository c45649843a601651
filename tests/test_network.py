"""What a process's own sockets tell of the network: the kernel's counts, by socket, whoever opened it."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from ddaudit import network
from ddaudit.network import TcpCounts, tcp_carrier, tcp_counts


@pytest.fixture
def connected() -> tuple[socket.socket, socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
        yield one, other


def test_segments_are_counted_by_socket_and_no_descriptor_is_left_open(connected: tuple[socket.socket, socket.socket]):
    one, other = connected
    before, files = tcp_counts(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        one.sendall(b"word")
        assert other.recv(100) == b"word"
    after = tcp_counts()
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    inodes = [os.fstat(end.fileno()).st_ino for end in connected]
    sent = [after[inode, "127.0.0.1"].sent - before[inode, "127.0.0.1"].sent for inode in inodes]
    assert sent[0] >= 20 and sent[1] == 0
    carried = tcp_carrier(before, after)
    assert carried is not None and carried.sent >= 20


def test_what_is_not_a_connected_tcp_socket_is_left_alone(tmp_path: Path):
    here, there = socket.socketpair()
    with here, there, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.create_server(("", 0)) as waiting:
        mine = {os.fstat(s.fileno()).st_ino for s in (here, there, udp, waiting)}
        assert not mine & {inode for inode, _ in tcp_counts()}
        here.sendall(b"still open")
        assert there.recv(100) == b"still open"


def test_the_bytes_went_to_the_address_that_got_most_over_however_many_sockets():
    before = {(1, "10.0.0.2"): TcpCounts(100, 9, 0), (2, "10.0.0.3"): TcpCounts(5000, 700, 0)}
    after = {
        (1, "10.0.0.2"): TcpCounts(400, 19, 2),
        (3, "10.0.0.2"): TcpCounts(300, 10, 1),
        (2, "10.0.0.3"): TcpCounts(5040, 710, 0),
    }
    assert tcp_carrier(before, after) == TcpCounts(600, 20, 3)
    assert tcp_carrier(after, after) is None and tcp_carrier({}, {}) is None


def test_older_kernels_answer_less_or_nothing():
    whole = bytearray(network.INFO_SIZE)
    for at, value in ((network.SENT_AT, 900), (network.RESENT_AT, 30), (network.NEEDLESS_AT, 4)):
        struct.pack_into("=I", whole, at, value)
    assert network._counts(bytes(whole)) == TcpCounts(900, 30, 4)
    assert network._counts(bytes(whole[:192])) == TcpCounts(900, 30, 0)
    assert network._counts(bytes(whole[:104])) is None
