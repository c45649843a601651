"""Reads a whole bundle: every file once, structured forms by what they look like, everything else by the catalogue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ddaudit.errors import EvidenceProblem
from ddaudit.evidence.incident import SourceFile
from ddaudit.triage.catalogue import Catalogue, Matcher
from ddaudit.triage.readers import names, nvidia, slurm, tables
from ddaudit.triage.readers.collect import Gathered, spot
from ddaudit.triage.readers.files import BundleFile, blocks, open_file, walk
from ddaudit.triage.readers.lines import LineReader
from ddaudit.triage.readers.logs import EXTRA, LogReader
from ddaudit.triage.readers.recorder import read_recorder
from ddaudit.triage.readers.scan import LineHits, scan_block
from ddaudit.triage.readers.sections import SEPARATOR, sections
from ddaudit.triage.readers.stacks import add_stacks, looks_like_stacks
from ddaudit.triage.readers.stamps import Calendar, year_in
from ddaudit.triage.readers.steps import PROGRESS, per_rank, read_step

__all__ = ["Bundle", "read_bundle"]

#: Structured forms (tables, dumps) are read whole; nothing of the kind is larger.
MAX_STRUCTURED_BYTES = 32 << 20
#: Bytes over the whole bundle whose lines are read as training steps, shared among its files.
STEP_BYTES = 4 << 20
STEP_MIN, STEP_MAX = 4 << 10, 4 << 20
#: Lines at either end of a file that are read for the time it spans.
ENDS = 20
#: Of a binary file only this much is skimmed.
MAX_BINARY_BYTES = 4 << 20


class Bundle:
    """The readers at work on one bundle."""

    def __init__(self, catalogue: Catalogue, files: list[BundleFile], notes: list[str]) -> None:
        self.files = files
        self.gathered = Gathered(notes=notes)
        self.matcher: Matcher = catalogue.matcher(EXTRA)
        self.logs: list[LogReader] = []
        self.numbered = names.numbered_ranks(f.name for f in files)
        self.year = self._year()
        self.step_bytes = min(max(STEP_BYTES // max(len(files), 1), STEP_MIN), STEP_MAX)

    def _year(self) -> int | None:
        for file in self.files[:200]:
            try:
                with open_file(file) as stream:
                    head = next(blocks(stream), b"")[:16384]
            except (EvidenceProblem, OSError, EOFError, ValueError):
                continue
            if year := year_in(head):
                return year
        return None

    def read(self) -> Gathered:
        """Reads all files; one that cannot be read becomes a note, never an end."""
        for file in self.files:
            try:
                self._file(file)
            except (EvidenceProblem, OSError, EOFError) as problem:
                self.gathered.notes.append(f"{file.name}: not read ({problem})")
        return self.gathered

    def _file(self, file: BundleFile) -> None:
        with open_file(file) as stream:
            parts = blocks(stream)
            first = next(parts, b"")
            if self._recorder(file, first):
                return
            if b"\0" in first[:8192]:
                parts = iter(list(_limited(parts, MAX_BINARY_BYTES)))
            second = next(parts, b"")
            if second or not self._parts(file, first):
                self._text(file, first, chain([second], parts) if second else parts)

    def _recorder(self, file: BundleFile, first: bytes) -> bool:
        """Reads a Flight Recorder dump; False for any other file."""
        if first[:1] != b"\x80" and not (first.lstrip()[:1] == b"{" and b"entries" in first[:65536]):
            return False
        raw = first
        if SEPARATOR not in file.name:
            with open_file(file) as stream:
                raw = stream.read(MAX_STRUCTURED_BYTES)
        if not read_recorder(raw, file.name, self.gathered):
            return False
        self.gathered.sources.append(SourceFile(file.name, "flight-recorder", len(raw), 0))
        return True

    def _parts(self, file: BundleFile, raw: bytes) -> bool:
        """Reads each part of a file that was put together from several as a file of its own. False: it is one piece."""
        found = False
        for title, before, text in sections(raw.decode("utf-8", "surrogateescape")):
            found = True
            name = file.name + SEPARATOR + title if title else file.name
            # Lines keep their numbers: the part stands below as many empty ones.
            part = replace(file, name=name)
            raw = text.encode("utf-8", "surrogateescape")
            if not self._recorder(part, raw.lstrip()):
                self._text(part, b"\n" * before + raw, iter(()))
        return found

    def _text(self, file: BundleFile, first: bytes, parts: Iterator[bytes]) -> None:
        kernel = names.looks_kernel(file.name)
        reader = LineReader(Calendar(self.year), kernel=kernel)
        named = names.rank_in(file.name)
        log = LogReader(file.name, reader, self.matcher, self.gathered, named)
        state = LineHits(self.matcher)
        steps = _StepSampler(self.step_bytes)
        size = 0
        block = first
        while block:
            size += len(block)
            steps.see(block, state.lines)
            for hit in scan_block(block, state):
                log.take(hit)
            block = next(parts, b"")
        for hit in state.last():
            log.take(hit)
        if names.is_prose(file.name):
            log.forget()
        elif not kernel:
            self._steps(steps, log, file.name)
        kind = self._structured(file, first) if size <= MAX_STRUCTURED_BYTES and size == len(first) else "log"
        self._remember(file, log, kind if kind != "log" or not kernel else "kernel", size, state.lines, steps)

    def _steps(self, steps: _StepSampler, log: LogReader, name: str) -> None:
        for number, raw in steps.lines():
            low = raw.lower()
            if not any(word in low for word in PROGRESS):
                continue
            line = log.reader.read(number, raw)
            line.rank = log.rank if line.rank is None else line.rank
            if b"ms" in low or b"rank" in low or b" s " in low:
                self.gathered.rank_times += per_rank(line, name)
            if step := read_step(line, name):
                self.gathered.steps.append(step)

    def _structured(self, file: BundleFile, raw: bytes) -> str:
        """Feeds the readers of whole-file forms; a file may hold several. Returns the form that named it."""
        text, into, name = raw.decode("utf-8", "replace"), self.gathered, file.name
        host, kind = names.host_candidates(name), "log"
        head = text.lstrip("\n")[:4000]
        if "NVSMI LOG" in text:
            into.gpus += nvidia.read_smi(text, name, host)
            kind = "nvidia-smi"
        elif "uuid" in head[:400].lower() or "pci.bus_id" in head[:400] or "temperature.gpu" in head[:400]:
            into.gpus += nvidia.read_csv(text, name, host)
        if "MiB" in text:
            into.gpu_processes += nvidia.read_processes(text, name, host)
        if looks_like_stacks(text) or ("PID" in head[:2000] and "STAT" in head[:2000]) or "WCHAN" in head[:2000]:
            add_stacks(text, name, into, host, names.rank_in(name))
            kind = "stacks"
        if "JobID" in text and "State" in text:
            slurm.read_sacct(text, name, into)
            kind = "sacct"
        if "JobId=" in text or "NodeName=" in text:
            slurm.read_scontrol(text, name, into)
            kind = "scontrol"
        if "Mounted on" in text:
            tables.read_df(text, name, host, into)
            kind = "df"
        if "quota" in text.lower():
            tables.read_quota(text, name, host, into)
        if "py_callstack" in text or name.endswith("error.json"):
            tables.read_error_json(text, name, host, names.local_rank_in(name), into)
            kind = "error.json"
        if "rank" in head.lower() and len(text) < 1 << 20:
            tables.read_rank_map(text, into)
        return kind

    def _remember(
        self, file: BundleFile, log: LogReader, kind: str, size: int, lines: int, steps: _StepSampler
    ) -> None:
        first = last = last_line = None
        note = ""
        for number, raw in steps.ends():
            line = log.reader.read(number, raw)
            if line.uptime_s is not None:
                note = f"uptime {line.uptime_s}"
            if line.stamp is not None and "CANCELLED AT" not in line.text:
                first, last, last_line = first or line.stamp, line.stamp, line
        where = spot(file.name, last_line.number, last_line.text) if last_line is not None else None
        self.logs.append(log)
        host = names.host_candidates(file.name)
        self.gathered.sources.append(SourceFile(file.name, kind, size, lines, host, log.rank, note, first, last, where))


class _StepSampler:
    """Keeps the first quarter and the last three quarters of a byte budget, with line numbers."""

    def __init__(self, budget: int) -> None:
        self.head_left = budget // 4
        self.tail_bytes = budget - budget // 4
        self.head: list[tuple[int, bytes]] = []
        self.tail: deque[tuple[int, bytes]] = deque()
        self.held = 0

    def see(self, block: bytes, lines_before: int) -> None:
        if self.head_left > 0:
            self.head.append((lines_before, block[: self.head_left + 4096]))
            rest = block[self.head_left + 4096 :]
            lines_before += self.head[-1][1].count(b"\n")
            self.head_left -= len(block)
            block = rest
        if block:
            cut = max(0, len(block) - self.tail_bytes)
            self.tail.append((lines_before + block.count(b"\n", 0, cut), block[cut:]))
            self.held += len(block) - cut
        while len(self.tail) > 1 and self.held - len(self.tail[0][1]) >= self.tail_bytes:
            self.held -= len(self.tail.popleft()[1])

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(line number, raw line) of everything kept."""
        for before, text in [*self.head, *self.tail]:
            for offset, raw in enumerate(text.split(b"\n"), 1):
                for piece in raw.split(b"\r"):
                    if piece:
                        yield before + offset, piece

    def ends(self) -> Iterator[tuple[int, bytes]]:
        """The first and the last lines kept, for the times that a file spans."""
        kept = deque(self.lines(), maxlen=ENDS)
        for count, pair in enumerate(self.lines()):
            if count >= ENDS:
                break
            yield pair
        yield from kept


def _limited(parts: Iterator[bytes], limit: int) -> Iterator[bytes]:
    for part in parts:
        limit -= len(part)
        if limit < 0:
            return
        yield part


def read_bundle(paths: list[Path], catalogue: Catalogue, notes: Iterable[str] = ()) -> Bundle:
    """Reads all files below ``paths``; ``notes`` are what was found out before.

    Raises:
        EvidenceProblem: a path does not exist, or there is nothing to read.
    """
    files, more = walk(paths)
    if not files:
        raise EvidenceProblem("nothing to read", where=", ".join(map(str, paths)), expected="log files of a job")
    bundle = Bundle(catalogue, files, [*notes, *more])
    bundle.read()
    return bundle
