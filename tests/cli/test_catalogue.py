"""``list``, ``show``, ``lint`` and ``new`` as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddaudit.cli.main import main
from ddaudit.errors import Exit


def said(capsys: pytest.CaptureFixture[str], *argv: str, code: int = Exit.PASS) -> str:
    assert main([*argv, "--packs", "builtin"]) == code
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *argv: str, code: int = Exit.PASS) -> dict[str, Any]:
    assert main([*argv, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["schema"] == "ddaudit/1" and found["exit_code"] == code and found["command"] == argv[0]
    return found


def test_lists_name_everything_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    checks = {item["id"]: item for item in parsed(capsys, "list", "checks")["items"]}
    floor = checks["loss.floor"]
    assert floor["evidence"] == ["training"] and floor["question"] == "loss" and floor["pack"] == "builtin"
    assert floor["limits"]["loss.floor_margin_nats"]["fail_below"] == -0.05 and floor["plants"]
    probes = {item["id"]: item for item in parsed(capsys, "list", "probes")["items"]}
    params = {p["name"]: p for p in probes["command"]["params"]}
    assert params["argv"]["required"] and params["pick"]["type"] == "first | last | min | max | all"
    books = {item["id"]: item for item in parsed(capsys, "list", "runbooks")["items"]}
    assert books["smoke"]["budget_s"] == 90 and "single" in books["scale-out"]["steps"]
    assert [item["id"] for item in parsed(capsys, "list", "packs")["items"]] == ["builtin"]
    plants = parsed(capsys, "list", "plants")["items"]
    assert {item["id"] for item in plants} == set(checks)


@pytest.mark.parametrize("what", ["checks", "probes", "runbooks", "packs", "plants"])
def test_text_lists_have_one_line_an_item(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    items = parsed(capsys, "list", what)["items"]
    assert len(said(capsys, "list", what).splitlines()) == len(items)


def test_show_explains_a_check_with_its_limits_and_proof(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "show", "loss.floor")
    assert (
        "loss.floor_margin_nats: fail below -0.05 (theorem" in text and "proof:" in text and "checks/loss.py:" in text
    )


def test_show_finds_the_check_behind_a_finding_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert "sync.missing-on-step is reported by:\nsync.frequency" in said(capsys, "show", "sync.missing-on-step")


def test_show_draws_a_runbook_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "show", "scale-out")
    assert (
        "-P ranks: int, default 2" in text and "needs reference" in text and "fail -> stop, otherwise -> next" in text
    )


def test_show_of_nothing_hints_at_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "loss.flor"]) == Exit.USAGE
    assert "did you mean 'loss.floor'?" in capsys.readouterr().err


def test_a_runbook_that_cannot_be_read_is_listed_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runbooks").mkdir()
    (tmp_path / "runbooks" / "odd.md").write_text("# no fence\n")
    for argv in (["list", "runbooks"], ["show", "odd"]):
        assert main([*argv, "--pack", str(tmp_path)]) == Exit.PASS
        assert "there is no fence 'toml runbook'" in capsys.readouterr().out


def test_a_file_that_does_not_import_is_named_by_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "odd.py").write_text("import nothing_of_that_name\n")
    assert main(["list", "checks", "--pack", str(tmp_path)]) == Exit.PASS
    assert "odd.py:1: ModuleNotFoundError" in capsys.readouterr().err


def test_lint_reports_problems_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book.md"
    book.write_text('# T\n\n```toml runbook\nid = "book"\n```\n\n```toml step a\nprobe = "tarin"\n```\n')
    found = parsed(capsys, "lint", str(book), code=Exit.USAGE)
    (problem,) = found["problems"]
    assert problem["where"] == f"{book}:8" and problem["fix"] == "did you mean 'train'?" and found["verdict"] == "USAGE"


def test_lint_of_a_folder_looks_at_that_folder_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["new", "pack", "fabric", "--into", str(tmp_path)])
    capsys.readouterr()
    found = parsed(capsys, "lint", str(tmp_path / "fabric"))
    assert found["runbooks"] == [str((tmp_path / "fabric" / "runbooks" / "fabric.md").resolve())]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("check", "fabric"), ("check", "fabric.late"), ("probe", "my-disk"), ("runbook", "busy-host"), ("pack", "site-2")],
)
def test_new_writes_files_that_are_clean_and_annotated(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = parsed(capsys, "new", kind, name, "--into", str(tmp_path))["files"]
    folder = tmp_path / name if kind == "pack" else tmp_path
    assert files and main(["lint", str(folder)]) == Exit.PASS, capsys.readouterr().out
    python = [file for file in files if file.endswith(".py")]
    config = str(Path(__file__).parents[2] / "pyproject.toml")
    if python:
        ruff = [sys.executable, "-m", "ruff", "check", "--config", config, "--ignore", "I001", *python]
        assert subprocess.run(ruff, capture_output=True, text=True).stdout.startswith("All checks passed")
    assert main(["new", kind, name, "--into", str(tmp_path)]) == Exit.USAGE
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../evil", "/abs", "Upper", "a b", "", "a.b.c", "class", "x/y", "a\x1b"])
def test_new_refuses_names_that_are_none(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("check", "probe", "runbook", "pack"):
        assert main(["new", kind, "--into", str(tmp_path), "--", name]) == Exit.USAGE
    assert list(tmp_path.rglob("*")) == [] and "\x1b" not in capsys.readouterr().err
