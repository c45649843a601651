"""A checkpoint's files: listed once, opened safely, on a local disk or behind any fsspec URL."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddaudit.errors import CheckpointProblem
from ddaudit.inert import FileSource, Malformed, Source, inside

MAX_FILES = 1_000_000
MAX_DEPTH = 12
_KEEP_OPEN = 64


@dataclass(slots=True)
class Listing:
    """Names relative to the root, with sizes; and what was seen but must not be read."""

    sizes: dict[str, int] = field(default_factory=dict)
    mtimes: dict[str, float] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)  # link -> target inside the root
    outside: dict[str, str] = field(default_factory=dict)  # links that leave the root or point nowhere
    special: dict[str, str] = field(default_factory=dict)  # FIFOs, devices, sockets
    cut: bool = False


class Folder:
    """Files under one root. ``prefix`` makes a view of a sub-folder that shares everything with its parent."""

    def __init__(self, root: Path, listing: Listing, prefix: str = "", opened: dict[str, Source] | None = None) -> None:
        self.root = root
        self.listing = listing
        self.prefix = prefix
        self._opened: dict[str, Source] = {} if opened is None else opened

    def sub(self, name: str) -> Folder:
        return Folder(
            self.root, self.listing, self.prefix + name.strip("/") + "/" if name else self.prefix, self._opened
        )

    @property
    def name(self) -> str:
        return (self.prefix.rstrip("/") or self.root.name).rsplit("/", 1)[-1]

    def names(self) -> list[str]:
        """All files below, relative to this folder, sorted."""
        start = len(self.prefix)
        return sorted(n[start:] for n in self.listing.sizes if n.startswith(self.prefix))

    def here(self) -> list[str]:
        """Files directly in this folder."""
        return [n for n in self.names() if "/" not in n]

    def folders(self) -> list[str]:
        """Folders directly in this one (empty ones too)."""
        start = len(self.prefix)
        found = {n[start:].split("/", 1)[0] for n in self.listing.folders if n.startswith(self.prefix)}
        return sorted(found - {""})

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.listing.sizes

    def full(self, name: str) -> str:
        return self.prefix + name

    def size(self, name: str) -> int:
        return self.listing.sizes[self.prefix + name]

    def mtime(self, name: str) -> float:
        return self.listing.mtimes.get(self.prefix + name, 0.0)

    def source(self, name: str) -> Source:
        """Opens a listed file; raises Malformed with the reason when that cannot be done safely."""
        full = self.prefix + name
        if full not in self._opened:
            if full not in self.listing.sizes:
                raise Malformed("no such file in the checkpoint")
            if len(self._opened) >= _KEEP_OPEN:
                oldest = next(iter(self._opened))
                self._opened.pop(oldest).close()
            self._opened[full] = self.opened_anew(full)
        return self._opened[full]

    def opened_anew(self, full: str) -> Source:
        """A handle of its own for a file, named from the checkpoint's root; raises Malformed as :meth:`source` does."""
        try:
            return FileSource(inside(self.root, full), full)
        except OSError as error:
            raise Malformed(f"cannot be opened: {error.strerror}") from None

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        """A small file whole; raises Malformed when it is larger than ``limit``."""
        source = self.source(name)
        if source.size > limit:
            raise Malformed(f"{source.size:,} bytes are more than the {limit:,} expected here")
        return source.read(0, source.size)

    def local(self, name: str) -> Path:
        return inside(self.root, self.prefix + name)

    def close(self) -> None:
        while self._opened:
            self._opened.popitem()[1].close()


class RemoteSource(Source):
    """A file behind fsspec, read by ranges."""

    def __init__(self, system: Any, path: str, name: str, size: int) -> None:
        self.system = system
        self.remote = path
        self.name = name
        self.size = size

    def pread(self, offset: int, length: int) -> bytes:
        end = min(self.size, offset + length)
        return bytes(self.system.cat_file(self.remote, start=offset, end=end)) if end > offset else b""


