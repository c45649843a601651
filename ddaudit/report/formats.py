"""The formats, as a table. A renderer is imported when its format is asked for, so ``ddaudit --help`` pays for none."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddaudit.errors import UsageProblem
from ddaudit.record import Record, write_atomically
from ddaudit.registry import suggest
from ddaudit.report.options import PICTURES, Options

__all__ = ["FORMATS", "WRITTEN", "Format", "render", "write_reports"]


@dataclass(frozen=True)
class Format:
    """``file`` is its name in a run folder; ``renderer`` is ``module:function`` taking a record and options."""

    name: str
    file: str
    renderer: str
    about: str

    def function(self) -> Callable[[Record, Options], str]:
        module, _, name = self.renderer.partition(":")
        found: Callable[[Record, Options], str] = getattr(importlib.import_module(module), name)
        return found


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("text", "report.txt", "ddaudit.report.text:render_text", "the terminal report"),
        Format("json", "report.json", "ddaudit.report.json_:render_json", "the object that --json prints"),
        Format("html", "report.html", "ddaudit.report.html:render_html", "one page, no script, no network"),
        Format("md", "report.md", "ddaudit.report.markdown:render_markdown", "Markdown for tickets and merge requests"),
        Format("junit", "junit.xml", "ddaudit.report.junit:render_junit", "JUnit (xunit2) for CI servers"),
        Format("github", "github.md", "ddaudit.report.github:render_github", "GitHub's step summary, and annotations"),
        Format("prom", "ddaudit.prom", "ddaudit.report.prom:render_prom", "Prometheus' textfile collector"),
        Format("incident", "incident.md", "ddaudit.report.incident:render_incident", "a post for the incident channel"),
    )
}

#: What a run folder gets without being asked.
WRITTEN = ("html", "md", "junit")


def render(
    record: Record,
    format: str,
    *,
    run_dir: Path | None = None,
    template_folders: Sequence[Path] = (),
    width: int = 100,
    color: bool = False,
    ascii_only: bool = False,
    verbosity: int = 0,
    pictures: bool = True,
) -> str:
    """Renders a record; see :class:`~ddaudit.report.options.Options` for the keywords.

    Raises:
        UsageProblem: no such format.
    """
    if format not in FORMATS:
        raise UsageProblem(f"no format is called {format!r}", fix=suggest(format, FORMATS))
    options = Options(run_dir, tuple(template_folders), width, color, ascii_only, verbosity, pictures)
    return FORMATS[format].function()(record, options)


def write_reports(
    record: Record, run_dir: Path, formats: Iterable[str] = WRITTEN, template_folders: Sequence[Path] = ()
) -> list[Path]:
    """Writes each format beside the record under its file name, atomically, and returns the paths."""
    written = []
    for name in formats:
        pictures = os.environ.get(PICTURES) != "0"
        text = render(record, name, run_dir=run_dir, template_folders=template_folders, pictures=pictures)
        path = run_dir / FORMATS[name].file
        write_atomically(path, text)
        written.append(path)
    return written
