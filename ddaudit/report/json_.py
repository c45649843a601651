"""The ``--json`` object as text."""

from __future__ import annotations

from ddaudit.jsonio import dumps
from ddaudit.record import Record
from ddaudit.report.envelope import envelope
from ddaudit.report.options import Options
from ddaudit.report.safe import json_text

__all__ = ["render_json"]


def render_json(record: Record, options: Options) -> str:
    """One indented object. Terminal controls inside strings are JSON escapes, so ``--json`` on a terminal is inert."""
    return json_text(dumps(envelope(record, options.run_dir), indent=2)) + "\n"
