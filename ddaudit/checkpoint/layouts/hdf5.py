"""Keras and plain HDF5. The C library is used only in a child process with limits, after every link was looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts.hdf5_optimizer import check_slots
from ddaudit.checkpoint.model import Checkpoint, Chunk, Span, Tensor, Value
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion
from ddaudit.inert import Malformed, Source

NAME = "hdf5"
MAGIC = b"\x89HDF\r\n\x1a\n"
_TIMEOUT_S = 600
SUFFIXES = (".h5", ".hdf5", ".keras")


def detect(folder: Folder) -> bool:
    return any(n.endswith(SUFFIXES) or is_hdf5(folder, n) for n in folder.here() if not n.startswith("."))


def is_hdf5(folder: Folder, name: str) -> bool:
    """The signature stands at 0, or at 512, 1024, 2048 ... behind a user block."""
    try:
        source = folder.source(name)
    except Malformed:
        return False
    return _superblock(source) is not None


def _superblock(source: Source) -> int | None:
    at = 0
    while at + 8 <= source.size and at <= 1 << 20:
        if source.pread(at, 8) == MAGIC:
            return at
        at = 512 if at == 0 else at * 2
    return None


def read(reader: Reader, only: str | None = None) -> None:
    folder, made = reader.folder, reader.made
    names = [only] if only else [n for n in folder.here() if n.endswith(SUFFIXES) or is_hdf5(folder, n)]
    for name in names:
        _read_file(reader, name, f"{name.rsplit('.', 1)[0]}." if len(names) > 1 else "")
    made.completion = Completion(proven=True, proof="the superblock's end of file fits the file")
    made.promises.update(
        {"sampler": "unsaved", "schedule": "unsaved", "rng": "unsaved", "scaler": "unsaved", "step": "expected"}
    )
    for area in ("sampler", "schedule", "rng"):
        made.promise_notes[area] = "Keras files hold weights and optimizer variables only"


def _read_file(reader: Reader, name: str, prefix: str) -> None:
    made, full = reader.made, reader.folder.full(name)
    source = reader.open(name)
    if source is None:
        return
    at = _superblock(source)
    if at is None and source.pread(0, 4) != b"PK\x03\x04":
        reader._unreadable(source, full, Malformed("no HDF5 signature"), None)
        return
    if at is not None and not _check_size(made, source, at, full):
        return
    document = _child(reader, name)
    if document is not None:
        _add(reader, document, full, prefix)


def _check_size(made: Checkpoint, source: Source, at: int, full: str) -> bool:
    """End-of-file address of superblock versions 0 to 3 against the file's size."""
    head = source.pread(at, 96)
    version = head[8] if len(head) > 8 else 255
    size_at = {0: 13, 1: 13, 2: 9, 3: 9}.get(version)
    width = head[size_at] if size_at is not None and len(head) > size_at else 0
    eof_at = {0: 24 + 2 * width, 1: 28 + 2 * width, 2: 12 + 2 * width, 3: 12 + 2 * width}.get(version)
    if width not in (4, 8) or eof_at is None or len(head) < eof_at + width:
        made.fault("file.malformed", f"{full}: the HDF5 superblock is not understood", file=full)
        return False
    end = int.from_bytes(head[eof_at : eof_at + width], "little") + at
    if end > source.size:
        text = f"{full} is cut: the superblock says {end:,} bytes, the file has {source.size:,}"
        made.fault("file.truncated", text, file=full, measured=source.size, limit=end, unit="byte")
        return False
    if end < source.size:
        made.fault(
            "file.trailing",
            f"{full}: {source.size - end:,} bytes follow the HDF5 data",
            file=full,
            measured=source.size - end,
        )
    return True


def _child(reader: Reader, name: str) -> dict[str, Any] | None:
    made, full = reader.made, reader.folder.full(name)
    try:
        path = reader.folder.local(name)
    except Malformed as error:
        made.fault("file.unsupported", f"{full}: {error}", file=full)
        return None
    argv = [sys.executable, "-m", "ddaudit.checkpoint.hdf5_child", str(path), reader.level]
    environment = {
        k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "LANG")
    }
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (*sys.path, environment.get("PYTHONPATH", "")) if p)
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, env=environment, check=False)
        document: Any = json.loads(done.stdout) if done.stdout else None
    except (subprocess.TimeoutExpired, ValueError):
        document, done = None, None
    if not isinstance(document, dict):
        code = done.returncode if done is not None else "timeout"
        made.fault("file.malformed", f"{full}: the HDF5 library could not read it (exit {code})", file=full)
        return None
    if "error" in document:
        made.fault("file.malformed", f"{full}: {document['error']}", file=full)
        return None
    return document


def _add(reader: Reader, document: dict[str, Any], full: str, prefix: str) -> None:
    made = reader.made
    for kind, key, text in document["faults"]:
        made.fault(kind, f"{full}: {text}", file=full, key=key)
    for item in document["datasets"]:
        name = prefix + _name(item["name"])
        tensor = Tensor(name, item["dtype"], tuple(item["shape"]), file=full, value=item.get("value"))
        if item["offset"] is not None and item["dtype"] != "?":
            tensor.chunks.append(Chunk((0,) * len(tensor.shape), tensor.shape, full, Span(full, item["offset"])))
        made.add_tensor(tensor)
        if "scan" in item:
            made.facts.setdefault("scanned", {})[name] = item["scan"]
    for name, value in document["attributes"].items():
        if not name.endswith(("layer_names", "weight_names")):
            made.values[prefix + _name(name)] = Value(prefix + _name(name), value, full)
    _check_names(made, document, full)
    check_slots(made, full)
    if "training_config" in document["attributes"] and not any(
        i["name"].startswith("optimizer_weights") for i in document["datasets"]
    ):
        text = "the model was saved with its training configuration, but there are no optimizer weights"
        made.fault("optimizer.absent", text, file=full, key="optimizer_weights")


def _name(path: str) -> str:
    return path.replace("/", ".").replace(":0", "").removeprefix("trainer_state.")


def _check_names(made: Checkpoint, document: dict[str, Any], full: str) -> None:
    """layer_names and weight_names list what must be there."""
    have = {item["name"] for item in document["datasets"]}
    groups = set(document["groups"])
    for name, value in document["attributes"].items():
        group, _, word = name.rpartition("/")
        if not isinstance(value, list):
            continue
        for item in value:
            if word == "layer_names" and f"{group}/{item}" not in groups:
                made.fault(
                    "tensor.missing", f"{full}: the layer {item} is listed but not there", file=full, tensor=str(item)
                )
            elif word == "weight_names" and not any(h.startswith(f"{group}/") and h.endswith(f"/{item}") for h in have):
                text = f"{full}: the weight {item} of {group} is listed but not there"
                made.fault("tensor.missing", text, file=full, tensor=f"{group}/{item}")
