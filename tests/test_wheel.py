"""The wheel carries the built-in pack: installed outside the tree it lists the same checks, runbooks and templates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel installs, and nothing of this tree."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def listed(where: Path, what: str, cwd: Path) -> list[str]:
    code = "from ddaudit.cli.main import run; run()"
    environment = {**os.environ, "PYTHONPATH": str(where)}
    done = subprocess.run(
        [sys.executable, "-c", code, "list", what, "--json", "--packs", "builtin"],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    shown = json.loads(done.stdout)
    return sorted(row["id"] for row in shown["items"])


@pytest.mark.parametrize("what", ["checks", "probes", "runbooks"])
def test_the_wheel_lists_what_the_tree_lists(installed: Path, what: str, tmp_path: Path):
    here = listed(ROOT, what, tmp_path)
    assert here
    assert listed(installed, what, tmp_path) == here


def test_the_wheel_carries_every_file_of_the_pack(installed: Path):
    for part in ("checks", "runbooks", "templates"):
        mine = {
            p.relative_to(ROOT / part) for p in (ROOT / part).rglob("*") if p.is_file() and "__pycache__" not in p.parts
        }
        theirs = {
            p.relative_to(installed / "ddaudit/_pack" / part)
            for p in (installed / "ddaudit/_pack" / part).rglob("*")
            if p.is_file()
        }
        assert mine and theirs == mine


def test_the_wheel_is_typed_and_has_an_entry_point(installed: Path):
    assert (installed / "ddaudit/py.typed").exists()
    (entry,) = installed.glob("ddaudit-*.dist-info/entry_points.txt")
    assert "ddaudit = ddaudit.cli.main:run" in entry.read_text()


def test_the_wheel_carries_every_data_file_of_the_package(installed: Path):
    mine = {
        p.relative_to(ROOT) for p in (ROOT / "ddaudit").rglob("*") if p.suffix in (".toml", ".json", ".c", ".typed")
    }
    assert mine
    assert [str(p) for p in sorted(mine) if not (installed / p).is_file()] == []
