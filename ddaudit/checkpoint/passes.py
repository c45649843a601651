"""The full pass over a checkpoint: every tensor streamed once, every recorded checksum compared, by several workers."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from isal import isal_zlib

from ddaudit.checkpoint.apart import LEAST_BYTES, examine_apart
from ddaudit.checkpoint.examine import Examined, examine
from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.model import Checkpoint, Checksum, Tensor
from ddaudit.checkpoint.scan import BLOCK_BYTES, TensorScan
from ddaudit.inert import FileSource, Malformed, Source

Progress = Callable[[int, int], None]
_OPEN_PER_WORKER = 16
_BATCH = 256  # checksums that one worker takes at once


@dataclass(slots=True)
class PassResult:
    """Digests by tensor name, and how much was read and compared."""

    scans: dict[str, TensorScan] = field(default_factory=dict)
    bytes_read: int = 0
    crcs: int = 0


class _Workers(threading.local):
    """Each worker has its own file handles: a shared one could be closed and its number used again during a read."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self.buffer = memoryview(bytearray(BLOCK_BYTES))


class FullPass:
    """One pass. ``known`` holds results of an interrupted pass, which are not computed again."""

    def __init__(
        self,
        made: Checkpoint,
        folder: Folder,
        *,
        jobs: int = 1,
        digest: bool = True,
        progress: Progress | None = None,
        known: dict[str, TensorScan] | None = None,
        done: Callable[[TensorScan], None] | None = None,
    ) -> None:
        self.made = made
        self.folder = folder
        self.jobs = max(1, jobs)
        self.digest = digest
        self.progress = progress
        self.known = known or {}
        self.done = done
        self.result = PassResult()
        self.lock = threading.Lock()
        self.workers = _Workers()
        self.opened: list[Source] = []
        self.checked: set[tuple[str, int]] = set()
        self.differ: set[tuple[str, int]] = set()
        self.total = 0

    def run(self) -> PassResult:
        tensors = [t for t in self.made.tensors.values() if t.chunks or not t.numel]
        # Places are looked up by one thread: it shares the folder's handles and notes faults.
        placed = [t for t in tensors if all(c.span() is not None for c in t.chunks)]
        placed.sort(key=lambda t: _place(t))
        primary = self._aliases(placed)
        rest = self._rest_checksums(primary)
        self.total = sum(t.nbytes for t in primary) + sum(c.length for c in rest)
        left = self._apart(primary)
        with ThreadPoolExecutor(self.jobs) as pool:
            self._drain(pool.map(self._tensor, left))
            rest += self._missed(primary)
            # Most are of a few bytes: handing over each on its own would cost more than reading it.
            rest.sort(key=lambda c: (c.file, c.offset))
            self._drain(pool.map(self._checksums, batched(rest)))
        for tensor in placed:
            if tensor.name not in self.result.scans and tensor.alias:
                first = next((p for p in primary if p.alias == tensor.alias), None)
                if first is not None and first.name in self.result.scans:
                    self.result.scans[tensor.name] = self.result.scans[first.name]
        for name, scan in self.made.facts.get("scanned", {}).items():
            self.result.scans[name] = TensorScan(name, **scan)
        self._sha256()
        return self.result

    @staticmethod
    def _drain(results: Iterable[Any]) -> None:
        for _ in results:
            pass

    @staticmethod
    def _aliases(placed: list[Tensor]) -> list[Tensor]:
        """Each run of bytes once, also when several names share it."""
        seen: set[str] = set()
        primary = []
        for tensor in placed:
            if tensor.alias is not None:
                if tensor.alias in seen:
                    continue
                seen.add(tensor.alias)
            primary.append(tensor)
        return primary

    def _rest_checksums(self, primary: list[Tensor]) -> list[Checksum]:
        """Checksums of bytes that no tensor's own reading covers exactly."""
        fused: set[tuple[str, int]] = set()
        others: dict[tuple[str, int], Checksum] = {}
        for tensor in primary:
            for chunk in tensor.chunks:
                span = chunk.span()
                if span is None or span.checksum is None:
                    continue
                key = (span.checksum.file, span.checksum.offset)
                exact = span.stride is None and span.offset == span.checksum.offset
                if exact and chunk.numel * tensor.item_bytes == span.checksum.length:
                    fused.add(key)
                    if tensor.name in self.known:  # the interrupted pass compared it
                        self.checked.add(key)
                        self.result.crcs += 1
                else:
                    others[key] = span.checksum
        for checksum in self.made.checksums:
            others.setdefault((checksum.file, checksum.offset), checksum)
        return [c for key, c in others.items() if key not in fused]

    def _missed(self, primary: list[Tensor]) -> list[Checksum]:
        """Checksums that a broken-off tensor left unchecked."""
        left: dict[tuple[str, int], Checksum] = {}
        for tensor in primary:
            scan = self.result.scans.get(tensor.name)
            for chunk in tensor.chunks if scan is None or not scan.complete else []:
                span = chunk.span()
                if span is not None and span.checksum is not None:
                    key = (span.checksum.file, span.checksum.offset)
                    if key not in self.checked:
                        left[key] = span.checksum
        return list(left.values())

    def _open(self, name: str) -> Source:
        sources = self.workers.sources
        if name not in sources:
            if len(sources) >= _OPEN_PER_WORKER:
                sources.pop(next(iter(sources))).close()
            shared = self.folder.source(name) if not isinstance(self.folder, Folder) else None
            sources[name] = shared or self.folder.opened_anew(name)
            self.opened.append(sources[name])
        return sources[name]

    def _apart(self, primary: list[Tensor]) -> list[Tensor]:
        """Has processes of their own read what lies in local files, if it is much; returns what is left to read."""
        todo = [t for t in primary if t.name not in self.known]
        if type(self.folder) is not Folder or sum(t.nbytes for t in todo) < LEAST_BYTES or not hasattr(os, "fork"):
            return primary
        for name in dict.fromkeys(chunk.file for tensor in todo for chunk in tensor.chunks):
            with suppress(Malformed, OSError):
                self._open(name)  # notes when it was written last
        done: set[str] = set()

        def took(index: int, found: Examined) -> None:
            self._take(todo[index], found)
            done.add(todo[index].name)

        examine_apart(todo, self.folder, self.jobs, took, self._count, digest=self.digest)
        return [t for t in primary if t.name not in done]

    def _tensor(self, tensor: Tensor) -> None:
        if tensor.name in self.known:
            self._keep(self.known[tensor.name])
            return
        self._take(tensor, examine(tensor, self._open, self.workers.buffer, digest=self.digest, count=self._count))

    def _take(self, tensor: Tensor, found: Examined) -> None:
        for checksum, crc in found.crcs:
            self._compare(checksum, crc)
        if found.fault is not None:
            file = tensor.chunks[0].file if tensor.chunks else tensor.file
            with self.lock:
                self.made.fault("file.changed", found.fault, file=file, tensor=tensor.name)
        self._keep(found.scan)

    def _keep(self, scan: TensorScan) -> None:
        with self.lock:
            self.result.scans[scan.name] = scan
            if self.done is not None and scan.complete and not self._damaged(scan.name):
                self.done(scan)

    def _damaged(self, name: str) -> bool:
        """A tensor whose checksum differs is read again by the pass that continues this one, so that it says so."""
        tensor = self.made.tensors.get(name)
        spans = [c.span() for c in tensor.chunks] if tensor is not None and self.differ else []
        return any(
            s is not None and s.checksum is not None and (s.checksum.file, s.checksum.offset) in self.differ
            for s in spans
        )

    def _checksums(self, batch: list[Checksum]) -> None:
        for checksum in batch:
            self._checksum(checksum)

    def _checksum(self, checksum: Checksum) -> None:
        """A stored CRC on its own: members other than tensors, and storages that are seen through views."""
        crc, at = 0, 0
        try:
            source = self._open(checksum.file)
            while at < checksum.length:
                block = source.read(checksum.offset + at, min(BLOCK_BYTES, checksum.length - at))
                crc = isal_zlib.crc32(block, crc)
                at += len(block)
                self._count(len(block))
        except (Malformed, OSError) as error:
            with self.lock:
                self.made.fault("file.changed", f"{checksum.file}: {error}", file=checksum.file, key=checksum.member)
            return
        self._compare(checksum, crc)

    def _compare(self, checksum: Checksum, crc: int) -> None:
        with self.lock:
            key = (checksum.file, checksum.offset)
            if key in self.checked:
                return
            self.checked.add(key)
            self.result.crcs += 1
            if crc != checksum.crc:
                self.differ.add(key)
                text = (
                    f"{checksum.file}: the bytes of {checksum.member} "
                    f"have CRC {crc:08x}, {checksum.crc:08x} was recorded"
                )
                self.made.fault(
                    "integrity.crc",
                    text,
                    file=checksum.file,
                    key=checksum.member,
                    measured=f"{crc:08x}",
                    limit=f"{checksum.crc:08x}",
                )

    def _count(self, length: int) -> None:
        with self.lock:
            self.result.bytes_read += length
            if self.progress is not None:
                self.progress(self.result.bytes_read, self.total)

    def _sha256(self) -> None:
        """Files that Megatron's integrity.json lists."""
        for name, wanted in self.made.facts.get("sha256", {}).items():
            if name not in self.folder.listing.sizes:
                self.made.fault("complete.file-missing", f"{name} is listed in integrity.json and missing", file=name)
                continue
            digest, at = hashlib.sha256(), 0
            source = self._open(name)
            while at < source.size:
                block = source.read(at, min(BLOCK_BYTES, source.size - at))
                digest.update(block)
                at += len(block)
            self.result.crcs += 1
            if digest.hexdigest() != wanted:
                text = f"{name}: sha256 is not the one in integrity.json"
                self.made.fault("integrity.crc", text, file=name, measured=digest.hexdigest()[:16], limit=wanted[:16])

    def close(self) -> list[str]:
        """Gives the workers' files back; returns those that were modified while they were read."""
        changed = {s.name for s in self.opened if isinstance(s, FileSource) and s.changed()}
        for source in self.opened:
            source.close()
        return sorted(changed)


def batched(checksums: list[Checksum]) -> list[list[Checksum]]:
    """Small ones together, up to ``BLOCK_BYTES`` or ``_BATCH`` of them."""
    made: list[list[Checksum]] = []
    room = 0
    for checksum in checksums:
        if not made or checksum.length > room or len(made[-1]) >= _BATCH:
            made.append([])
            room = BLOCK_BYTES
        made[-1].append(checksum)
        room -= checksum.length
    return made


def _place(tensor: Tensor) -> tuple[str, int]:
    span = tensor.chunks[0].span() if tensor.chunks else None
    return (span.file, span.offset) if span is not None else ("", 0)
