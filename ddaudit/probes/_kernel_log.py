"""Xids (NVIDIA's numbers for errors of a device) in this host's kernel log, since it was booted."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator

from ddaudit.evidence.devices import Xid

__all__ = ["find_xids", "kernel_log"]

#: A record of /dev/kmsg is one line of at most this many bytes; reading ends after so many records or seconds.
RECORD_BYTES, RECORDS, READ_S = 8192, 500_000, 5.0
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]{5,20})\): (?P<code>\d{1,4})\b")


def kernel_log() -> Iterator[str]:
    """Records of ``/dev/kmsg``, oldest first: ``priority,sequence,microseconds since boot,...;text``.

    Raises:
        OSError: no such file (a container), or not permitted (``kernel.dmesg_restrict``).
    """
    deadline = time.monotonic() + READ_S
    file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for _ in range(RECORDS):
            if time.monotonic() > deadline:
                return
            try:
                record = os.read(file, RECORD_BYTES)
            except BlockingIOError:  # the end
                return
            except BrokenPipeError:  # overwritten while being read; the next read goes on behind it
                continue
            yield record.decode("utf-8", "replace")
    finally:
        os.close(file)


def find_xids(records: Iterable[str]) -> tuple[Xid, ...]:
    """Xids by device and number, in the order in which they came first."""
    found: dict[tuple[str, int], Xid] = {}
    for record in records:
        match = _XID.search(record)
        if match is None:
            continue
        key = (match["bus"].lower(), int(match["code"]))
        count = found[key].count + 1 if key in found else 1
        found[key] = Xid(bus_id=key[0], code=key[1], count=count, last_s=_seconds(record))
    return tuple(found.values())


def _seconds(record: str) -> float | None:
    fields = record.partition(";")[0].split(",")
    return int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdecimal() else None
