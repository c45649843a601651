"""Tensors read by processes of their own, which see files through windows of mapped pages instead of copies.

A mapped page of a file that somebody shortens meanwhile kills the process that looks at it (SIGBUS). So only children
map; whatever a child that died had not yet told stays undone, and the pass reads it as usual and says what is wrong.
Children also do not share an interpreter, so that two of them take half the time.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import json
import mmap
import os
import resource
import selectors
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ddaudit.checkpoint.examine import Examined, examine
from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.model import Tensor
from ddaudit.checkpoint.scan import BLOCK_BYTES, TensorScan
from ddaudit.inert import FileSource, Malformed, Source

__all__ = ["LEAST_BYTES", "MappedFile", "examine_apart"]

LEAST_BYTES = 64 << 20
"""Below this, starting a process costs more than it saves."""
WINDOW_BYTES, LEAST_WINDOW_BYTES = 16 << 20, 1 << 20
OPEN_FILES = 64
REPORT_BYTES = 16 << 20
Took = Callable[[int, Examined], None]


class MappedFile(FileSource):
    """A local file of which one window is mapped at a time."""

    _start = 0
    _window: memoryview | None = None

    def view(self, offset: int, length: int, end: int) -> memoryview:
        """Bytes of the file, valid as long as they are held; raises Malformed where it ends before them. ``end`` is
        where the run of bytes ends that the caller reads block by block: no more is mapped for it."""
        if self._window is None or not self._start <= offset <= self._start + len(self._window) - length:
            self._window = self._map(offset, length, end)
        at = offset - self._start
        return self._window[at : at + length]

    def _map(self, offset: int, length: int, end: int) -> memoryview:
        if offset + length > self.size:
            raise Malformed(f"{length:,} bytes at {offset:,} are not inside the {self.size:,} bytes there are")
        self._start = offset - offset % mmap.ALLOCATIONGRANULARITY
        wanted = max(length, min(WINDOW_BYTES, max(LEAST_WINDOW_BYTES, end - offset)))
        size = min(offset - self._start + wanted, self.size - self._start)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # one call for all pages instead of a fault for each
        self.pread(0, 0)  # opens it again where it was closed
        try:
            return memoryview(mmap.mmap(self.fd, size, flags=flags, prot=mmap.PROT_READ, offset=self._start))
        except ValueError as error:  # the file is shorter by now
            raise Malformed(f"{error} (did the file change?)", offset) from None


def examine_apart(
    tensors: Sequence[Tensor],
    folder: Folder,
    jobs: int,
    took: Took,
    count: Callable[[int], None],
    *,
    digest: bool,
) -> None:
    """Examines tensors in ``jobs`` processes. ``took`` is called with the index of each one that was examined, in any
    order; one that is left out has to be examined otherwise. ``count`` is told bytes as they are read (below zero for
    those of a tensor that was given up)."""
    children: list[_Child] = []
    try:
        with selectors.DefaultSelector() as ready:
            for indices in _shares(tensors, jobs):
                children.append(_Child(tensors, indices, folder, digest))
                ready.register(children[-1].pipe, selectors.EVENT_READ, children[-1])
            while ready.get_map():
                for key, _ in ready.select():
                    child: _Child = key.data
                    if not child.hear(tensors, took, count):
                        ready.unregister(child.pipe)
    finally:
        for child in children:
            child.end()


def _shares(tensors: Sequence[Tensor], jobs: int) -> list[list[int]]:
    """Runs of neighbouring tensors of about equal bytes, one for each process."""
    total, done = sum(t.nbytes for t in tensors), 0
    shares: list[list[int]] = [[] for _ in range(jobs)]
    for index, tensor in enumerate(tensors):
        shares[min(jobs - 1, (done + tensor.nbytes // 2) * jobs // max(1, total))].append(index)
        done += tensor.nbytes
    return [share for share in shares if share]


class _Child:
    """One process and the pipe on which it tells what it found, one JSON object a line."""

    def __init__(self, tensors: Sequence[Tensor], indices: Sequence[int], folder: Folder, digest: bool) -> None:
        self.pipe, out = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.pipe)
            _child(tensors, indices, folder, digest, out)
        os.close(out)
        self.text = b""
        self.pending = 0

    def hear(self, tensors: Sequence[Tensor], took: Took, count: Callable[[int], None]) -> bool:
        """Takes what the child has written; False at its end."""
        data = os.read(self.pipe, 1 << 16)
        *lines, self.text = (self.text + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "failed" in told:
                raise RuntimeError(f"a process that reads for the audit failed:\n{told['failed']}")
            count(told["read"])
            self.pending += told["read"]
            if "index" in told:
                self.pending = 0
                took(told["index"], _unpacked(tensors[told["index"]], told))
        if not data:
            count(-self.pending)
        return bool(data)

    def end(self) -> None:
        """Stops the process, if it still runs, and collects it."""
        os.close(self.pipe)
        os.kill(self.pid, signal.SIGKILL)  # not collected yet, so the number is still its own
        os.waitpid(self.pid, 0)


def _child(tensors: Sequence[Tensor], indices: Sequence[int], folder: Folder, digest: bool, out: int) -> NoReturn:
    """The whole life of a child. It never returns: what its parent would do at its end is not the child's to do."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGBUS, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        gc.disable()
        _examine_all(tensors, indices, folder, digest, out)
    except Exception:  # the parent raises it again, where somebody can see it
        with open(out, "wb", closefd=False) as pipe:
            pipe.write(json.dumps({"failed": traceback.format_exc()}).encode() + b"\n")
    finally:
        os._exit(0)


def _examine_all(tensors: Sequence[Tensor], indices: Sequence[int], folder: Folder, digest: bool, out: int) -> None:
    sources: dict[str, Source] = {}
    buffer = memoryview(bytearray(BLOCK_BYTES))
    pending = 0

    def opened(name: str) -> Source:
        if name not in sources:
            if len(sources) >= OPEN_FILES:
                sources.pop(next(iter(sources))).close()
            plain = folder.opened_anew(name)
            sources[name] = MappedFile(plain.path, name) if isinstance(plain, FileSource) else plain
        return sources[name]

    def tell(more: dict[str, Any]) -> None:
        nonlocal pending
        line = json.dumps({"read": pending, **more}).encode() + b"\n"
        pending = 0
        while line:
            line = line[os.write(out, line) :]

    def count(length: int) -> None:
        nonlocal pending
        pending += length
        if pending >= REPORT_BYTES:
            tell({})

    for index in indices:
        tell({"index": index, **_packed(examine(tensors[index], opened, buffer, digest=digest, count=count))})


def _packed(found: Examined) -> dict[str, Any]:
    crcs = [[checksum.file, checksum.offset, crc] for checksum, crc in found.crcs]
    return {"scan": dataclasses.asdict(found.scan), "crcs": crcs, "fault": found.fault}


def _unpacked(tensor: Tensor, told: dict[str, Any]) -> Examined:
    spans = [c.span() for c in tensor.chunks]
    known = {
        (s.checksum.file, s.checksum.offset): s.checksum for s in spans if s is not None and s.checksum is not None
    }
    crcs = [(known[file, offset], crc) for file, offset, crc in told["crcs"]]
    return Examined(TensorScan(**told["scan"]), crcs, told["fault"])
