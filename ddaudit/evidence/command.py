"""How a program that a runbook step ran came to its end. Its numbers are :class:`~ddaudit.evidence.Measures`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from ddaudit.evidence.base import JsonEvidence

__all__ = ["CommandRun"]


class CommandRun(JsonEvidence):
    """One program, run once on one host. Its words are redacted and cut before they get here.

    ``exit_code`` follows the shells: 128 + n after signal n, None when the program never started or was ended at its
    deadline. ``absent`` says for each measure without a value why it has none.
    """

    kind: ClassVar[str] = "command"

    argv: tuple[str, ...]
    host: str
    exit_code: int | None = None
    signal: str | None = None
    seconds: float | None = None
    timeout_s: float
    timed_out: bool = False
    not_started: str | None = None
    truncated: bool = False
    stdout_tail: str = ""
    stderr_tail: str = ""
    absent: Mapping[str, str] = Field(default_factory=dict)
