"""``--report FORMAT[:PATH]`` of every command that has a record to tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ddaudit.errors import UsageProblem

if TYPE_CHECKING:
    from ddaudit.record import Record

__all__ = ["ReportTarget", "Target", "report_option", "write_asked"]

#: A format, and the file to write; None for its own name in the run folder.
Target = tuple[str, Path | None]
F = TypeVar("F", bound=Callable[..., Any])


class ReportTarget(click.ParamType[Target]):
    """``html`` or ``html:page.html``. ``bare``: whether a format may stand without a path."""

    name = "FORMAT[:PATH]"

    def __init__(self, *, bare: bool = True, words: Sequence[str] = ()) -> None:
        self._bare, self._words = bare, tuple(words)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        from ddaudit.report import FORMATS

        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        format, colon, path = value.partition(":")
        if not colon and format in self._words:
            return format, None
        if format not in FORMATS or (colon and not path) or not (colon or self._bare):
            spelled = [f"{name}{'' if self._bare else ':PATH'}" for name in FORMATS]
            self.fail(f"{value!r} is none of {', '.join([*self._words, *spelled])}", param, ctx)
        if format == "prom" and path and not path.endswith(".prom"):
            self.fail(f"{path!r}: the textfile collector reads only files that end in .prom", param, ctx)
        return format, Path(path) if path else None


def report_option(*, bare: bool = True) -> Callable[[F], F]:
    """``--report``, repeatable; give its values on to :func:`write_asked`."""
    about = (
        "Also write this format, to PATH instead of the run folder if given." if bare else "Write this format there."
    )
    return click.option("--report", "reports", multiple=True, type=ReportTarget(bare=bare), help=f"{about} Repeatable.")


def write_asked(
    record: Record,
    run_dir: Path | None,
    targets: Sequence[Target],
    folders: Sequence[Path],
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Writes reports atomically. In GitHub Actions, ``github`` also goes to the step's summary and its annotations to
    stderr. A file that cannot be written costs a line on stderr: the verdict stands.

    Raises:
        UsageProblem: a format without a path, and no run folder to put it in.
    """
    from ddaudit import report
    from ddaudit.record import write_atomically

    for format, path in dict.fromkeys(targets):
        if path is None and run_dir is None:
            raise UsageProblem(f"--report {format}: this command keeps no run folder", fix=f"--report {format}:PATH")
        target = path or (run_dir or Path()) / report.FORMATS[format].file
        pictures = environ.get(report.options.PICTURES) != "0"
        text = report.render(record, format, run_dir=run_dir, template_folders=folders, pictures=pictures)
        from ddaudit.launch.stall import answering

        try:
            with answering(run_dir or target.parent):
                write_atomically(target, text)
            if format == "github":
                _tell_github(record, text, environ)
        except OSError as error:
            click.echo(f"ddaudit: {target} was not written: {error.strerror or error}", err=True)


def _tell_github(record: Record, text: str, environ: Mapping[str, str]) -> None:
    from ddaudit.report.github import workflow_commands

    if summary := environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)
    if environ.get("GITHUB_ACTIONS") == "true":
        for line in workflow_commands(record):
            click.echo(line, err=True)
