"""Bytes at an offset, from a file, from memory or from a window of either; and files that never leave their folder."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath

from ddaudit.inert.nodes import Malformed

_EDGE_BYTES = 4096


class Source(ABC):
    """Random access to bytes. `read` returns exactly what was asked for or raises `Malformed`."""

    name: str
    size: int

    @abstractmethod
    def pread(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`; fewer only at the end."""

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Malformed(f"{length:,} bytes at {offset:,} are not inside the {self.size:,} bytes there are")
        raw = self.pread(offset, length)
        if len(raw) != length:
            raise Malformed(f"{len(raw):,} bytes instead of {length:,} (did the file change?)", offset)
        return raw

    def window(self, offset: int, length: int) -> Source:
        """A part of this source as a source of its own."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Malformed(f"the range {offset:,}+{length:,} is not inside the {self.size:,} bytes there are")
        return Window(self, offset, length)

    def edges(self, offset: int, length: int) -> Source:
        """A window that remembers its first and last bytes."""
        self.window(offset, length)
        return Edges(self, offset, length)

    @property
    def base(self) -> tuple[Source, int]:
        """The outermost source and this one's offset in it."""
        return self, 0

    def close(self) -> None:  # noqa: B027 - only files hold something to give back
        """Gives the file back."""


class BytesSource(Source):
    def __init__(self, data: bytes, name: str = "<memory>") -> None:
        self.data = data
        self.name = name
        self.size = len(data)

    def pread(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


class Window(Source):
    def __init__(self, outer: Source, offset: int, length: int) -> None:
        self.outer, shift = outer.base
        self.offset = offset + shift
        self.size = length
        self.name = outer.name

    def pread(self, offset: int, length: int) -> bytes:
        return self.outer.pread(self.offset + offset, max(0, min(length, self.size - offset)))

    @property
    def base(self) -> tuple[Source, int]:
        return self.outer, self.offset


class Edges(Window):
    """A window whose first and last bytes are read once: an archive's directory and headers are many small reads."""

    def __init__(self, outer: Source, offset: int, length: int) -> None:
        super().__init__(outer, offset, length)
        self.head = super().pread(0, _EDGE_BYTES)
        self.tail_at = max(0, length - _EDGE_BYTES)
        self.tail = super().pread(self.tail_at, _EDGE_BYTES)

    def pread(self, offset: int, length: int) -> bytes:
        if offset >= self.tail_at:
            return self.tail[offset - self.tail_at : offset - self.tail_at + length]
        if offset + length <= len(self.head):
            return self.head[offset : offset + length]
        return super().pread(offset, length)


class FileSource(Source):
    """A regular local file, read by pread: many readers may share it. Once closed, the next read opens it again."""

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        self.name = name or str(path)
        self.path = str(path)
        self.fd = -1
        self._open()
        self.stamp = self._stat()
        self.size = self.stamp[0]

    def _open(self) -> None:
        # O_NONBLOCK: opening a FIFO must not wait for a writer; O_NOFOLLOW: the path was resolved before.
        self.fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(self.fd).st_mode):
            self.close()
            raise Malformed("not a regular file")

    def _stat(self) -> tuple[int, int]:
        status = os.fstat(self.fd)
        return status.st_size, status.st_mtime_ns

    def pread(self, offset: int, length: int) -> bytes:
        if self.fd < 0:
            self._open()
        return os.pread(self.fd, length, offset)

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Like pread, into memory that is there already. Returns the number of bytes read."""
        if self.fd < 0:
            self._open()
        return os.preadv(self.fd, [buffer], offset)

    def changed(self) -> bool:
        """True when size or modification time differ from when the file was first opened."""
        if self.fd < 0:
            self._open()
        return self._stat() != self.stamp

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def unsafe_name(name: object) -> str | None:
    """Why a file name found inside a file must not be followed, or None."""
    if not isinstance(name, str) or not name:
        return "is empty or not text"
    if "\0" in name:
        return "contains a NUL"
    if name.startswith(("/", "\\")) or (len(name) > 1 and name[1] == ":"):
        return "is absolute"
    if ".." in PurePosixPath(name.replace("\\", "/")).parts:
        return "leads out of its folder"
    return None


def inside(root: Path, name: str) -> Path:
    """The real path of `name` under `root`, links followed only as long as they stay inside; raises `Malformed`
    otherwise."""
    reason = unsafe_name(name)
    if reason:
        raise Malformed(f"the name {reason}")
    real_root = os.path.realpath(root)
    try:
        real = os.path.realpath(f"{real_root}/{name}", strict=True)
    except OSError as error:
        raise Malformed(f"cannot be resolved: {error.strerror}") from None
    if real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
        raise Malformed("a link leads out of the folder")
    return Path(real)
