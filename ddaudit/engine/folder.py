"""A run folder, from the engine's side: locked by one process, written without half files, never outside itself."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ddaudit.errors import EvidenceProblem, LaunchProblem, UsageProblem
from ddaudit.evidence.events import EventWriter
from ddaudit.jsonio import dumps
from ddaudit.launch.spool import LOCK, lock
from ddaudit.launch.stall import answering
from ddaudit.record import Record, save_record, write_atomically
from ddaudit.redact import redact_value
from ddaudit.runbook.model import Plan

__all__ = ["JOURNAL", "RunFolder", "in_use", "refuse_links", "writing"]

JOURNAL = "events/run.jsonl"


class RunFolder:
    """A context manager that holds the folder's lock and its journal.

    Every write that fails for want of space, rights or the folder itself is a :class:`LaunchProblem`: what was written
    before stays, and the run can be resumed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._journal: EventWriter | None = None

    def open(self, *, new: bool) -> Self:
        """Creates the folder (or takes an old one), locks it and opens the journal.

        Raises:
            UsageProblem: the folder exists already, belongs to a living run, or cannot be written.
            EvidenceProblem: an old folder holds links.
        """
        try:
            with answering(self.path):
                self.path.mkdir(parents=True, exist_ok=not new)
                (self.path / "events").mkdir(exist_ok=True)
                refuse_links(self.path)
                self._lock = lock(self.path)
                self._journal = EventWriter(self.path / JOURNAL)
        except FileExistsError:
            raise UsageProblem("exists already", where=str(self.path), fix="choose another --out") from None
        except BlockingIOError:
            fix = "wait for it, or use another --out"
            raise UsageProblem("another ddaudit works in this run folder", where=str(self.path), fix=fix) from None
        except OSError as error:
            what = f"cannot write here ({error.strerror})"
            raise UsageProblem(what, where=str(self.path), fix="choose another --out") from error
        return self

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        if self._lock is not None:
            os.close(self._lock)
        self._journal = self._lock = None

    def emit(self, event: str, **fields: Any) -> None:
        """Adds a line to the journal. Storage that does not answer for a minute ends the process."""
        assert self._journal is not None, "the folder is not open"
        with writing(self.path), answering(self.path):
            if not self.path.is_dir():  # the file is still open, and would take the line to the grave
                raise FileNotFoundError(errno.ENOENT, "the run folder is gone")
            self._journal.emit(event, **fields)

    def write_plan(self, plan: Plan) -> None:
        """Writes ``plan.json`` without secrets: ranks get their parameters from the launcher, not from this file."""
        told = redact_value(plan.model_dump(mode="json", by_alias=True))
        with writing(self.path), answering(self.path):
            write_atomically(self.path / "plan.json", dumps(told, indent=1) + "\n")

    def save(self, record: Record) -> None:
        with writing(self.path), answering(self.path):
            save_record(record, self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def in_use(path: Path) -> bool:
    """True while another process runs in this folder."""
    try:
        handle = os.open(path / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tells of a write that the machine refused as what it is, not as a bug."""
    try:
        yield
    except OSError as error:
        if not path.is_dir():
            raise LaunchProblem("the run folder is gone", where=str(path), fix="run again") from error
        reason = error.strerror or str(error).splitlines()[0]
        remedy = "make it writable" if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else "make room"
        fix = f"{remedy}, then `ddaudit run --resume {path}`"
        raise LaunchProblem(f"cannot write to the run folder: {reason}", where=str(path), fix=fix) from error


def refuse_links(path: Path) -> None:
    """Raises EvidenceProblem when something that ddaudit reads or appends to is a link: it could lead anywhere."""
    for pattern in ("*", "events/*", "events/*/*", "logs/*"):
        link = next((p for p in path.glob(pattern) if p.is_symlink()), None)
        if link is not None:
            expected = "plain files and folders, as `ddaudit run` writes them"
            raise EvidenceProblem("is a link", where=str(link), expected=expected, fix="remove it")
