"""Temporary folders of a host that hold what its ranks write until it is in the run folder.

The process that uses one holds a lock in it, so that the folder of one that was killed can be told from a living one's.
What such a folder has and the run folder lacks is put there by whoever comes next: an agent whose conductor died, the
next agent or conductor on this host, ``ddaudit report RUN`` or ``ddaudit run --resume RUN``. Then the folder goes.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Self

from ddaudit.errors import LaunchProblem
from ddaudit.evidence.events import MAX_LINE_BYTES, node_lines, node_path, split_line
from ddaudit.launch.shipping import append, rank_file
from ddaudit.launch.stall import answering

__all__ = ["LOCK", "Spool", "lock", "recover", "tidy"]

#: A run folder's lock, and a spool's.
LOCK = ".lock"
#: Which run a spool belongs to.
RUN = "run-folder.json"
CHUNK_BYTES = 4 << 20
#: Agents whose conductor died take turns in the run folder; each needs milliseconds.
TURN_S = 2.0
#: How long a start may take over what earlier runs left.
TIDY_S = 2.0


def lock(folder: Path) -> int:
    """Locks a folder and returns the handle whose closing ends that.

    Raises:
        BlockingIOError: another process has it.
        OSError: the folder cannot be written.
    """
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


class Spool:
    """One such folder, locked. ``root`` holds ``events`` and ``logs`` as a run folder does."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path, self._handle = path, handle
        self.root = path / "spool"

    @classmethod
    def make(cls, kind: Literal["node", "agent"]) -> Self:
        """A new one; ``kind`` says whose: of the conductor's own host, or an agent's.

        Raises:
            LaunchProblem: the temporary folder cannot be written.
        """
        try:
            path = Path(tempfile.mkdtemp(prefix=f"ddaudit-{kind}-"))
            made = cls(path, lock(path))
            made.root.mkdir()
        except OSError as error:
            raise LaunchProblem(f"no temporary folder can be made: {error.strerror}", fix="set TMPDIR") from error
        return made

    @property
    def mine(self) -> bool:
        """False once it was removed or left to others."""
        return self._handle >= 0

    def belong(self, run_dir: Path) -> None:
        """Notes which run this is of, so that others can finish what its process could not."""
        with suppress(OSError):  # then nobody finds it, and it stays
            told = {"run": str(run_dir), "inode": run_dir.stat().st_ino}
            (self.path / RUN).write_text(json.dumps(told), "utf-8")

    def is_of(self, run_dir: Path | None = None) -> Path | None:
        """The run folder that this is of, where this host sees it and it is the same still; only ``run_dir``, if given:
        storage of other runs may be gone, and whoever looks there waits."""
        try:
            with (self.path / RUN).open(encoding="utf-8") as file:
                told = json.loads(file.read(8192))
            found = Path(told["run"])
            wanted = run_dir is None or found == run_dir
            return found if wanted and found.stat().st_ino == told["inode"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def empty(self) -> bool:
        """True when no rank wrote an event here."""
        return not any(self.root.glob("events/*/*.jsonl"))

    def close(self) -> None:
        """Leaves the folder to others."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def deliver(self, run_dir: Path, *, locked: bool) -> bool:
        """Puts what is missing into the run folder and removes this one. Without the run folder's lock only beside the
        steps that may be running: into what a resumed run has set aside, or a folder of its own. False: it is of such a
        step, and all is kept.

        Raises:
            OSError: the run folder cannot be written.
        """
        placed = True
        for folder in sorted(self.root.glob("events/*")):
            files = self._files(folder)
            into = _try_of(files, run_dir, folder.name, locked=locked)
            if locked or into != folder.name:
                for file in files:
                    _complete(file, run_dir, into)
            placed = placed and _whole(files, run_dir, into)
        if placed:
            self.remove()
        return placed

    def _files(self, folder: Path) -> list[Path]:
        """A step's files, as they are shipped: no event line before the tensor bytes that it points at."""
        files = [*folder.iterdir(), *(self.root / "logs" / folder.name).glob("*")]
        return sorted(files, key=lambda path: (path.suffix == ".jsonl", path.name))

    def hand_over(self, run_dir: Path) -> bool:
        """:meth:`deliver` of an agent whose conductor is gone. False where another process holds the run folder: the
        conductor lives, and is merely cut off."""
        try:
            with _turn(run_dir):
                return self.deliver(run_dir, locked=True)
        except OSError:
            return False


@contextmanager
def _turn(run_dir: Path) -> Iterator[None]:
    until = time.monotonic() + TURN_S
    while True:
        try:
            with answering(run_dir):
                handle = lock(run_dir)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    try:
        yield
    finally:
        os.close(handle)


def _try_of(files: list[Path], run_dir: Path, folder: str, *, locked: bool) -> str:
    """The folder of the run in which this try of a step is: its own, or a name under which it was set aside, whichever
    has most of the files. Where none has any, its own if nobody can be writing there, else a new one beside it."""
    aside = sorted(p.name for mark in ("broken", "left") for p in (run_dir / "events").glob(f"{folder}.{mark}*"))
    sizes = {name: [_taken_bytes(file, run_dir, name) for file in files] for name in (folder, *aside)}
    fits = {name: sum(size or 0 for size in found) for name, found in sizes.items() if None not in found}
    best = max(fits, key=lambda name: fits[name], default=None)
    if best is not None and (fits[best] or (locked and best == folder) or not any(map(_whole_bytes, files))):
        return best
    return next(name for n in itertools.count(1) if (name := f"{folder}.left{n}") not in aside or name in fits)


def _whole(files: list[Path], run_dir: Path, folder: str) -> bool:
    """True when the run folder has all of these files."""
    return all((_taken_bytes(file, run_dir, folder) or 0) >= _whole_bytes(file) for file in files)


def _whole_bytes(file: Path) -> int:
    """A file's size, without a line that was broken off."""
    size = file.stat().st_size
    if file.suffix == ".jsonl":
        with file.open("rb") as source:
            source.seek(max(0, size - MAX_LINE_BYTES))
            tail = source.read()
        return size - len(tail) + tail.rfind(b"\n") + 1
    return size


def _taken_bytes(file: Path, run_dir: Path, folder: str) -> int | None:
    """How much of a file, from its beginning, is in the run folder; None when what is there is another try's."""
    owner = rank_file(file, folder)
    if owner is None:
        return file.stat().st_size  # not a rank's: nothing to take
    if file.suffix == ".jsonl":
        return _taken_lines(file, node_path(run_dir / "events" / folder, owner["host"]), owner["owner"])
    target = run_dir / file.parent.parent.name / folder / file.name
    try:
        size = target.stat().st_size
        with file.open("rb") as ours, target.open("rb") as theirs:
            head = min(4096, size)
            same = ours.read(head) == theirs.read(head)
    except FileNotFoundError:
        return 0
    return size if same and size <= file.stat().st_size else None


def _taken_lines(file: Path, node: Path, owner: str) -> int | None:
    taken = 0
    try:
        with file.open("rb") as ours, node.open("rb") as theirs:
            while line := theirs.readline(MAX_LINE_BYTES):
                split = split_line(line)
                if split is None or split[0] != owner:
                    continue
                mine = ours.readline(MAX_LINE_BYTES)
                if mine.rstrip() != split[1]:
                    return None
                taken += len(mine)
    except FileNotFoundError:
        return 0
    return taken


def _complete(file: Path, run_dir: Path, folder: str) -> None:
    owner, taken = rank_file(file, folder), _taken_bytes(file, run_dir, folder)
    if owner is None or taken is None:
        return
    target = run_dir / file.parent.parent.name / folder / file.name
    with file.open("rb") as source:
        source.seek(taken)
        if file.suffix != ".jsonl":
            while piece := source.read(CHUNK_BYTES):
                append(run_dir, target, piece)
            return
        target = node_path(target.parent, owner["host"])
        while (line := source.readline(MAX_LINE_BYTES)).endswith(b"\n"):
            append(run_dir, target, node_lines(owner["owner"], line))


def _left() -> Iterator[Spool]:
    """Spools of this user's processes that died, locked in turn."""
    for path in sorted(Path(tempfile.gettempdir()).glob("ddaudit-*-*")):
        with suppress(OSError):
            if path.name.split("-")[1] not in ("node", "agent") or path.is_symlink() or not (path / "spool").is_dir():
                continue
            if path.stat().st_uid == os.geteuid():
                spool = Spool(path, lock(path))
                yield spool
                spool.close()


def recover(run_dir: Path, *, locked: bool) -> None:
    """Takes into a run folder (``locked``: the caller holds its lock) what dead processes of this host had not sent."""
    run_dir = run_dir.resolve()
    for spool in _left():
        if spool.is_of(run_dir):
            with suppress(OSError):
                spool.deliver(run_dir, locked=locked)


def tidy() -> None:
    """Removes what dead processes left on this host where nothing is lost by it: no events, or all of them are in their
    run folder. Gives up after a moment where that is on storage that does not answer."""
    worker = threading.Thread(target=_tidy, name="ddaudit-tidy", daemon=True)
    worker.start()
    worker.join(TIDY_S)


def _tidy() -> None:
    for spool in _left():
        run_dir = None if spool.empty else spool.is_of()
        with suppress(OSError):
            if spool.empty:
                spool.remove()
            elif run_dir is not None:
                spool.deliver(run_dir, locked=False)
