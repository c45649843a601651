"""Files whose data end in zeros across several tensors: blocks that were never written, under a header that was."""

from __future__ import annotations

from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.inert import Malformed

_PAGE_BYTES = 4096
_LIMIT_BYTES = 64 << 20
_MIN_BYTES = 512
_MIN_TENSORS = 2


def check_tails(made: Checkpoint, folder: Folder) -> None:
    """Only files without checksums: where CRCs are recorded, they say more."""
    places: dict[str, list[tuple[int, int, str]]] = {}
    for tensor in made.tensors.values():
        span = tensor.chunks[0].span() if len(tensor.chunks) == 1 and tensor.chunks[0].placed else None
        if span is not None and span.checksum is None and span.stride is None and tensor.nbytes:
            places.setdefault(span.file, []).append((span.offset, span.offset + tensor.nbytes, tensor.name))
    for file, spans in places.items():
        spans.sort()
        begin = _zeros_from(folder, file, spans[-1][1])
        whole = [s for s in spans if s[0] >= begin]
        cut = next((s for s in spans if s[0] < begin < s[1]), None)
        if cut is None or len(whole) < _MIN_TENSORS or spans[-1][1] - begin < _MIN_BYTES:
            continue
        text = f"{file}: only zeros from byte {begin:,} on, from within {cut[2]} through {len(whole)} more tensors"
        where: dict[str, Any] = {"file": file, "tensor": cut[2], "key": f"byte {begin}"}
        made.fault("file.zero-tail", text, measured=spans[-1][1] - begin, limit=0, unit="byte", **where)


def _zeros_from(folder: Folder, file: str, end: int) -> int:
    """Where the run of zeros before ``end`` begins; ``end`` when there is none, or it is too long to be followed."""
    at, stop = end, max(0, end - _LIMIT_BYTES)
    try:
        source = folder.source(file)
        while at > stop:
            size = min(_PAGE_BYTES, at - stop)
            block = source.read(at - size, size)
            kept = block.rstrip(b"\0")
            at -= size - len(kept)
            if kept:
                return at
    except Malformed:
        return end
    return at
