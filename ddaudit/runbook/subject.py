"""What the rules of a runbook look at, and how they blame a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddaudit.errors import RunbookProblem
from ddaudit.packs import Packs
from ddaudit.registry import ProbeSpec
from ddaudit.runbook.model import Runbook, Step

__all__ = ["Subject"]


@dataclass(frozen=True)
class Subject:
    """What the rules look at. ``values`` holds every parameter that is known (lint: those with a default)."""

    runbook: Runbook
    packs: Packs
    values: Mapping[str, Any]

    def problem(
        self, step: Step | None, keys: Sequence[str], what: str, expected: str | None = None, fix: str | None = None
    ) -> RunbookProblem:
        """A problem at the line of a key of a step, or of the header."""
        line = step.line_of(*keys) if step else self.runbook.line_of(*keys)
        named = f"step {step.id!r}: " if step else ""
        return RunbookProblem(named + what, where=f"{self.runbook.path}:{line}", expected=expected, fix=fix)

    def probe(self, step: Step) -> ProbeSpec | None:
        return self.packs.registry.probes.get(step.probe or "")
