"""``ddaudit baseline`` and ``ddaudit diff``, on records made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddaudit.cli.main import main
from ddaudit.record import save_record
from tests.engine.test_baselines import run


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Folders of five good runs and one that lost a fifth."""
    folders = []
    for value in (100, 101, 99, 100.5, 99.5, 80):
        folder = tmp_path / f"run{len(folders)}"
        folder.mkdir()
        save_record(run(value), folder)
        folders.append(str(folder))
    return folders


def test_a_regression_is_told_from_noise(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "good.baseline.json")
    assert main(["baseline", "save", file, *runs[:5]]) == 0
    assert "2 metrics of cpu x2 from 5 runs" in capsys.readouterr().out
    assert main(["baseline", "compare", file, runs[0]]) == 0
    assert "0 worse, 0 better, 2 within noise of good" in capsys.readouterr().out
    assert main(["baseline", "compare", file, runs[5], "--json"]) == 1
    (bad,) = (m for m in json.loads(capsys.readouterr().out)["metrics"] if m["worse"])
    assert (bad["metric"], bad["value"], bad["baseline"]) == ("data.tokens_per_s", 80, 100)
    assert main(["baseline", "list", str(tmp_path)]) == 0
    assert "good, 5 runs" in capsys.readouterr().out


def test_a_file_is_not_replaced_by_accident(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "x.baseline.json").write_text("mine")
    assert main(["baseline", "save", str(file), *runs[:3]]) == 2 and file.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert main(["baseline", "save", str(file), *runs[:3], "--force"]) == 0 and file.read_text() != "mine"


def test_bad_files_are_one_line_and_exit_2(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.baseline.json").write_text("{}")
    for argv in (["compare", str(tmp_path / "bad.baseline.json"), runs[0]], ["save", str(tmp_path / "y"), runs[0]]):
        assert main(["baseline", *argv]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["baseline", "list", str(tmp_path)]) == 0 and "not a baseline" in capsys.readouterr().out


def test_a_diff_tells_measures_and_exits_by_what_is_worse(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", runs[0], runs[5]]) == 1
    assert "worse  data.tokens_per_s  100 token/s -> 80 token/s  -20.0%" in capsys.readouterr().out
    assert main(["diff", runs[0], runs[1], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["within_noise"] == 2


@pytest.mark.parametrize(
    ("id", "said"), [("sync", "asked by:"), ("sync.frequency", "(check"), ("loss.nan", "reported by")]
)
def test_show_explains_questions_checks_and_findings(id: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", id]) == 0
    assert said in capsys.readouterr().out
