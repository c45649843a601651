"""Archives as folders: those that the caller names, and those that lie among the files of a bundle.

Members are written below a temporary folder and nowhere else; links and devices are left out; counts and bytes are
bounded. Hashes of our own archives are checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ddaudit.errors import EvidenceProblem
from ddaudit.triage.readers.files import ARCHIVES, printable

__all__ = ["MANIFEST", "Ready", "unpacked"]

MANIFEST = "manifest.json"
MAX_ARCHIVE_BYTES = 8 << 30
MAX_MEMBERS = 100_000
#: Archives in the folders of one bundle that are opened; a bundle has one a node or one a rank.
MAX_NESTED = 2_000
#: Files that are looked at in the search for archives.
MAX_SEARCHED = 200_000


@dataclass
class Ready:
    """Folders and files to read, and what could not be opened."""

    roots: list[Path]
    notes: list[str] = field(default_factory=list)


@contextmanager
def unpacked(paths: list[Path]) -> Iterator[Ready]:
    """The paths, with archives replaced by temporary folders of their regular files.

    An archive inside a folder becomes a folder of its own name beside it; a broken one becomes a note.

    Raises:
        EvidenceProblem: a named archive is damaged, holds too much, or a file differs from its manifest.
    """
    with tempfile.TemporaryDirectory(prefix="ddaudit-bundle-") as name:
        ready = Ready([])
        for number, path in enumerate(paths):
            folder = Path(name) / f"{number}"
            if path.is_file() and path.name.lower().endswith(ARCHIVES):
                folder.mkdir()
                _unpack(path, folder)
                _verify(path, folder)
                path = folder
            ready.roots.append(path)
            if path.is_dir():
                _nested(path, Path(name) / f"{number}-inner", ready)
        yield ready


def _nested(root: Path, folder: Path, ready: Ready) -> None:
    """Opens the archives below a folder, those inside of them not."""
    for path in _archives(root):
        shown = printable(os.path.relpath(path, root))
        target = folder / os.path.relpath(path, root)
        target.mkdir(parents=True)
        try:
            _unpack(path, target)
        except EvidenceProblem as problem:
            ready.notes.append(f"{shown}: {problem}")
    if folder.is_dir():
        ready.roots.append(folder)


def _archives(root: Path) -> list[Path]:
    found: list[Path] = []
    seen = 0
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()
        found += [p for n in sorted(names) if n.lower().endswith(ARCHIVES) and (p := Path(folder) / n).is_file()]
        seen += len(names)
        if seen > MAX_SEARCHED or len(found) >= MAX_NESTED:
            break
    return found[:MAX_NESTED]


def _unpack(path: Path, folder: Path) -> None:
    try:
        if path.suffix.lower() == ".zip":
            _unzip(path, folder)
        else:
            _untar(path, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise EvidenceProblem(f"archive cannot be read: {error}", where=str(path)) from error


def _untar(path: Path, folder: Path) -> None:
    total = 0
    with tarfile.open(path) as archive:
        for count, member in enumerate(archive):
            total += member.size
            if total > MAX_ARCHIVE_BYTES or count > MAX_MEMBERS:
                raise EvidenceProblem("archive holds too much", where=str(path))
            source = archive.extractfile(member) if member.isreg() else None
            if source is not None:
                # By hand: filters of `extract` came with Python 3.11.4. As tar does, a name's first slash is dropped.
                target = _inside(path, folder, member.name.lstrip("/"))
                with source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
                os.utime(target, (member.mtime, member.mtime))


def _unzip(path: Path, folder: Path) -> None:
    left = MAX_ARCHIVE_BYTES
    with zipfile.ZipFile(path) as archive:
        for count, member in enumerate(archive.infolist()):
            if member.is_dir():
                continue
            if count > MAX_MEMBERS:
                raise EvidenceProblem("archive holds too much", where=str(path))
            target = _inside(path, folder, member.filename)
            with archive.open(member) as source, target.open("wb") as sink:
                # What the archive says of its sizes is not believed: the bytes are counted.
                shutil.copyfileobj(_Counted(source, left), sink)
                left -= sink.tell()


def _inside(path: Path, folder: Path, name: str) -> Path:
    """Where a member of an archive is written; the folder for it is made.

    Raises:
        EvidenceProblem: the member's name leads out of the folder.
    """
    target = folder / name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise EvidenceProblem("archive cannot be read: it names a file outside of it", where=str(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


class _Counted:
    """Reads on until more bytes come than are allowed."""

    def __init__(self, source: object, left: int) -> None:
        self.source, self.left = source, left

    def read(self, size: int = -1) -> bytes:
        block: bytes = self.source.read(size)  # type: ignore[attr-defined]
        self.left -= len(block)
        if self.left < 0:
            raise ValueError("archive holds too much")
        return block


def _verify(path: Path, folder: Path) -> None:
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return
    try:
        rows = json.loads(manifest.read_text("utf-8"))["files"]
        wanted = {str(row["name"]): str(row["sha256"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise EvidenceProblem("manifest cannot be read", where=f"{path}:{MANIFEST}") from error
    manifest.unlink()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(file.relative_to(folder))
        if wanted.get(name) != hashlib.sha256(file.read_bytes()).hexdigest():
            raise EvidenceProblem("file differs from the manifest", where=f"{path}:{name}")
