"""Runbooks: Markdown pages whose TOML fences say what to run and ask, read, checked and turned into plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddaudit.lazy import offered

if TYPE_CHECKING:
    from ddaudit.runbook.document import load_runbook, parse_runbook
    from ddaudit.runbook.lint import lint_packs, lint_runbook
    from ddaudit.runbook.model import Plan, PlannedStep, Runbook, Step
    from ddaudit.runbook.plan import make_plan
    from ddaudit.runbook.values import resolve, resolve_text

__all__ = [
    "Plan",
    "PlannedStep",
    "Runbook",
    "Step",
    "lint_packs",
    "lint_runbook",
    "load_runbook",
    "make_plan",
    "parse_runbook",
    "resolve",
    "resolve_text",
]

__getattr__ = offered(__name__, {
    "ddaudit.runbook.document": "load_runbook parse_runbook",
    "ddaudit.runbook.lint": "lint_packs lint_runbook",
    "ddaudit.runbook.model": "Plan PlannedStep Runbook Step",
    "ddaudit.runbook.plan": "make_plan",
    "ddaudit.runbook.values": "resolve resolve_text",
})  # fmt: skip
