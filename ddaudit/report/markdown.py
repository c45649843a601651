"""The Markdown report, from ``templates/report.md.j2``."""

from __future__ import annotations

from ddaudit.record import Record
from ddaudit.report.options import Options
from ddaudit.report.templating import render_template
from ddaudit.report.view import build_view

__all__ = ["render_markdown"]


def render_markdown(record: Record, options: Options) -> str:
    """GitHub-flavoured Markdown; every string from the record is escaped or in a code span."""
    view = build_view(record, options.run_dir)
    return render_template("report.md.j2", view, options.template_folders, html=False)
