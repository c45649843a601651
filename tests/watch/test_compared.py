"""``ddaudit watch --compare-single`` and ``--baseline``: two runs of one command, judged together."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ddaudit.cli.main import main

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


def test_one_rank_and_two_are_compared_and_a_bigger_batch_is_held_against_the_baseline(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """The launcher is told to start one rank, whose batch is doubled; that run then serves as the baseline of one
    whose batch doubles while its learning rate stays."""
    found = watch(tmp_path, capfd, "--compare-single", "--", *command(tmp_path, 2, 8))
    ((status, text),) = of(found, "script.single")
    assert (status, found["exit_code"]) == ("PASS", 0)
    assert "on 2 ranks" in text and "same batch of 16" in text
    (alone,) = (p for p in (tmp_path / "runs").iterdir() if p.name.endswith("-single"))
    grown = watch(tmp_path, capfd, "--baseline", str(alone), "--", *command(tmp_path, 1, 32))
    ((status, text),) = of(grown, "script.baseline")
    assert (status, grown["verdict"]) == ("WARN", "WARN")
    assert "batch 32 is 2 times the baseline's" in text
    assert of(found, "script.baseline")[0][0] == of(grown, "script.single")[0][0] == "SKIP"


def test_what_cannot_be_compared_is_a_usage_error_before_anything_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    for argv in (("--compare-single", "--", "true"), ("--baseline", str(tmp_path), "--", "true")):
        found = watch(tmp_path, capfd, *argv)
        assert (found["verdict"], found["exit_code"]) == ("USAGE", 2)
    assert not (tmp_path / "runs").exists()
