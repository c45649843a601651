"""What watching costs a two-rank DDP training: CPU time in hooks, wall time per update, and whether losses stay equal.

    python benchmarks/watch_overhead.py [--blocks 5] [--updates 200] [--ddaudit PROGRAM]

Blocks of plain and watched runs alternate. ``hooks`` is the CPU time that the hooks measured of themselves over the CPU
time of the ranks; it should be at most 3 % by default and 1 % with ``--every 100``. ``wall`` is the ratio of median
update times with the 95 % interval of a bootstrap over blocks; its upper end should lie below 1.10. Losses are compared
bit for bit. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """
import hashlib, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0); torch.set_num_threads(1)
data = TensorDataset(torch.randint(64, (4096, 48)))
sampler = DistributedSampler(data)
loader = DataLoader(data, 16, sampler=sampler, drop_last=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(64, 128)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True), 2)
        self.head = nn.Linear(128, 64)
    def forward(self, x):
        return self.head(self.body(self.emb(x)))
net = DDP(Net())
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
losses, times, step, epoch = hashlib.sha256(), [], 0, 0
while step < int(sys.argv[1]):
    sampler.set_epoch(epoch); epoch += 1
    for (x,) in loader:
        began = time.perf_counter()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward(); opt.step()
        losses.update(loss.item().hex().encode()); times.append(time.perf_counter() - began)
        step += 1
        if step == int(sys.argv[1]): break
if rank == 0:
    print("RESULT", losses.hexdigest(), sorted(times[10:])[len(times[10:]) // 2], flush=True)
"""


@dataclass
class Block:
    """One run: digest of its losses, median update time, and for watched runs CPU seconds in hooks and in the ranks."""

    losses: str
    update_s: float
    hooks_s: float = 0.0
    cpu_s: float = 0.0


def run(program: Path, updates: int, ddaudit: str | None, every: int) -> Block:
    """Runs the program plain (``ddaudit`` is None) or watched."""
    command = ["torchrun", "--standalone", "--nproc-per-node", "2", str(program), str(updates)]
    with tempfile.TemporaryDirectory() as out:
        if ddaudit is not None:
            command = [*shlex.split(ddaudit), "watch", "--every", str(every), "--out", out, "--", *command]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        line = next((x.split() for x in done.stdout.splitlines() if x.startswith("RESULT")), None)
        if line is None:
            raise SystemExit(f"no result:\n{done.stderr[-2000:]}")
        return Block(line[1], float(line[2]), *_spent(Path(out)))


def _spent(out: Path) -> tuple[float, float]:
    hooks = cpu = 0.0
    for file in out.glob("*/events/script/*.jsonl"):
        last: float = 0.0
        for event in map(json.loads, file.read_text("utf-8").splitlines()):
            cpu += event["values"].get("cpu_s", 0.0) if event["event"] == "step" and event["step"] > 0 else 0.0
            last = event["hooks"]["cpu_s"] if event["event"] == "watched" else last
        hooks += last
    return hooks, cpu


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Median and 95 % interval of the median, by a bootstrap with a fixed seed."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[1949]


def main() -> int:
    """Alternates the runs and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--ddaudit", default=f"{sys.executable} -m ddaudit")
    args = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        program.write_text(PROGRAM, encoding="utf-8")
        for every, most in ((1, 0.03), (100, 0.01)):
            pairs = []
            for number in range(args.blocks):
                order = (None, args.ddaudit) if number % 2 == 0 else (args.ddaudit, None)
                found = {way is None: run(program, args.updates, way, every) for way in order}
                pairs.append((found[True], found[False]))
            equal = len({b.losses for pair in pairs for b in pair}) == 1
            share = sum(w.hooks_s for _, w in pairs) / max(sum(w.cpu_s for _, w in pairs), 1e-9)
            middle, low, high = interval([w.update_s / p.update_s for p, w in pairs])
            good &= equal and share <= most and high < 1.10
            print(
                f"--every {every}: hooks {share:.2%} of the ranks' CPU (at most {most:.0%}); wall {middle:.3f}"
                f" [{low:.3f}, {high:.3f}] of plain; losses {'equal' if equal else 'DIFFER'}"
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
