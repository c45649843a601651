"""The live view of a run on stderr: which step, how long of how long at most, where each rank is, who is waited for."""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ddaudit.cli.terminal import printable
from ddaudit.engine.outcome import Outcome
from ddaudit.findings import Finding, Status
from ddaudit.launch import Progress
from ddaudit.runbook.model import PlannedStep

__all__ = ["LiveView"]

COLOURS = {"PASS": "green", "WARN": "yellow", "FAIL": "red", "ERROR": "magenta", "SKIP": "dim", "WAIVED": "dim"}


#: How often a log file, which cannot rewrite a line, is told who is waited for.
WORD_EVERY_S = 30.0


class LiveView:
    """One line per ended step, and word of who is waited for: on a terminal a small table, rewritten; in a log, a line
    now and then. What a terminal or reader that was stopped (Ctrl-S, a connection that hangs) does not take is left
    out: the run, with its deadlines, does not wait for it."""

    def __init__(self, *, enabled: bool = True, ascii_only: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=not enabled)
        self._ascii = ascii_only
        self._live: Live | None = None
        self._head = self._note = ""
        self._next_word_s = WORD_EVERY_S

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.quiet:
            # Its own thread would write without asking, and hold its lock, which we need, for as long as that takes.
            self._live = Live(Text(""), console=self._console, transient=True, auto_refresh=False)
            if not self._stalled():
                self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._console.quiet = self._console.quiet or self._stalled()
            self._live.stop()

    def _stalled(self) -> bool:
        """True when a write would have to wait for whoever reads it."""
        ready = select.poll()
        with suppress(OSError, ValueError, AttributeError):  # no descriptor: nothing that could stall
            ready.register(self._console.file.fileno(), select.POLLOUT)
            return not ready.poll(0)
        return False

    def _print(self, text: Text) -> None:
        if not self._stalled():
            self._console.print(text)

    def step_started(self, step: PlannedStep, index: int, total: int) -> None:
        """Shows the step's number and title while it runs."""
        self._head = f"[{index + 1}/{total}] {step.id}"
        self._next_word_s = WORD_EVERY_S
        self._status(f"{self._head}: starting")

    def progress(self, progress: Progress) -> None:
        """Rewrites the status line: elapsed, deadline, ranks that have not ended."""
        on = {rank: f" on {host}" for rank, host in progress.hosts.items()}
        waited = ", ".join(f"rank {r}{on.get(r, '')}" for r in progress.waiting_for[:4])
        more = f" and {len(progress.waiting_for) - 4} more" if len(progress.waiting_for) > 4 else ""
        text = f"{self._head}: {progress.elapsed_s:.0f} s of at most {progress.deadline_s:.0f} s"
        text += f", waiting for {waited}{more}" if waited else ""
        text = f"{self._head}: {progress.note}" if progress.note else text
        self._status(text, progress)
        if self._live is None and progress.note and progress.note != self._note:
            self._note = progress.note
            self._print(Text(printable(text)))
        elif self._live is None and progress.elapsed_s >= self._next_word_s:
            self._next_word_s = progress.elapsed_s + WORD_EVERY_S
            self._print(Text(printable(text)))

    def step_ended(self, outcome: Outcome, findings: Sequence[Finding]) -> None:
        """Appends the step's line: worst status, seconds, and the first thing that is not right."""
        measured = [f.status for f in findings if f.status is not Status.SKIP]
        worst = max(measured, key=lambda s: s.rank, default=Status.SKIP)
        glyph = f"[{worst.value.lower()}]" if self._ascii else worst.glyph
        seconds = f"{outcome.seconds:6.1f} s" if outcome.seconds is not None else "      - "
        told = next((f.text for f in findings if f.status is worst and worst is not Status.PASS), "")
        passed = sum(f.status is Status.PASS for f in findings)
        line = Text(f"{glyph} {worst.value:<5} {outcome.step.id:<16} {seconds}  ", style=COLOURS[worst.value])
        line.append(printable(told or outcome.reason or f"{passed} checks passed")[:400], style="default")
        self._print(line)

    def _status(self, text: str, progress: Progress | None = None) -> None:
        if self._live is None or self._stalled():
            return
        line = Text(printable(text), style="dim", no_wrap=True, overflow="ellipsis")
        self._live.update(line if progress is None else Group(line, self._table(progress)), refresh=True)

    def _table(self, progress: Progress) -> Table:
        """The deadline as a bar where it can be drawn, and ranks by how far they are: those furthest behind first."""
        table = Table.grid(padding=(0, 2))
        if not self._ascii:
            table.add_row("", ProgressBar(total=progress.deadline_s, completed=progress.elapsed_s, width=24), "", "")
        rows = list(_positions(progress))
        for at, ranks, waited in rows[:MAX_ROWS]:
            count = f"{len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'}"
            told = f"rank {ranks[0]} on {progress.hosts[ranks[0]]}" if _placed(ranks, progress.hosts) else _spans(ranks)
            table.add_row("  ", at, count, Text(printable(told + (", waited for" if waited else ""))), style="dim")
        if len(rows) > MAX_ROWS:
            table.add_row("  ", f"and {len(rows) - MAX_ROWS} more places", "", "", style="dim")
        return table


#: Rows of the table: it must fit a small terminal, and those furthest behind are what matters.
MAX_ROWS = 6


def _positions(progress: Progress) -> Iterator[tuple[str, list[int], bool]]:
    """(place, ranks that are there, whether they are waited for), those furthest behind first."""
    waited = set(progress.waiting_for)
    places = {rank: progress.steps.get(rank, -1) for rank in {*progress.steps, *waited}}
    order = sorted(places, key=lambda rank: (rank not in waited, places[rank], rank))
    for (late, step), ranks in groupby(order, key=lambda rank: (rank in waited, places[rank])):
        yield (f"after step {step}" if step >= 0 else progress.phase), list(ranks), late


def _placed(ranks: Sequence[int], hosts: Mapping[int, str]) -> bool:
    return len(ranks) == 1 and ranks[0] in hosts


def _spans(ranks: Sequence[int]) -> str:
    """``0-3, 5, 7-9``: ascending ranks as ranges."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    spans = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(spans[:6]) + (" ..." if len(spans) > 6 else "")
