"""``ddaudit forecast`` as a user types it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ddaudit.cli.main import main
from ddaudit.job import EXAMPLE


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(EXAMPLE, encoding="utf-8")
    return str(path)


def test_a_job_on_a_described_machine_gets_a_table_an_answer_and_a_reason(job: str, capsys: pytest.CaptureFixture[str]):
    assert main(["forecast", "--job", job, "--hardware", "h100-ndr", "--to", "8,64"]) == 0
    out = capsys.readouterr().out
    assert "8 -> 64: helps" in out
    assert "largest term" in out
    assert "learning rate" in out


def test_json_holds_the_contracts_predictions(job: str, capsys: pytest.CaptureFixture[str]):
    assert main(["forecast", "--job", job, "--hardware", "h100-ndr", "--to", "64", "--parallel", "auto", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "ddaudit/1"
    assert told["command"] == "forecast"
    (one,) = told["predictions"]
    keys = {"devices", "layout", "step_s", "speedup", "limiter", "memory_bytes", "global_batch", "advice"}
    assert keys <= one.keys()
    assert one["step_s"].keys() == {"low", "mid", "high"}


def test_no_size_that_can_run_is_inconclusive(job: str, capsys: pytest.CaptureFixture[str]):
    argv = ["forecast", "--job", job, "--hardware", "h100-ndr", "--to", "9", "--json"]
    assert main([*argv, "--scaling", "strong"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "INCONCLUSIVE"
    assert "replicas" in told["forecast"]["refused"]["9"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--to", "eight"], "expected numbers of devices"),
        (["--to", "8", "--job-set", "a=1"], "--job-set belongs to --job"),
        (["--to", "8", "--target-loss", "2.0"], "--target-loss needs a run"),
        (["--to", "8"], "nothing to forecast"),
        (["nowhere", "--to", "8"], "no such folder"),
    ],
)
def test_a_wrong_call_is_one_line(more: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["forecast", *more]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_forecast_imports_no_torch(job: str):
    import subprocess

    code = (
        "import sys; from ddaudit.cli.main import main;"
        f" main(['forecast', '--job', {job!r}, '--hardware', 'h100-ndr', '--to', '8,64']);"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
