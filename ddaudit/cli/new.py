"""``ddaudit new``: a starting point that already works."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ddaudit.cli.common import emit_json, envelope, json_option
from ddaudit.cli.scaffold import templates
from ddaudit.cli.terminal import printable
from ddaudit.errors import UsageProblem

__all__ = ["command"]

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_CHECK = re.compile(rf"{_NAME.pattern}(?:\.{_NAME.pattern})?")


@click.group("new")
def command() -> None:
    """Write a starting point for a check, probe, runbook, pack or job file."""


def _into(default: str, help: str) -> Callable[[Any], Any]:
    return click.option("--into", default=default, type=click.Path(file_okay=False), metavar="DIR", help=help)


@command.command("check")
@click.argument("name")
@_into(".", "Folder of the pack.  [default: here]")
@json_option
def check(name: str, into: str, as_json: bool) -> int:
    """Write checks/NAME.py with limits and a plant. NAME is `family` or `family.what`."""
    return _write("check", name, Path(into), as_json)


@command.command("probe")
@click.argument("name")
@_into(".", "Folder of the pack.  [default: here]")
@json_option
def probe(name: str, into: str, as_json: bool) -> int:
    """Write probes/NAME.py with parameters and measures."""
    return _write("probe", name, Path(into), as_json)


@command.command("runbook")
@click.argument("name")
@_into(".", "Folder of the pack.  [default: here]")
@json_option
def runbook(name: str, into: str, as_json: bool) -> int:
    """Write runbooks/NAME.md with a parameter, a step and a limit."""
    return _write("runbook", name, Path(into), as_json)


@command.command("pack")
@click.argument("name")
@_into(".", "Folder in which the pack's folder is made.  [default: here]")
@json_option
def pack(name: str, into: str, as_json: bool) -> int:
    """Write a folder NAME with a check, a probe and a runbook that belong together."""
    return _write("pack", name, Path(into) / name, as_json)


@command.command("job")
@click.argument("name", default="job")
@_into(".", "Folder of the file.  [default: here]")
@json_option
def job(name: str, into: str, as_json: bool) -> int:
    """Write NAME.toml, a planned job with its known-good baseline. NAME is `job` unless given."""
    return _write("job", name, Path(into), as_json)


def _write(kind: str, name: str, folder: Path, as_json: bool) -> int:
    pattern, shape = (_CHECK, "family or family.what") if kind == "check" else (_NAME, "a name")
    if not pattern.fullmatch(name) or keyword.iskeyword(name):
        raise UsageProblem(f"{name!r} cannot name a {kind}", expected=f"{shape} of lower-case letters, digits and -")
    files = templates(kind, name)
    taken = [path for path in files if (folder / path).exists()]
    if taken:
        raise UsageProblem("already exists", where=str(folder / taken[0]), fix="choose another name or --into")
    try:
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageProblem(f"cannot write ({error.strerror})", where=str(folder), fix="choose another --into") from None
    written = [str(folder / path) for path in files]
    if as_json:
        emit_json(envelope("new", "PASS", 0, kind=kind, files=written))
        return 0
    for line in written:
        click.echo(printable(line))
    click.echo(printable(f"next: {_next(kind, name, folder)}"), err=True)
    return 0


def _next(kind: str, name: str, folder: Path) -> str:
    if kind == "job":
        return f"ddaudit run --job {folder / name}.toml"
    lint = f"ddaudit lint {folder}"
    if kind in ("check", "pack"):
        id = name if "." in name else f"{name}.seconds"
        return f"{lint}; ddaudit selftest --pack {folder} {id}"
    return f"{lint}; ddaudit run --pack {folder} {name}" if kind == "runbook" else lint
