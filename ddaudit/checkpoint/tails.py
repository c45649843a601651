"""Files whose data end in zeros: blocks that were never written, under a header that was."""

from __future__ import annotations

from math import prod

from ddaudit.checkpoint.blank import strong, witnesses
from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.model import Checkpoint, Tensor
from ddaudit.checkpoint.roles import is_second_moment
from ddaudit.inert import Malformed

_PAGE_BYTES = 4096
_LIMIT_BYTES = 64 << 20
_MIN_BYTES = 512
_MIN_TENSORS = 2
_FLOATS = ("float64", "float32", "bfloat16", "float16")


def check_tails(made: Checkpoint, folder: Folder) -> None:
    """Only files without checksums: where CRCs are recorded, they say more."""
    places: dict[str, list[tuple[int, int, Tensor]]] = {}
    for tensor in made.tensors.values():
        span = tensor.chunks[0].span() if len(tensor.chunks) == 1 and tensor.chunks[0].placed else None
        if span is not None and span.checksum is None and span.stride is None and tensor.nbytes:
            places.setdefault(span.file, []).append((span.offset, span.offset + tensor.nbytes, tensor))
    known = witnesses(made) if places else {}
    for file, spans in places.items():
        spans.sort(key=lambda s: s[:2])
        begin = _zeros_from(folder, file, spans[-1][1])
        whole = [s for s in spans if s[0] >= begin]
        cut = next((s for s in spans if s[0] < begin < s[1]), None)
        length = spans[-1][1] - begin
        if cut is None or length < _MIN_BYTES:
            continue
        likely = len(whole) >= _MIN_TENSORS or _at_page(cut, begin, length) or _amid_rows(cut, begin, folder)
        if not likely and not _contradicted(cut, begin, known.get(cut[2].name), folder):
            continue
        name, more = cut[2].name, f" through {len(whole)} more tensors" if whole else " to its end"
        text = f"{file}: only zeros from byte {begin:,} on, from within {name}{more}"
        made.fault("file.zero-tail", text, file=file, tensor=name, key=f"byte {begin}", measured=length, limit=0,
                   unit="byte")  # fmt: skip


def _at_page(cut: tuple[int, int, Tensor], begin: int, length: int) -> bool:
    """Zeros that begin where a page of the file begins, and in the middle of a row.

    Unused rows of an embedding begin with a row, and padding anywhere; a copy that broke off ends with a whole page.
    """
    start, _, tensor = cut
    item = tensor.item_bytes
    page = -(-begin // _PAGE_BYTES) * _PAGE_BYTES  # the last bytes in front of it may be zeros of the last element
    row = prod(tensor.shape[1:]) * item
    inside = len(tensor.shape) < 2 or (page - start) % row >= item
    return length >= _PAGE_BYTES and page - begin < item and inside and tensor.dtype in _FLOATS


def _amid_rows(cut: tuple[int, int, Tensor], begin: int, folder: Folder) -> bool:
    """Zeros that begin in the middle of a row and go on through at least one whole row more.

    Rows that were never used begin with a row. Where unused columns meet unused rows, the row in front has the same
    columns of zeros: so most of its numbers there must be none.
    """
    start, end, tensor = cut
    item = tensor.item_bytes
    row = prod(tensor.shape[1:]) * item
    if len(tensor.shape) < 2 or tensor.dtype not in _FLOATS:
        return False
    into = (-(-(begin - start) // item) * item) % row
    if not item <= into <= row - item or end - begin < 2 * row - into or begin - start < row:
        return False
    first = start + (begin - start) // row * row  # of the row that is cut
    return _mostly_numbers(folder, _file_of(tensor), first - row + into, row - into, item)


def _contradicted(cut: tuple[int, int, Tensor], begin: int, witness: Tensor | None, folder: Folder) -> bool:
    """True when the tensor that should be zero in the same places is not."""
    start, end, tensor = cut
    span = witness.chunks[0].span() if witness is not None and len(witness.chunks) == 1 else None
    if witness is None or span is None or span.stride is not None or witness.shape != tensor.shape:
        return False
    first = -(-(begin - start) // tensor.item_bytes)  # element
    length = ((end - start) // tensor.item_bytes - first) * witness.item_bytes
    offset, second = span.offset + first * witness.item_bytes, is_second_moment(witness.name)
    try:
        raw = folder.source(span.file).read(offset, min(length, _PAGE_BYTES))
    except Malformed:
        return False
    known = witness.dtype in _FLOATS and not len(raw) % witness.item_bytes
    if not known or not strong(raw, witness.dtype, second=second):
        return False
    return _mostly_numbers(folder, span.file, offset, length, witness.item_bytes)


def _mostly_numbers(folder: Folder, file: str, offset: int, length: int, item: int) -> bool:
    """True when most of a run's first numbers are not zero."""
    try:
        raw = folder.source(file).read(offset, min(length, _PAGE_BYTES // item * item))
    except Malformed:
        return False
    numbers = [raw[at : at + item].strip(b"\0") for at in range(0, len(raw), item)]
    return 2 * sum(map(bool, numbers)) > len(numbers)


def _file_of(tensor: Tensor) -> str:
    span = tensor.chunks[0].span()
    return span.file if span is not None else tensor.file


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
