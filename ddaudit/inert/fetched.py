"""Which memo entries a pickle may ever read back, so that a large one need not keep the others alive.

A pickler writes a memo entry for nearly everything and reads few of them back. The answer is a superset: every byte
that could be the opcode of a read counts as one, whether the stream reaches it as an opcode or not.
"""

from __future__ import annotations

import re

LARGE = 4 << 20  # below, the whole memo is small
_WINDOW = 8 << 20
_ALWAYS = 256  # entries that the one-byte form can name
_TEXT = re.compile(rb"g(\d{1,12})\n")


def fetched(data: bytes) -> bytes | None:
    """A bit for each memo index, little-endian within a byte; None when `data` is too small to be worth it."""
    if len(data) < LARGE:
        return None
    import numpy as np

    count = len(data)  # no stream has more entries than bytes
    wanted = np.zeros(count, dtype=bool)
    wanted[:_ALWAYS] = True
    raw = np.frombuffer(data, dtype=np.uint8)
    for start in range(0, count - 4, _WINDOW):
        window = raw[start : min(count, start + _WINDOW + 4)]
        at = np.flatnonzero(window[:-4] == ord("j")) + 1
        index = sum(window[at + k].astype(np.int64) << (8 * k) for k in range(4))
        index = np.asarray(index)
        wanted[index[index < count]] = True
    for match in _TEXT.finditer(data):
        if int(match[1]) < count:
            wanted[int(match[1])] = True
    return np.packbits(wanted, bitorder="little").tobytes()
