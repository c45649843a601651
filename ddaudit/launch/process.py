"""Linux process plumbing: nobody outlives the launcher."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

__all__ = ["adopt_orphans", "catching", "children_die_with_me", "die_with_parent", "kill_group", "strays"]

# From <linux/prctl.h>.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def die_with_parent(parent_pid: int, signum: int = signal.SIGKILL) -> None:
    """Asks the kernel to signal this process when its parent's thread ends; leaves at once if that has happened.

    Order matters: set first, look second, so that a parent that dies in between is noticed either way. The signal
    follows the *thread* that forked, so the parent must fork from a thread that lives as long as it does.
    """
    _prctl(PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent_pid:
        os._exit(128 + signum)


@contextmanager
def catching(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """TERM, Ctrl-C and HUP go to ``handler`` meanwhile. One that was ignored when this process began stays ignored:
    ``nohup`` and a script's ``&`` ask for a process that outlives its terminal."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    wanted = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def adopt_orphans() -> None:
    """Makes descendants whose parent died children of this process, so that it can find and end them."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def children_die_with_me() -> None:
    """From now on every ``os.fork`` of this process's main thread makes a child that dies with it.

    This reaches ``multiprocessing`` and DataLoader workers, which otherwise notice a killed parent only after their
    own 5 s poll. A fork from a short-lived thread is left alone: its child would die with the thread.
    """
    pid = 0
    in_main = False

    def before() -> None:
        nonlocal pid, in_main
        pid = os.getpid()
        in_main = threading.current_thread() is threading.main_thread()

    def in_child() -> None:
        if in_main:
            die_with_parent(pid)

    os.register_at_fork(before=before, after_in_child=in_child)


def kill_group(pgid: int, signum: int = signal.SIGKILL) -> None:
    """Signals a whole process group; a group that is already gone is fine."""
    try:
        os.killpg(pgid, signum)
    except ProcessLookupError:
        return


def strays(parent_pid: int) -> list[int]:
    """Direct children of a process, by /proc; used to find adopted orphans that left their group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if fields and int(fields[1]) == parent_pid:
                found.append(int(entry.name))
    return found


def stat_fields(pid: int, thread: int | None = None) -> list[str] | None:
    """Fields of ``/proc/<pid>/stat`` from the state on (index 0), or None when the process is gone."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - called in tight loops
            # The command name may hold spaces and brackets, so split after its closing one.
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None
