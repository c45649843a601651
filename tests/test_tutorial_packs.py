"""The tutorial of docs/packs.md, followed to the letter: its files are written, its commands are run."""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = (ROOT / "docs" / "packs.md").read_text()
FILES = re.findall(r"^`([\w./-]+)`:\n\n(`{3,4})\w+\n(.*?)\n\2$", TUTORIAL, flags=re.S | re.M)
SESSIONS = re.findall(r"^```console\n(.*?)^```$", TUTORIAL, flags=re.S | re.M)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder in which the tutorial's files have been written."""
    folder = tmp_path_factory.mktemp("tutorial")
    for path, _, text in FILES:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")
    return folder


def run(command: str, folder: Path) -> tuple[int, str]:
    """Runs one line of a console block; globs are expanded, nothing else is."""
    words = [hit for word in shlex.split(command) for hit in (sorted(glob.glob(word, root_dir=folder)) or [word])]
    if words[0] == "ddaudit":
        words[:1] = [
            sys.executable,
            "-c",
            "import sys; from ddaudit.cli.main import main; sys.exit(main(sys.argv[1:]))",
        ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    environment.pop("DDAUDIT_PACKS", None)
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def steps(session: str) -> list[tuple[str, int, list[str]]]:
    """Command, exit code that the page promises, and the words it says will be printed."""
    found: list[tuple[str, int, list[str]]] = []
    for line in session.splitlines():
        if line.startswith("$ "):
            command, _, promise = line[2:].partition("  # exit ")
            found.append((command, int(promise or 0), []))
        else:
            found[-1][2].append(line)
    return found


def test_the_page_has_a_file_of_every_part() -> None:
    assert {Path(path).parent.name for path, _, _ in FILES} == {"checks", "probes", "runbooks", "templates"}


def test_the_tutorial_works_as_written(desk: Path) -> None:
    """In one test and in the page's order, since later commands rest on earlier ones."""
    for session in SESSIONS:
        for command, promised, printed in steps(session):
            code, output = run(command, desk)
            assert code == promised, f"{command}\n{output}"
            flat = " ".join(output.split())
            assert [line for line in printed if " ".join(line.split()) not in flat] == [], f"{command}\n{output}"
