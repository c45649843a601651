"""One archive for a colleague or a vendor: redacted copies of a bundle with their hashes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from ddaudit.errors import EvidenceProblem, UsageProblem
from ddaudit.redact import redact_text
from ddaudit.triage.readers.files import BundleFile, blocks, open_file, walk
from ddaudit.triage.unpack import MANIFEST

__all__ = ["write_archive"]

SCHEMA = "ddaudit-bundle/1"
#: Larger files are cut to their last bytes: what broke stands at the end.
MAX_FILE_BYTES = 256 << 20


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
