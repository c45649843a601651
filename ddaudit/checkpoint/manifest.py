"""Manifests: a checkpoint's identity as a small canonical JSON file, written on one cluster and verified on another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddaudit.checkpoint.collect import Collected, Options, collect
from ddaudit.checkpoint.diff import _why_not, compare_identities
from ddaudit.checkpoint.identity import Identity, TensorId, identify
from ddaudit.checkpoint.passes import Progress
from ddaudit.checkpoint.scan import TILE_BYTES, TensorScan
from ddaudit.errors import EvidenceProblem
from ddaudit.evidence.checkpoint import CheckpointDiff
from ddaudit.inert import Malformed, read_json

SCHEMA = "ddaudit-manifest/1"
_JOURNAL = "ddaudit-journal/2"  # from 2 on, a tensor in it had the checksum that was recorded for it
_MAX_BYTES = 1 << 30


def manifest_of(collected: Collected) -> dict[str, Any]:
    """The manifest. It holds nothing of the machine or the moment, so equal checkpoints give equal bytes."""
    identity = identify(collected)
    step = next((s.value for s in collected.facts.steps if s.main), None)
    return {
        "schema": SCHEMA,
        "tile_bytes": TILE_BYTES,
        "global_step": step,
        "tensors": {
            name: {
                "dtype": t.dtype,
                "shape": list(t.shape),
                "digest": t.digest,
                **({"tiles": t.tiles} if len(t.tiles) > 1 else {}),
            }
            for name, t in sorted(identity.tensors.items())
        },
        "values": dict(sorted(identity.values.items())),
        "ignored": dict(sorted(identity.ignored.items())),
    }


def render(manifest: dict[str, Any]) -> str:
    """Canonical text: sorted keys, one entry a line, a newline at the end."""
    return json.dumps(manifest, sort_keys=True, indent=0, ensure_ascii=True, allow_nan=False) + "\n"


def write(manifest: dict[str, Any], path: Path) -> None:
    """Replaces ``path`` at once."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(render(manifest), encoding="ascii")
        temporary.replace(path)
    except OSError as error:
        raise EvidenceProblem(f"cannot be written: {error.strerror}", where=str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> Identity:
    """Reads a manifest.

    Raises:
        EvidenceProblem: it is missing, no manifest, or of another version.
    """
    try:
        document = read_json(path.read_bytes(), max_bytes=_MAX_BYTES).value
    except (OSError, Malformed) as error:
        raise EvidenceProblem(f"is no manifest: {error}", where=str(path), expected=SCHEMA) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise EvidenceProblem("is no manifest of this version", where=str(path), expected=SCHEMA)
    tensors, values = document.get("tensors"), document.get("values")
    if not isinstance(tensors, dict) or not isinstance(values, dict):
        raise EvidenceProblem("is a manifest without tensors or values", where=str(path), expected=SCHEMA)
    identity = Identity(values=values, ignored=document.get("ignored") or {})
    for name, row in tensors.items():
        try:
            tiles = row.get("tiles") or []
            identity.tensors[name] = TensorId(str(row["dtype"]), tuple(row["shape"]), row["digest"], tiles, name)
        except (KeyError, TypeError, AttributeError):
            raise EvidenceProblem(f"tensor {name[:100]!r} has no dtype, shape and digest", where=str(path)) from None
    return identity


def verify(path: str, manifest: str, jobs: int = 1, progress: Progress | None = None) -> CheckpointDiff:
    """Compares the checkpoint at ``path`` (b) with a manifest (a)."""
    said = load(Path(manifest))
    collected = collect(path, Options(level="full", jobs=jobs, digest=True, progress=progress))
    found = identify(collected)
    reason = _why_not(collected, found)
    fields = compare_identities(said, found)
    collected.folder.close()
    return CheckpointDiff(a=manifest, b=path, comparable=not reason, reason=reason, **fields)


class Journal:
    """Digests of an unfinished pass, a line each: what was read need not be read again after an interruption.

    The first line holds the checkpoint's file names, sizes and times; a journal of other files is started anew.
    """

    def __init__(self, path: Path, stamp: str) -> None:
        self.path = path
        self.known: dict[str, TensorScan] = {}
        self.stamp = f"{_JOURNAL}|{stamp}"
        fresh = not self._load()
        try:
            self._file = path.open("w" if fresh else "a", encoding="utf-8")
        except OSError as error:
            raise EvidenceProblem(f"cannot be written: {error.strerror}", where=str(path)) from None
        if fresh:
            self._file.write(json.dumps({"stamp": self.stamp}) + "\n")
            self._file.flush()

    def _load(self) -> bool:
        """Reads what an interrupted pass over the same files left; False when the journal must be started anew.

        Raises:
            EvidenceProblem: the file is something else, which must not be overwritten.
        """
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return False
        if not lines:
            return False
        if not lines[0].startswith('{"stamp": "'):
            raise EvidenceProblem("is there and no journal", where=str(self.path), fix="name another file")
        try:
            if json.loads(lines[0])["stamp"] != self.stamp:
                return False
            for line in lines[1:]:
                scan = TensorScan(**json.loads(line))
                self.known[scan.name] = scan
        except (ValueError, TypeError, KeyError):
            pass  # a line cut by the interruption: what stands before it is kept
        return bool(self.known)

    def add(self, scan: TensorScan) -> None:
        fields = {slot: getattr(scan, slot) for slot in TensorScan.__slots__}
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()

    def close(self, *, finished: bool) -> None:
        self._file.close()
        if finished:
            self.path.unlink(missing_ok=True)
