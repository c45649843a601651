"""Pages of the documentation that are generated from the code, so that they cannot rot.

``python -m ddaudit.cli.pages docs`` writes them; a test compares the files with :func:`pages`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from ddaudit.cli.main import COMMANDS, cli
from ddaudit.errors import EXIT_MEANINGS
from ddaudit.findings import QUESTIONS
from ddaudit.registry import CheckSpec, Registry
from ddaudit.runbook.schema import runbook_schema

__all__ = ["pages"]


def pages(registry: Registry) -> Mapping[str, str]:
    """File name -> text of every generated page."""
    return {
        "exit-codes.md": exit_codes(),
        "cli.md": command_line(),
        "checks.md": checks(registry),
        "runbook.schema.json": runbook_schema(registry),
    }


def exit_codes() -> str:
    """The exit-code table."""
    rows = [f"| {int(code)} | {code.name} | {text} |" for code, text in EXIT_MEANINGS.items()]
    lines = [
        "# Exit codes",
        "",
        "Every command ends with one of these. If several hold, 4 wins, then 1, then 3, then 0.",
        "",
        "| code | name | meaning |",
        "|---|---|---|",
        *rows,
        "",
        "A WARN alone exits 0 (`--warn-as-fail` changes that). A SKIP makes a run inconclusive where the runbook marks",
        "its step `required = true`, or with `--strict`; an ERROR does unless the step is `required = false`. A run in",
        "which no check measured anything is inconclusive, never a pass.",
        "",
        "In CI, 1 blocks a merge, 2 asks to mend the call, 3 asks to run again elsewhere, 4 is a bug to report.",
    ]
    return "\n".join(lines) + "\n"


def command_line() -> str:
    """``--help`` of every command."""
    parts = [
        "# Command line",
        "",
        "Progress and notes go to stderr; results go to stdout.",
        "",
        *_help(cli, ["ddaudit"]),
    ]
    context = click.Context(cli, info_name="ddaudit")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        parts += _help(command, ["ddaudit", name])
        for sub in sorted(getattr(command, "commands", {})):
            parts += _help(command.commands[sub], ["ddaudit", name, sub])  # type: ignore[attr-defined]
    return "\n".join(parts).rstrip() + "\n"


def _help(command: click.Command, words: list[str]) -> list[str]:
    parent: click.Context | None = None
    for word in words[:-1]:
        parent = click.Context(cli, info_name=word, parent=parent)
    context = click.Context(command, info_name=words[-1], parent=parent, terminal_width=100, max_content_width=100)
    text = [line.rstrip() for line in command.get_help(context).splitlines()]
    return [f"## `{' '.join(words)}`", "", "```text", *text, "```", ""]


def checks(registry: Registry) -> str:
    """The check catalogue, by question."""
    parts = [
        "# Checks",
        "",
        "What each check asks, the finding ids its plants provoke, and the limits a runbook may set.",
        "",
    ]
    for id, question in [*QUESTIONS.items(), (None, "Further checks")]:
        mine = [s for s in sorted(registry.checks.values(), key=lambda s: s.id) if s.question == id]
        if mine:
            parts += [f"## {question}", ""]
        for spec in mine:
            parts += _check(spec)
    return "\n".join(parts).rstrip() + "\n"


def _check(spec: CheckSpec) -> list[str]:
    lines = [f"### `{spec.id}`", "", spec.asks, ""]
    if spec.doc:
        lines += [spec.doc, ""]
    faults = dict.fromkeys(id for plant in spec.plants for id in plant.expected)
    lines += [f"- Finding ids: {', '.join(f'`{id}`' for id in faults)}"]
    lines += [f"- Plants: {'; '.join(dict.fromkeys(p.name for p in spec.plants))}"]
    for name, limit in spec.metrics().items():
        bounds = ", ".join(f"{k} {v:g}" for k, v in limit if isinstance(v, int | float))
        lines.append(f"- Limit `{name}`: {bounds} ({limit.source})")
    return [*lines, ""]


def main(folder: str) -> None:
    """Writes every page into ``folder``."""
    from ddaudit import packs

    loaded = packs.load(entries=False, environment=False)
    for name, text in pages(loaded.registry).items():
        (Path(folder) / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
