"""A step's ``remedy`` as findings carry it: words, and commands to copy."""

from __future__ import annotations

from ddaudit.findings import Remedy
from ddaudit.runbook.model import PlannedStep

__all__ = ["remedy_of"]


def remedy_of(step: PlannedStep) -> Remedy | None:
    """The runbook's remedy for a step, or None. Lines indented by four spaces are commands, as in Markdown."""
    if not step.remedy:
        return None
    lines = step.remedy.strip("\n").splitlines()
    commands = tuple(line.strip() for line in lines if line.startswith("    ") and line.strip())
    words = " ".join(line.strip() for line in lines if line.strip() and not line.startswith("    "))
    return Remedy(text=words or "Run:", commands=commands)
