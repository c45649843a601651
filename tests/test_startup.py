"""Start-up stays cheap: light commands import no heavy library, and help costs little more than click itself."""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddaudit.checkpoint.sample import write_sample

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "h5py", "matplotlib")
PROBE = """
import json, sys
from ddaudit.cli.main import main
code = main(sys.argv[1:])
sys.stderr.write("\\nLOADED " + json.dumps([code, [m for m in ("torch", "h5py", "matplotlib") if m in sys.modules]]))
"""


def loaded(*argv: str) -> tuple[int, list[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROBE, *argv], capture_output=True, text=True, env=environment)
    code, modules = json.loads(done.stderr.rpartition("LOADED ")[2])
    return code, modules


@pytest.mark.parametrize(
    "argv", [("--help",), ("list", "checks"), ("list", "runbooks", "--json"), ("lint",), ("show", "loss.floor")]
)
def test_light_commands_import_nothing_heavy(argv: tuple[str, ...]):
    code, modules = loaded(*argv)
    assert (code, modules) == (0, [])


def test_report_imports_nothing_heavy(healthy_run: Path):
    code, modules = loaded("report", str(healthy_run))
    assert (code, modules) == (0, [])


def seconds(argv: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return time.perf_counter() - begin


def test_help_costs_at_most_three_times_importing_click():
    """Paired: each round times both, and the median of the rounds' ratios is judged."""
    code = "import sys; from ddaudit.cli.main import main; sys.exit(main(['--help']))"
    ratios = [seconds([sys.executable, "-c", code]) / seconds([sys.executable, "-c", "import click"]) for _ in range(7)]
    assert statistics.median(ratios) <= 3.0, ratios


@pytest.mark.parametrize("package", ["ddaudit.api", "ddaudit.evidence", "ddaudit.runbook"])
def test_every_offered_name_is_found_at_its_home(package: str):
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = module.Nothing


def test_judging_a_checkpoint_imports_neither_other_evidence_nor_runbooks(tmp_path: Path):
    """What an audit costs before it reads: the models of all other evidence would be half of it."""
    root = write_sample(tmp_path)
    code = f"import sys; from ddaudit.cli.checkpoint_audit import audit_path as a; a({str(root)!r});print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    rooms = {m for m in done.stdout.split() if m.startswith("ddaudit.")}
    assert "ddaudit.evidence.checkpoint" in rooms
    assert not rooms & {"ddaudit.evidence.incident", "ddaudit.evidence.script", "ddaudit.job", "ddaudit.runbook.lint"}
