"""Runbooks: Markdown pages whose TOML fences say what to run and ask, read, checked and turned into plans."""

from __future__ import annotations

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
