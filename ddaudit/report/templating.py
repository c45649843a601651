"""The jinja2 environment: autoescape for HTML, strict about names, user packs first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined, TemplateError

from ddaudit.errors import PackProblem
from ddaudit.packs import builtin
from ddaudit.report.model import View
from ddaudit.report.safe import markdown

__all__ = ["fence", "render_template"]


def fence(lines: Sequence[str], indent: int = 0) -> str:
    """A fenced Markdown block whose fence is longer than any run of backticks inside; ``indent`` puts it in a list."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    ticks = "`" * max(3, longest + 1)
    return "\n".join(" " * indent + line for line in (ticks, *lines, ticks))


def _environment(folders: Sequence[Path], *, html: bool) -> Environment:
    own = builtin() / "templates"
    searched = [*folders, *([own] if own not in folders else [])]
    environment = Environment(
        loader=ChoiceLoader([FileSystemLoader(folder) for folder in searched]),
        autoescape=html,  # noqa: S701 - Markdown is escaped by its own filter, `md`
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = markdown
    environment.filters["fence"] = fence
    return environment


def render_template(name: str, view: View, folders: Sequence[Path], *, html: bool, **names: Any) -> str:
    """Renders a template by name; a template of that name in an earlier folder overrides ours.

    Raises:
        PackProblem: the template does not parse, or names a field that the view lacks.
    """
    environment = _environment(folders, html=html)
    try:
        return environment.get_template(name).render(view=view, **names)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        where = f"{getattr(error, 'filename', None) or name}{f':{line}' if line else ''}"
        raise PackProblem(f"template: {error.message or type(error).__name__}", where=where) from error
