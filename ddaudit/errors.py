"""The errors a user can cause and the exit codes they map to.

One base class, :class:`Problem`, carries its own exit code; subclasses say *who must act*. Anything that is not a
``Problem`` is a bug in ddaudit and ends with :attr:`Exit.INTERNAL`. Only ``ddaudit.cli.main`` turns errors into exits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

__all__ = [
    "CheckpointProblem",
    "EvidenceProblem",
    "Exit",
    "LaunchProblem",
    "PackProblem",
    "Problem",
    "RunbookProblem",
    "UsageProblem",
]


class Exit(IntEnum):
    """Exit codes of every command. The member docstrings are the documentation table (see :func:`exit_table`)."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INTERNAL = 4
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_MEANINGS: dict[Exit, str] = {
    Exit.PASS: "at least one check ran, nothing unwaived at or above `--fail-on`, nothing required unmeasured",
    Exit.FAIL: "measured, and bad",
    Exit.USAGE: "the call, a runbook, a waiver or a pack is invalid; nothing was launched",
    Exit.INCONCLUSIVE: "something required was not measured, or no check ran",
    Exit.INTERNAL: "a bug in ddaudit; the trace is saved and its path printed",
    Exit.INTERRUPTED: "Ctrl-C; finished steps are saved",
    Exit.TERMINATED: "TERM or HUP; finished steps are saved",
}


class Problem(Exception):
    """Something a user can mend, told in one line: where, what, what was expected, how to fix it.

    ``where`` is ``file:line`` or another place the reader can open; it leads the message so that editors link it.
    """

    exit: ClassVar[Exit] = Exit.USAGE

    def __init__(
        self, what: str, *, where: str | None = None, expected: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.fix = fix

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.fix:
            parts.append(f"fix: {self.fix}")
        return "; ".join(parts)


class UsageProblem(Problem):
    """The command line asks for something that does not exist or does not fit together."""


class RunbookProblem(Problem):
    """A runbook, a parameter or a limit in it is wrong. Its author acts."""


class PackProblem(Problem):
    """A pack is missing, breaks on import, or declares an id twice. Its author acts."""


class EvidenceProblem(Problem):
    """A run folder or record cannot be read as one. Whoever copied it acts."""


class CheckpointProblem(Problem):
    """A checkpoint path cannot be opened at all. (What is wrong *inside* one is a finding, not a problem.)"""


class LaunchProblem(Problem):
    """Ranks could not be started, so nothing was measured. The machine's owner acts."""

    exit: ClassVar[Exit] = Exit.INCONCLUSIVE
