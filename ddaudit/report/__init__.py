"""Reports: one record, many faces. Importing this loads neither jinja2 nor rich."""

from __future__ import annotations

from ddaudit.report.formats import FORMATS, WRITTEN, render, write_reports
from ddaudit.report.options import Options

__all__ = ["FORMATS", "WRITTEN", "Options", "render", "write_reports"]
