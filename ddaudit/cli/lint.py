"""``ddaudit lint``: what is wrong with runbooks and packs, without devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddaudit.cli.common import emit_json, envelope, json_option, load_packs, pack_options
from ddaudit.cli.terminal import printable
from ddaudit.errors import Exit

if TYPE_CHECKING:
    from ddaudit.errors import Problem
    from ddaudit.packs import Packs

__all__ = ["command"]


@click.command("lint")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@pack_options
@json_option
def command(paths: tuple[str, ...], as_json: bool, **packs: Any) -> int:
    """Check runbooks and packs without devices.

    PATH is a runbook (file or id) or the folder of a pack; without one everything that is loaded is checked. A pack's
    folder is imported: lint packs that you trust.
    """
    folders = [path for path in paths if Path(path).is_dir()]
    loaded = load_packs([*packs["pack"], *folders], packs["packs"])
    pages = _pages(paths, loaded)
    problems = _problems(paths, folders, pages, loaded)
    code = Exit.USAGE if problems else Exit.PASS
    checks = len(loaded.registry.checks)
    if as_json:
        found = [{"where": p.where, "what": p.what, "expected": p.expected, "fix": p.fix} for p in problems]
        more = {"runbooks": [str(page) for page in pages], "checks": checks, "problems": found}
        emit_json(envelope("lint", "USAGE" if problems else "PASS", code, **more))
        return int(code)
    for problem in problems:
        click.echo(printable(str(problem)))
    summary = f"{len(problems)} problem(s)" if problems else "no problem"
    click.echo(f"{len(pages)} runbook(s), {checks} check(s): {summary}", err=True)
    return int(code)


def _pages(paths: Sequence[str], packs: Packs) -> list[Path]:
    """The runbooks to read: those named, those of named folders, or all."""
    pages: list[Path] = [] if paths else list(packs.runbooks.values())
    for path in paths:
        folder = Path(path).resolve()
        if folder.is_dir():
            pages += [page for page in packs.runbooks.values() if page.is_relative_to(folder)]
        elif path.endswith(".md"):
            pages.append(Path(path))
        else:
            pages.append(packs.runbook(path))
    return pages


def _problems(paths: Sequence[str], folders: Sequence[str], pages: Sequence[Path], packs: Packs) -> list[Problem]:
    from ddaudit.runbook import lint_packs, lint_runbook

    found = [problem for page in pages for problem in lint_runbook(page, packs)]
    about_packs = lint_packs(packs)
    if paths:
        named = [str(Path(folder).resolve()) for folder in folders]
        about_packs = [p for p in about_packs if any((p.where or "").startswith(folder) for folder in named)]
    return [*about_packs, *found]
