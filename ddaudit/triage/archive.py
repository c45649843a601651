"""One archive for a colleague or a vendor: redacted copies of a bundle with their hashes, and the way back."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddaudit.errors import EvidenceProblem, UsageProblem
from ddaudit.redact import redact_text
from ddaudit.triage.readers.files import BundleFile, blocks, open_file, walk

__all__ = ["MANIFEST", "is_archive", "unpacked", "write_archive"]

MANIFEST = "manifest.json"
SCHEMA = "ddaudit-bundle/1"
#: Larger files are cut to their last bytes: what broke stands at the end.
MAX_FILE_BYTES = 256 << 20
MAX_ARCHIVE_BYTES = 8 << 30
MAX_MEMBERS = 100_000


def write_archive(paths: list[Path], target: Path) -> dict[str, Any]:
    """Writes redacted copies of all files below ``paths`` and a manifest into a new ``.tar.gz``; returns the manifest.

    Binary files (Flight Recorder dumps) are copied as they are and marked so, since nothing in them can be hidden.

    Raises:
        UsageProblem: the target exists.
        EvidenceProblem: nothing there to pack.
    """
    if target.exists():
        raise UsageProblem("file exists", where=str(target), fix="choose another name with -o")
    files, notes = walk(paths)
    if not files:
        raise EvidenceProblem("nothing to pack", where=", ".join(map(str, paths)))
    rows: list[dict[str, Any]] = []
    part = target.with_name(target.name + ".part")
    with tarfile.open(part, "w:gz", compresslevel=6) as archive:
        for file in files:
            try:
                rows.append(_add(archive, file))
            except (EvidenceProblem, OSError) as problem:
                notes.append(f"{file.name}: not packed ({problem})")
        manifest = {"schema": SCHEMA, "files": rows, "notes": notes}
        _write(archive, MANIFEST, json.dumps(manifest, indent=1).encode())
    part.replace(target)
    return manifest


def _add(archive: tarfile.TarFile, file: BundleFile) -> dict[str, Any]:
    with open_file(file) as stream:
        parts = list(blocks(stream)) if file.bytes_on_disk <= MAX_FILE_BYTES else [_tail(file)]
    raw = b"".join(parts)
    binary = b"\0" in raw[:8192]
    if binary:
        raw = file.path.read_bytes()
    clean = raw if binary else redact_text(raw.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    _write(archive, file.name, clean)
    return {
        "name": file.name,
        "bytes": len(clean),
        "sha256": hashlib.sha256(clean).hexdigest(),
        "source_sha256": hashlib.sha256(raw).hexdigest(),
        "redacted": clean != raw,
        "binary": binary,
        "cut": file.bytes_on_disk > MAX_FILE_BYTES,
    }


def _tail(file: BundleFile) -> bytes:
    with file.path.open("rb") as stream:
        stream.seek(-MAX_FILE_BYTES, 2)
        return stream.read(MAX_FILE_BYTES)


def _write(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))


def is_archive(path: Path) -> bool:
    """True for a file that is a tar archive, compressed or not."""
    return path.is_file() and path.name.endswith((".tar", ".tar.gz", ".tgz")) and tarfile.is_tarfile(path)


@contextmanager
def unpacked(paths: list[Path]) -> Iterator[list[Path]]:
    """The paths, with archives replaced by temporary folders of their regular files. Hashes of our own are checked.

    Raises:
        EvidenceProblem: an archive is damaged, holds too much, or a file differs from its manifest.
    """
    with tempfile.TemporaryDirectory(prefix="ddaudit-bundle-") as name:
        ready = []
        for number, path in enumerate(paths):
            if not is_archive(path):
                ready.append(path)
                continue
            folder = Path(name) / str(number)
            folder.mkdir()
            _unpack(path, folder)
            _verify(path, folder)
            ready.append(folder)
        yield ready


def _unpack(path: Path, folder: Path) -> None:
    total = 0
    try:
        with tarfile.open(path) as archive:
            for count, member in enumerate(archive):
                total += member.size
                if total > MAX_ARCHIVE_BYTES or count > MAX_MEMBERS:
                    raise EvidenceProblem("archive holds too much", where=str(path))
                if member.isreg():
                    archive.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise EvidenceProblem(f"archive cannot be read: {error}", where=str(path)) from error


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
