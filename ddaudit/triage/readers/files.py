"""Finds and opens the files of a bundle: bounded walk, gz/xz/bz2/zst, sparse and endless files, odd names."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import lzma
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from ddaudit.errors import EvidenceProblem

__all__ = ["ARCHIVES", "BundleFile", "blocks", "open_file", "printable", "walk"]

#: More files than this in one bundle are counted, not read; a job of 4,096 ranks with ten files each still fits.
MAX_FILES = 50_000
#: Bytes of one decompressed file that are read: a text log above it is cut, and the answer says so.
MAX_FILE_BYTES = 16 << 30
#: A hole in a sparse file, or a run of zeros as long, holds no log lines: reading skips to the tail.
MAX_ZERO_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20
_ROTATED = re.compile(
    r"(?P<stem>.+\.(?:log|out|err|txt))(?:\.(?P<n>\d{1,3})|[.-](?P<date>20\d{6}))(?:\.(?:gz|xz|bz2|zst))?$"
)
_COMPRESSED = (gzip.GzipFile, lzma.LZMAFile, bz2.BZ2File)
#: A line longer than this is cut into pieces: no log writer makes such lines, only binary data does.
MAX_LINE_BYTES = 4 << 20
SKIP_SUFFIXES = frozenset(
    [
        ".pt",
        ".pth",
        ".bin",
        ".safetensors",
        ".distcp",
        ".h5",
        ".npy",
        ".npz",
        ".parquet",
        ".arrow",
        ".png",
        ".jpg",
        ".jpeg",
        ".gif",
        ".so",
        ".whl",
        ".pdf",
    ]
)
#: Archives: opened before the walk (unpack), never read as text.
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".zip")


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file to read: its real path and the name shown for it (relative to the bundle, control characters escaped)."""

    path: Path
    name: str
    bytes_on_disk: int


def walk(roots: list[Path]) -> tuple[list[BundleFile], list[str]]:
    """Lists regular files below ``roots``, depth first in name order, never following links out of a folder.

    Raises:
        EvidenceProblem: a root does not exist.
    """
    found: list[BundleFile] = []
    notes: list[str] = []
    for root in roots:
        if not root.exists():
            raise EvidenceProblem("no such file or folder", where=str(root), expected="logs of a job")
        for path in _below(root):
            if len(found) >= MAX_FILES:
                notes.append(f"more than {MAX_FILES} files: the rest was not read")
                return found, notes
            if (entry := _entry(path, root)) is not None:
                found.append(entry)
    return found, notes


def _below(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        yield root
        return
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()
        for name in sorted(names, key=_age):
            yield Path(folder) / name


def _age(name: str) -> tuple[str, int, str]:
    """Rotated logs in the order they were written: ``a.log-20260101``, ``a.log.2.gz``, ``a.log.1``, ``a.log``."""
    found = _ROTATED.match(name)
    if found is None:
        return name, 1, ""
    older = -int(found["n"]) if found["n"] else -(1 << 40) + int(found["date"])
    return found["stem"], older, name


def _entry(path: Path, root: Path) -> BundleFile | None:
    try:
        status = path.stat() if path == root else path.lstat()
    except OSError:
        return None
    low = path.name.lower()
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0 or path.suffix.lower() in SKIP_SUFFIXES:
        return None
    if low.endswith(ARCHIVES):
        return None
    name = os.path.relpath(path, root) if path != root else path.name
    return BundleFile(path, printable(name), status.st_size)


def printable(text: str) -> str:
    """Escapes control and undecodable characters, so that a file name or log line cannot steer a terminal."""
    return "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


@contextmanager
def open_file(file: BundleFile) -> Iterator[BinaryIO]:
    """Opens by content, not by suffix: the first bytes tell gzip, xz, bzip2 and zstd.

    Raises:
        EvidenceProblem: unreadable, or zstd without a module that reads it.
    """
    try:
        raw = file.path.open("rb")
    except OSError as error:
        raise EvidenceProblem(error.strerror or str(error), where=file.name) from error
    with raw:
        magic = raw.read(6)
        raw.seek(0)
        with _decompressed(raw, magic, file.name) as stream:
            yield stream


def _decompressed(raw: BinaryIO, magic: bytes, name: str) -> BinaryIO:
    if magic[:2] == b"\x1f\x8b":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if magic == b"\xfd7zXZ\x00":
        return cast(BinaryIO, lzma.LZMAFile(raw))
    if magic[:3] == b"BZh":
        return cast(BinaryIO, bz2.BZ2File(raw))
    if magic[:4] != b"\x28\xb5\x2f\xfd":
        return raw
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError as error:
        raise EvidenceProblem(
            "zstd file not read", where=name, fix="pip install zstandard, or decompress it"
        ) from error
    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(raw))


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yields whole lines in blocks of about one MiB, as UTF-8 without a byte-order mark.

    A truncated archive yields what could be read, then stops. Long runs of zero bytes (a sparse file) are skipped.
    """
    raw = _raw(stream)
    head = next(raw, b"")
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        wide = codecs.getincrementaldecoder("utf-16")("replace")
        return _lines(wide.decode(part).encode("utf-8", "replace") for part in chain([head], raw))
    return _lines(chain([head.removeprefix(codecs.BOM_UTF8)], raw))


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Cuts at line ends; the last line stays with its block, so that a small file is one block, newline or not."""
    ready = rest = b""
    for block in parts:
        if ready:
            yield ready
        cut = block.rfind(b"\n") + 1
        if not cut and len(rest) + len(block) < MAX_LINE_BYTES:
            ready, rest = b"", rest + block
            continue
        ready = rest + (block[:cut] or block)
        rest = block[cut:] if cut else b""
    if ready or rest:
        yield ready + rest


def _raw(stream: BinaryIO) -> Iterator[bytes]:
    read = zeros = 0
    while read < MAX_FILE_BYTES and (block := _block(stream)):
        read += len(block)
        if block[0] or block.strip(b"\0"):
            yield block
            continue
        zeros += len(block)
        if zeros >= MAX_ZERO_BYTES and not _skip_to_tail(stream):
            return


def _block(stream: BinaryIO) -> bytes:
    """The next bytes, up to a block; what was decompressed before an archive breaks off counts."""
    if not isinstance(stream, _COMPRESSED):
        try:
            return stream.read(BLOCK_BYTES)
        except (OSError, EOFError, ValueError):
            return b""
    parts: list[bytes] = []
    left = BLOCK_BYTES
    while left > 0:
        try:
            part = stream.read1(left)
        except (OSError, EOFError, lzma.LZMAError, zlib.error, ValueError):
            break
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _skip_to_tail(stream: BinaryIO) -> bool:
    """Jumps over a hole to the last blocks; False where the stream cannot seek (an archive of zeros is no log)."""
    if not isinstance(stream, _COMPRESSED) and stream.seekable():
        here, end = stream.tell(), stream.seek(0, os.SEEK_END)
        stream.seek(max(here, end - 8 * BLOCK_BYTES))
        return True
    return False
