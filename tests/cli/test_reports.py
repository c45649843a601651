"""``--report``: what it takes, and pages of commands that keep no run folder."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ddaudit.cli.main import main
from ddaudit.cli.reports import ReportTarget, write_asked
from ddaudit.errors import UsageProblem
from tests.report import records
from tests.report.page import Page


@pytest.mark.parametrize(
    ("word", "target"),
    [("html", ("html", None)), ("html:a.html", ("html", Path("a.html"))), ("md:c:d", ("md", Path("c:d")))],
)
def test_a_target_is_a_format_with_or_without_a_path(word: str, target: tuple[str, Path | None]) -> None:
    assert ReportTarget().convert(word, None, None) == target


@pytest.mark.parametrize("word", ["htm", "html:", "prom:metrics.txt", ""])
def test_anything_else_is_refused(word: str) -> None:
    with pytest.raises(click.BadParameter):
        ReportTarget().convert(word, None, None)


def test_a_command_without_a_run_folder_takes_paths_only() -> None:
    with pytest.raises(click.BadParameter, match="html:PATH"):
        ReportTarget(bare=False).convert("html", None, None)
    assert ReportTarget(bare=False, words=("text",)).convert("text", None, None) == ("text", None)
    with pytest.raises(UsageProblem, match="keeps no run folder"):
        write_asked(records.healthy(), None, [("html", None)], ())


def test_a_file_that_cannot_be_written_costs_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_asked(records.healthy(), None, [("md", tmp_path / "no" / "such.md")], (), environ={})
    assert "was not written" in capsys.readouterr().err


def test_nothing_goes_to_github_outside_of_github(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_asked(records.failed(), tmp_path, [("github", None)], (), environ={})
    assert (tmp_path / "github.md").is_file() and capsys.readouterr().err == ""


def test_a_triage_and_an_audit_write_pages(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rank0.log"
    log.parent.mkdir()
    log.write_text(
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n<script>alert(1)</script>\n"
    )
    main(["triage", str(log.parent), "--report", f"html:{tmp_path / 'triage.html'}"])
    page = Page((tmp_path / "triage.html").read_text(encoding="utf-8"))
    assert page.misnested == [] and len(page.all("script")) == 1 and "What proves it" in page.text("h2")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    main(["checkpoint", "audit", str(tmp_path / "checkpoint"), "--report", f"html:{tmp_path / 'audit.html'}"])
    page = Page((tmp_path / "audit.html").read_text(encoding="utf-8"))
    assert page.misnested == [] and "checkpoint audit" in page.text("span")
