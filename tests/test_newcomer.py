"""A newcomer's path: run, open the page, break something, read the finding, waive it, see the waiver expire."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from ddaudit.cli.main import main
from ddaudit.report.pictures import AREAS
from tests.conftest import ddaudit
from tests.report.page import Page

Told = Callable[..., tuple[int, dict[str, Any]]]
WAIVER = """[[waiver]]
check   = "{check}"
where   = "step=single"
reason  = "a drill: the fault is planted"
owner   = "newcomer"
expires = {day}
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, small_runbook: Path) -> Path:
    """The folder of a run with a planted fault."""
    out = tmp_path_factory.mktemp("runs")
    done = ddaudit("run", str(small_runbook), "-P", "plant=loss-nan", "--out", str(out), "--device", "cpu")
    assert done.returncode == 1 and "✖ FAIL" in done.stdout, done.stdout + done.stderr
    return next(out.iterdir())


@pytest.fixture
def copied(broken: Path, tmp_path: Path) -> Path:
    shutil.copytree(broken, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command in this process and reads the object that it prints."""

    def run(*argv: str) -> tuple[int, dict[str, Any]]:
        code = main([*argv, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def faults(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for f in found["findings"] if f["step"] == "single" and f["status"] in ("FAIL", "WAIVED")]


def waived(path: Path, checks: list[str], day: date) -> Path:
    file = path.parent / "waivers.toml"
    file.write_text("\n".join(WAIVER.format(check=check, day=day) for check in checks))
    return file


def test_the_first_run_is_green_and_its_page_opens_with_pictures(
    healthy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    monkeypatch.setenv("DDAUDIT_PICTURES", "1")
    assert main(["report", str(healthy_run), "--format", f"html:{page}", "-q"]) == 0
    assert capsys.readouterr().out.count("\n") <= 12
    found = Page(page.read_text(encoding="utf-8"))
    assert found.misnested == [] and "PASS" in found.text("h1") + found.text("span")
    shown = {a["id"].removeprefix("area-") for a in found.all("h2") if a.get("id", "").startswith("area-")}
    assert {"loss", "compute", "memory", "scheduler"} <= shown <= set(AREAS)
    assert len(page.read_bytes()) < 400_000


def test_a_fault_is_found_waived_and_back_the_day_after_the_waiver_expires(copied: Path, told: Told) -> None:
    code, found = told("report", str(copied))
    bad = faults(found)
    assert code == 1 and bad and all(f["text"] and f["evidence"] for f in bad)
    checks = sorted({f["check"] for f in bad})

    file = waived(copied, checks, date.today() + timedelta(days=30))
    code, found = told("report", str(copied), "--waivers", str(file))
    assert {f["status"] for f in faults(found)} == {"WAIVED"}
    assert [f["measured"] for f in faults(found)] == [f["measured"] for f in bad]
    assert found["verdict"] != "FAIL" and code in (0, 3)

    file = waived(copied, checks, date.today() - timedelta(days=1))
    code, found = told("report", str(copied), "--waivers", str(file))
    assert code == 1 and {f["status"] for f in faults(found)} == {"FAIL"}
    assert all("the waiver of newcomer lapsed" in f["text"] for f in faults(found))
    assert {f["id"] for f in found["findings"] if f["check"] == "waivers"} == {"waiver.expired"}


def test_a_wrong_waiver_is_exit_2_in_one_line_and_changes_nothing(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (copied / "record.json").read_bytes()
    file = waived(copied, ["loss.finit"], date.today())
    assert main(["report", str(copied), "--waivers", str(file)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and "did you mean 'loss.finite'" in told.err
    assert (copied / "record.json").read_bytes() == before


def test_the_two_runs_differ_where_the_fault_is(healthy_run: Path, broken: Path, told: Told) -> None:
    code, found = told("diff", str(healthy_run), str(broken))
    assert code == 1
    assert ("single", "loss.finite", "PASS", "FAIL") in {(o[0], o[1], o[3], o[4]) for o in found["outcomes"]}


def test_every_face_of_the_broken_run_is_written_where_it_is_asked(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    wanted = [
        "github",
        f"prom:{tmp_path / 'd.prom'}",
        f"incident:{tmp_path / 'post.md'}",
        f"junit:{tmp_path / 'j.xml'}",
    ]
    options = [word for target in wanted for word in ("--format", target)]
    assert main(["report", str(copied), *options]) == 1
    assert "loss.finite" in (tmp_path / "summary.md").read_text() and (copied / "github.md").is_file()
    assert 1 <= sum(line.startswith("::error") for line in capsys.readouterr().err.splitlines()) <= 10
    assert {p.name for p in tmp_path.iterdir()} >= {"d.prom", "post.md", "j.xml"}
    assert main(["report", str(copied), "--format", f"prom:{tmp_path / 'd.txt'}"]) == 2
    assert "end in .prom" in capsys.readouterr().err
