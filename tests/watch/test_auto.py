"""``import ddaudit.watch.auto``: a process watches itself, and ``ddaudit report`` judges what it has recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

from ddaudit import packs
from ddaudit.engine.restore import restore
from ddaudit.engine.waivers import Waiver, Waivers
from ddaudit.findings import Status, Verdict
from tests.conftest import ROOT, ddaudit

CELL = """
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(updates):
    x = torch.randn(8, 4)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
#: Members of an ensemble: each has batches of its own, and they do not talk.
RANK = "import ddaudit.watch.auto, os, torch\nupdates = 12\n" + CELL.replace(
    "seed(0)", "seed(int(os.environ.get('RANK', 0)))"
)
NOTEBOOK = f"""
import gc, json, sys, weakref
from ddaudit.watch import auto
import torch
CELL = {CELL!r}
cells = {{"torch": torch, "updates": 40}}
exec(CELL, cells)
first = weakref.ref(cells["net"])
folder = auto.begin()
cells["updates"] = 21
exec(CELL, cells)
gc.collect()
print(json.dumps({{"run": str(folder), "first_model_alive": first() is not None}}))
sys.stdout.flush()
sys.stdin.readline()
"""


def process(folder: Path, code: str, **env: str) -> subprocess.Popen[str]:
    """A Python process that knows of ddaudit only where it is."""
    told = {k: v for k, v in os.environ.items() if not k.startswith("DDAUDIT_")} | {"PYTHONPATH": str(ROOT)} | env
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=told, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def updates(run: Path) -> list[int]:
    """Updates that each rank of a run recorded."""
    files = sorted((run / "events" / "script").glob("*.jsonl"))
    return [sum(json.loads(line)["event"] == "step" for line in f.read_text().splitlines()) for f in files]


def test_ranks_of_one_launch_share_a_run_folder_that_report_judges(tmp_path: Path):
    ranks = [process(tmp_path, RANK, RANK=str(r), WORLD_SIZE="2") for r in range(2)]
    told = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    (run,) = (tmp_path / "ddaudit-runs").iterdir()
    assert updates(run) == [12, 12]
    assert all(str(run) in stderr for _, stderr in told)
    found = json.loads(ddaudit("report", "--json", str(run)).stdout)
    assert (found["command"], found["verdict"]) == ("watch", "PASS")
    assert any(f["check"] == "script.loss" and f["status"] == "PASS" for f in found["findings"])


def test_a_second_training_without_begin_is_told_and_is_no_pass(tmp_path: Path):
    code = f"import ddaudit.watch.auto, torch\nupdates = 12\n{CELL}\n{CELL}"
    told = process(tmp_path, code).communicate()[1]
    assert told.count("another training began after the 12 recorded updates") == 1
    (run,) = (tmp_path / "ddaudit-runs").iterdir()
    record, _ = restore(run, packs.load(entries=False, environment=False))
    (end,) = [f for f in record.findings if f.check == "script.end"]
    assert end.status is Status.SKIP and "another training of 12 updates" in end.text


def test_a_waiver_covers_a_finding_of_a_process_that_watched_itself(tmp_path: Path):
    process(tmp_path, RANK.replace("lr=0.1", "lr=1e-30")).communicate()
    (run,) = (tmp_path / "ddaudit-runs").iterdir()
    known = packs.load(entries=False, environment=False)
    record, _ = restore(run, known)
    assert {f.id for f in record.findings if f.status is Status.FAIL} == {"optim.no-op-step"}
    waiver = Waiver(check="optim.no-op-step", where="*", owner="team", reason="a frozen run", expires=date(2999, 1, 1))
    waived, _ = restore(run, known, waivers=Waivers(entries=(waiver,)))
    assert [f.status for f in waived.findings if f.id == "optim.no-op-step"] == [Status.WAIVED]


def test_a_notebook_begins_again_and_is_judged_while_it_lives(tmp_path: Path):
    """The second training has a run of its own, and nothing keeps the first model alive."""
    kernel = process(tmp_path, NOTEBOOK, DDAUDIT_WATCH_EVERY="10")
    try:
        assert kernel.stdout is not None
        line = kernel.stdout.readline()
        said = json.loads(line or kernel.communicate()[1])
        run = Path(said["run"])
        assert not said["first_model_alive"]
        assert updates(run) == [21]
        assert updates(run.with_name(run.name.removesuffix("-2"))) == [40]
        record, _ = restore(run, packs.load(entries=False, environment=False))
        assert record.verdict is Verdict.PASS
        assert any("in 21 updates" in f.text for f in record.findings if f.check == "script.loss")
    finally:
        kernel.communicate("\n")