class RemoteFolder(Folder):
    """A folder behind an fsspec URL. Object stores have no links, FIFOs or devices."""

    def __init__(self, system: Any, base: str, listing: Listing, prefix: str = "", opened: Any = None) -> None:
        super().__init__(Path(base), listing, prefix, opened)
        self.system = system
        self.base = base.rstrip("/")

    def sub(self, name: str) -> Folder:
        prefix = self.prefix + name.strip("/") + "/" if name else self.prefix
        return RemoteFolder(self.system, self.base, self.listing, prefix, self._opened)

    def opened_anew(self, full: str) -> Source:
        return RemoteSource(self.system, f"{self.base}/{full}", full, self.listing.sizes[full])

    def local(self, name: str) -> Path:
        raise Malformed("this format needs a local file")


def open_folder(path: str) -> tuple[Folder, str | None]:
    """Lists a checkpoint path. Returns the folder and, when the path is one file, that file's name in it.

    Raises:
        CheckpointProblem: the path does not exist or cannot be listed.
    """
    if "://" in path:
        return _open_remote(path)
    root = Path(path)
    try:
        status = root.stat()
    except OSError as error:
        raise CheckpointProblem(f"cannot be opened: {error.strerror}", where=path) from None
    if stat.S_ISDIR(status.st_mode):
        return Folder(root, _walk(root)), None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointProblem("neither a file nor a folder", where=path)
    real = root.resolve()
    listing = Listing({real.name: status.st_size}, {real.name: status.st_mtime})
    return Folder(real.parent, listing), real.name


def _walk(root: Path) -> Listing:
    listing = Listing()
    todo: list[tuple[Path, str, int]] = [(root, "", 0)]
    while todo:
        folder, prefix, depth = todo.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            listing.special[prefix or "."] = f"cannot be listed: {error.strerror}"
            continue
        for entry in entries:
            if len(listing.sizes) + len(listing.special) > MAX_FILES:
                listing.cut = True
                return listing
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                listing.folders.add(name)
                if depth < MAX_DEPTH:
                    todo.append((Path(entry.path), name + "/", depth + 1))
            else:
                _note(listing, root, entry, name)
    return listing


def _note(listing: Listing, root: Path, entry: os.DirEntry[str], name: str) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(entry.path)  # noqa: PTH115 - the text of the link, not its resolution
            real = inside(root, name)
            listing.links[name] = os.path.relpath(real, root.resolve())
            status = real.stat()
            if stat.S_ISDIR(status.st_mode):
                return
    except Malformed as error:
        listing.outside[name] = f"{target}: {error}"
        return
    except OSError as error:
        listing.special[name] = error.strerror or "cannot be inspected"
        return
    if not stat.S_ISREG(status.st_mode):
        kind = "FIFO" if stat.S_ISFIFO(status.st_mode) else "socket" if stat.S_ISSOCK(status.st_mode) else "device"
        listing.special[name] = kind
        return
    listing.sizes[name] = status.st_size
    listing.mtimes[name] = status.st_mtime


def _open_remote(url: str) -> tuple[Folder, str | None]:
    import fsspec  # type: ignore[import-untyped]

    try:
        system, base = fsspec.core.url_to_fs(url)
        found = system.find(base, detail=True)
    except Exception as error:
        raise CheckpointProblem(f"cannot be listed: {type(error).__name__}: {error}", where=url) from None
    listing = Listing()
    base = base.rstrip("/")
    for path, info in found.items():
        name = path[len(base) :].strip("/")
        if not name:
            parent, _, last = base.rpartition("/")
            return RemoteFolder(system, parent, Listing({last: int(info["size"])})), last
        listing.sizes[name] = int(info["size"])
        while "/" in name:
            name = name.rpartition("/")[0]
            listing.folders.add(name)
    if not listing.sizes:
        raise CheckpointProblem("nothing is there", where=url)
    return RemoteFolder(system, base, listing), None
