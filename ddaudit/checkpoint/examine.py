"""One tensor read once: its scan, and the checksums of the chunks that were read whole on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from isal import isal_zlib

from ddaudit.checkpoint.model import Checksum, Tensor
from ddaudit.checkpoint.roles import is_second_moment
from ddaudit.checkpoint.scan import ArrayScan, TensorScan
from ddaudit.checkpoint.stream import Opener, Piece, Unreadable, blocks
from ddaudit.inert import Malformed

__all__ = ["Examined", "examine"]


@dataclass(slots=True)
class Examined:
    """What reading a tensor gave. ``crcs`` are (recorded checksum, CRC of the bytes); ``fault`` says why the reading
    broke off, None where it did not."""

    scan: TensorScan
    crcs: list[tuple[Checksum, int]] = field(default_factory=list)
    fault: str | None = None


@np.errstate(invalid="ignore")
def examine(
    tensor: Tensor, opener: Opener, buffer: memoryview, *, digest: bool, count: Callable[[int], None]
) -> Examined:
    """Streams a tensor through checksum, digest and probe; ``count`` is told the bytes of each block."""
    scan = ArrayScan(tensor.dtype, tensor.numel, nonnegative=is_second_moment(tensor.name), digest=digest)
    crcs: list[tuple[Checksum, int]] = []
    complete, fault = True, None

    def on_read(piece: Piece, block: memoryview) -> None:
        if not piece.checked:
            return
        piece.crc = isal_zlib.crc32(block, piece.crc)
        piece.done += len(block)
        checksum = piece.span.checksum
        if checksum is not None and piece.done == checksum.length:
            crcs.append((checksum, piece.crc))

    try:
        for block in blocks(tensor, opener, on_read, buffer):
            scan.feed(block)
            count(len(block))
    except Unreadable:
        complete = False
    except (Malformed, OSError) as error:
        complete, fault = False, f"{tensor.name}: {error}"
    found = scan.finish()
    if not complete:
        found["digest"], found["tiles"] = None, []
    return Examined(TensorScan(tensor.name, **found, complete=complete), crcs, fault)
