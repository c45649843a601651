"""The live view of a run on stderr: which step, how long, how long at most, and who is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
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
    """One line per ended step, and word of who is waited for: on a terminal one line, rewritten; in a log, a line now
    and then."""

    def __init__(self, *, enabled: bool = True, ascii_only: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=not enabled)
        self._ascii = ascii_only
        self._live: Live | None = None
        self._head = self._note = ""
        self._next_word_s = WORD_EVERY_S

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(Text(""), console=self._console, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

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
        self._status(text)
        if self._live is None and progress.note and progress.note != self._note:
            self._note = progress.note
            self._console.print(Text(printable(text)))
        elif self._live is None and progress.elapsed_s >= self._next_word_s:
            self._next_word_s = progress.elapsed_s + WORD_EVERY_S
            self._console.print(Text(printable(text)))

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
        self._console.print(line)

    def _status(self, text: str) -> None:
        if self._live is not None:
            self._live.update(Text(printable(text), style="dim", no_wrap=True, overflow="ellipsis"))
