"""Delay and loss between network namespaces, for kernels without netem: a TUN device in each, packets passed on later.

``python relay.py DELAY_MS LOSE NAMESPACE...``: host i gets 10.78.0.i on device ``slow0``. Of the first host's packets
with data to the second every LOSE-th is lost; none where that is 0. Prints ``ready``. At SIGUSR1 it prints the median
seconds that packets were really held: on a busy machine more than was asked. Ends with its parent.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections import deque

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1
#: An acknowledgement alone is smaller.
WITH_DATA = 200


def open_tun(namespace: str, libc: ctypes.CDLL) -> int:
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    try:
        assert libc.setns(there, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"slow0", IFF_TUN | IFF_NO_PI))
        assert libc.setns(home, CLONE_NEWNET) == 0
    finally:
        os.close(home)
        os.close(there)
    return device


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    delay_s, lose, namespaces = float(sys.argv[1]) / 1000, int(sys.argv[2]), sys.argv[3:]
    devices = [open_tun(name, libc) for name in namespaces]
    for number, name in enumerate(namespaces, 1):
        for words in (f"addr add 10.78.0.{number}/24 dev slow0", "link set slow0 mtu 9000 txqueuelen 5000 up"):
            subprocess.run(["ip", "-n", name, *words.split()], check=True)
    print("ready", flush=True)
    target = {bytes([10, 78, 0, number]): device for number, device in enumerate(devices, 1)}
    poll = select.epoll()
    for device in devices:
        poll.register(device, select.EPOLLIN)
    waiting: list[tuple[float, int, int, bytes]] = []
    held = deque[float](maxlen=5000)
    signal.signal(signal.SIGUSR1, lambda *_: print(statistics.median(held or [delay_s]), flush=True))
    count = data = 0
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            due, _, device, packet = heapq.heappop(waiting)
            os.write(device, packet)
            held.append(time.monotonic() - due + delay_s)
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else -1
        for device, _ in poll.poll(pause):
            packet = os.read(device, 65536)
            to = target.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if lose and device == devices[0] and to == devices[1] and len(packet) >= WITH_DATA:
                data += 1
                to = to if data % lose else None
            if to is not None:
                count += 1
                heapq.heappush(waiting, (time.monotonic() + delay_s, count, to, packet))


if __name__ == "__main__":
    main()
