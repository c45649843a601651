"""``ddaudit watch --compare-single`` and ``--baseline``: two runs of one command, judged together."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ddaudit.cli.main import main
from ddaudit.evidence.events import EventWriter

TRAIN = """
import argparse, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
dist.init_process_group("gloo", init_method=f"STORE-{os.environ['WORLD_SIZE']}",
                        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
torch.manual_seed(0)
torch.set_num_threads(1)
rows = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))
data = TensorDataset(rows, rows.sum(1, keepdim=True))
loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data), drop_last=True)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""
LAUNCH = """
import os, subprocess, sys
count = sys.argv[2]
env = {**os.environ, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
ranks = [subprocess.Popen([sys.executable, *sys.argv[3:]], env={**env, "RANK": str(r)}) for r in range(int(count))]
sys.exit(max(rank.wait() for rank in ranks))
"""


def command(folder: Path, ranks: int, batch: int) -> list[str]:
    """Starts ranks of the script as a launcher does, without importing torch for it."""
    (folder / "launch.py").write_text(LAUNCH)
    (folder / "train.py").write_text(TRAIN.replace("STORE", f"file://{folder}/store-{ranks}-{batch}"))
    words = ["--nproc-per-node", str(ranks), str(folder / "train.py"), "--batch-size", str(batch)]
    return [sys.executable, str(folder / "launch.py"), *words]


def watch(folder: Path, capfd: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """The JSON object of one watched command."""
    main(["watch", "--json", "--out", str(folder / "runs"), *argv])
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def of(found: dict[str, Any], check: str) -> list[tuple[str, str]]:
    """``(status, text)`` of a check's findings."""
    return [(f["status"], f["text"]) for f in found["findings"] if f["check"] == check]


def earlier(folder: Path, batch: float) -> Path:
    """A run of the code before the change, as its only rank recorded it."""
    with EventWriter(folder / "events" / "script" / "host-0.jsonl") as events:
        events.emit("rank", place={"rank": 0, "host": "host", "device": "cpu", "coords": {}})
        events.emit("job", job={"source": "script", "parallel": "single", "world_size": 1, "dp": 1, "optimizer": "SGD"})
        for step in range(16):
            events.emit("step", step=step, values={"lr": 0.05, "samples": batch, "loss_raw": 1.0})
        events.emit("watched", rank=0, world_size=1, optimizers=[{"number": 0, "updates": 16}])
    return folder


def test_a_run_is_compared_with_one_rank_and_with_the_code_before_the_change(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """The launcher is told to start one rank, whose batch is doubled. Against the baseline the batch has doubled and
    the learning rate has not."""
    before = str(earlier(tmp_path / "before", batch=8))
    found = watch(tmp_path, capfd, "--compare-single", "--baseline", before, "--", *command(tmp_path, 2, 8))
    assert (found["verdict"], found["exit_code"]) == ("WARN", 0)
    ((status, text),) = of(found, "script.single")
    assert status == "PASS"
    assert "on 2 ranks" in text and "same batch of 16" in text
    ((status, text),) = of(found, "script.baseline")
    assert status == "WARN"
    assert "batch 16 is 2 times the baseline's" in text
    assert [p.name for p in (tmp_path / "runs").iterdir() if p.name.endswith("-single")]


def test_what_cannot_be_compared_is_a_usage_error_before_anything_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    for argv in (("--compare-single", "--", "true"), ("--baseline", str(tmp_path), "--", "true")):
        found = watch(tmp_path, capfd, *argv)
        assert (found["verdict"], found["exit_code"]) == ("USAGE", 2)
    assert not (tmp_path / "runs").exists()
