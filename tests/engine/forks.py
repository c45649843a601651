"""Runs of the command line in forks of the test process: they can be killed, closed and starved, and start at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddaudit.cli import main as front
from tests.launch.drive import seconds_until_gone, session_members

#: Three steps that note in a file that they ran; ``b`` waits for a file called ``go`` beside it.
BOOK = r"""# Three steps

```toml runbook
id = "three"
params.desk = { type = "str" }
```

```toml step a
probe = "command"
with.argv = ["/bin/sh", "-c", "echo a >> $$0/ran; echo v 1", "$desk"]
with.capture.regex = { v = 'v (?P<value>\d+)' }
checks = ["measures.within-limits"]
limits.v = { fail_above = 5 }
```

```toml step b
probe = "command"
with.argv = ["/bin/sh", "-c", "echo b >> $$0/ran; while [ ! -e $$0/go ]; do sleep 0.05; done; echo v $$1", "$desk", "$a.v"]
with.capture.regex = { v = 'v (?P<value>\d+)' }
checks = ["measures.within-limits"]
limits.v = { fail_above = 5 }
needs = ["a"]
timeout = "30s"
```

```toml step c
probe = "command"
with.argv = ["/bin/sh", "-c", "echo c >> $$0/ran; echo v 3", "$desk"]
with.capture.regex = { v = 'v (?P<value>\d+)' }
checks = ["measures.within-limits"]
limits.v = { fail_above = 5 }
```
"""  # noqa: E501


@dataclass
class Desk:
    """A folder with the book, the file of what ran, and the root of run folders."""

    path: Path

    @property
    def argv(self) -> list[str]:
        options = ["-P", f"desk={self.path}", "--out", str(self.path / "runs"), "--device", "cpu", "--packs", "builtin"]
        return ["run", str(self.path / "three.md"), *options, "--no-progress"]

    @property
    def run(self) -> Path:
        """The only run folder."""
        (found,) = (self.path / "runs").iterdir()
        return found

    def ran(self) -> list[str]:
        """Which steps' programs ran, in order."""
        return (self.path / "ran").read_text().split() if (self.path / "ran").exists() else []

    def go(self) -> None:
        """Lets step ``b`` end."""
        (self.path / "go").touch()

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "record.json").read_text())
        return found

    def states(self) -> dict[str, str]:
        return {step["id"]: step["state"] for step in self.record()["steps"]}

    def await_step(self, name: str, limit_s: float = 60.0) -> None:
        until = time.monotonic() + limit_s
        while name not in self.ran():
            assert time.monotonic() < until, self.ran()
            time.sleep(0.01)


def desk(path: Path) -> Desk:
    path.mkdir(exist_ok=True)
    (path / "three.md").write_text(BOOK)
    return Desk(path)


class Fork:
    """``ddaudit ARGV`` in a session of its own; ``out`` and ``err`` are what it printed."""

    def __init__(self, argv: list[str], folder: Path, setup: Callable[[], None], fds: tuple[int, int] | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._paths = (folder / "stdout", folder / "stderr")
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(argv, setup, fds)
        self.code: int | None = None

    def _become(self, argv: list[str], setup: Callable[[], None], fds: tuple[int, int] | None) -> None:
        code = 99
        try:
            os.setsid()
            for number, path in zip((1, 2), self._paths, strict=True):
                os.dup2(fds[number - 1] if fds else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in (signal.SIGHUP, signal.SIGTERM):  # whoever started the tests may ignore them
                signal.signal(number, signal.SIG_DFL)
            os.environ.pop("DDAUDIT_PACKS", None)
            setup()
            sys.argv = ["ddaudit", *argv]
            front.run()
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def kill(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def wait(self) -> int:
        """The exit code, or the negative number of the signal that ended it."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    @property
    def out(self) -> str:
        return self._paths[0].read_text()

    @property
    def err(self) -> str:
        return self._paths[1].read_text()

    def left(self, limit_s: float = 5.0) -> list[str]:
        """Processes of the session that are still there after ``limit_s``."""
        return [] if seconds_until_gone(self.pid, limit_s) is not None else session_members(self.pid)


@contextmanager
def forked(
    argv: list[str], folder: Path, *, setup: Callable[[], None] = lambda: None, fds: tuple[int, int] | None = None
) -> Iterator[Fork]:
    """A running fork; what a test leaves of it is killed."""
    fork = Fork(argv, folder, setup, fds)
    try:
        yield fork
    finally:
        for member in session_members(fork.pid):
            with suppress(ProcessLookupError):
                os.kill(int(member.split()[0]), signal.SIGKILL)
        fork.wait()


def ran(argv: list[str], folder: Path, **more: Any) -> Fork:
    """A fork that ended."""
    with forked(argv, folder, **more) as fork:
        fork.wait()
    return fork


def copied(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to, symlinks=True))
