"""Audits in this process, as the command does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddaudit.cli.checkpoint_audit import AuditResult, audit_path

BAD = ("NOT-RESUMABLE", "WRONG", "BROKEN", "SECURITY")


def audit(path: Path, **options: Any) -> AuditResult:
    return audit_path(str(path), **options)


def ids(result: AuditResult) -> set[str]:
    """Finding ids that are not good, without the common prefix."""
    return {f.id.removeprefix("checkpoint.") for f in result.findings if f.bad}
