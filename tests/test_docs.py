"""Documentation that the code can check: generated pages, links, and the README's two set-up commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddaudit import packs
from ddaudit.cli.main import COMMANDS, LazyGroup, cli
from ddaudit.cli.pages import pages
from ddaudit.errors import EXIT_MEANINGS, Exit

ROOT = Path(__file__).resolve().parent.parent
PAGES = pages(packs.load(entries=False, environment=False).registry)


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str):
    """Mend with: python -m ddaudit.cli.pages docs"""
    assert (ROOT / "docs" / name).read_text() == PAGES[name]


def test_every_exit_code_has_a_meaning():
    assert set(EXIT_MEANINGS) == set(Exit)


def test_help_lines_of_the_group_are_those_of_the_commands():
    """The group lists commands without importing them, from a table that must stay true."""
    assert isinstance(cli, LazyGroup)
    for name, (_, line) in COMMANDS.items():
        command = cli.get_command(None, name)
        assert command.help.splitlines()[0] == line, name


def markdown_files() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "runbooks").glob("*.md")]


@pytest.mark.parametrize("path", markdown_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path):
    targets = re.findall(r"\]\(([^)#\s]+)", re.sub(r"```.*?```", "", path.read_text(), flags=re.S))
    dead = [t for t in targets if not re.match(r"[a-z]+:", t) and not (path.parent / t).exists()]
    assert dead == []


def test_readme_starts_with_exactly_two_setup_commands():
    shell = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert [s.strip() for s in shell] == [
        "pip install -c constraints.txt . && ddaudit run",
        "pip install -c constraints.txt '.[test]' && pytest -n 2 --dist loadfile",
    ]
    first = re.findall(r"```(\w*)\n", (ROOT / "README.md").read_text())
    assert first[0] == "sh"


def test_readme_is_one_screen():
    assert (ROOT / "README.md").read_text().count("\n") <= 50
