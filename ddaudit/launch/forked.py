"""What a freshly forked rank does first: its signals, its output, its place in the kernel's OOM order."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Iterable

from ddaudit.worker import Order

__all__ = ["STACK_SIGNAL", "redirect", "shed_signals"]

#: Makes a rank write all its Python stacks; faulthandler does it in C, so a rank stuck with the GIL answers as well.
STACK_SIGNAL = signal.SIGUSR2
#: Added to a rank's OOM score: under memory pressure the kernel should take a rank, not the process that reports it.
OOM_SCORE_ADJ = 500


def shed_signals(ignored: Iterable[signal.Signals]) -> None:
    """Gives signals their defaults back: what the server ignores or waits for is none of a rank's business."""
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGCHLD, *ignored):
        signal.signal(signum, signal.SIG_DFL)


def redirect(order: Order) -> None:
    """Sends the rank's output to its log and its stacks, asked for or at a crash, to its stack file."""
    order.make_folders()
    log = os.open(order.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    stacks = order.stack_path.open("a", encoding="utf-8")
    faulthandler.enable(stacks)
    faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(str(OOM_SCORE_ADJ))
    except OSError:
        pass  # containers may forbid it; then the kernel chooses by size alone
