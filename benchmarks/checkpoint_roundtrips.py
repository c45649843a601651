"""Fresh round trips with the real frameworks: each save is audited, and compared with its converted form.

usage: checkpoint_roundtrips.py FOLDER. Every framework that is installed is used, the others are named as not run; none
is a dependency of ddaudit. Exit 0 when all that ran are OK (or DEGRADED with a reason) and identical.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ddaudit.checkpoint.diff import compare_paths
from ddaudit.cli.checkpoint_audit import audit_path

MODEL = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
def train(model, optimizer, steps):
    for step in range(steps):
        model(torch.randint(0, 64, (4,))).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FSDP2 = (
    MODEL
    + """
import os, sys
import torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group('gloo')
mesh = init_device_mesh('cpu', (dist.get_world_size(),))
for layer in model: fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train(model, optimizer, 3)
weights, states = get_state_dict(model, optimizer)
state = {'model': weights, 'optimizer': states, 'step': 3}
dcp.save(state, checkpoint_id=sys.argv[1])
dist.destroy_process_group()
"""
)
CONVERT = """
import sys
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2])
"""
RESHARD = """
import sys, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
torch_save_to_dcp(sys.argv[1], sys.argv[2])
"""
LIGHTNING = """
import sys, torch, lightning
class Module(lightning.LightningModule):
    def __init__(self): super().__init__(); self.net = torch.nn.Linear(4, 4)
    def training_step(self, batch, index): return self.net(batch[0]).square().mean()
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
quiet = {'logger': False, 'enable_progress_bar': False, 'enable_checkpointing': False}
trainer = lightning.Trainer(max_steps=3, accelerator='cpu', **quiet)
trainer.fit(Module(), data)
trainer.save_checkpoint(sys.argv[1] + '/last.ckpt')
"""
ACCELERATE = (
    MODEL
    + """
import sys
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
class Progress:
    def state_dict(self): return {'steps': 3, 'epoch': 0}
    def load_state_dict(self, state): pass
accelerator = Accelerator(cpu=True)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
train(model, optimizer, 3)
for _ in range(3): schedule.scheduler.step()
accelerator.register_for_checkpointing(Progress())
accelerator.save_state(sys.argv[1])
"""
)


def run(code: str, *argv: str, ranks: int = 1) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = Path(argv[0]).parent / "program.py"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(code)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    subprocess.run(
        [sys.executable, *launcher, str(program), *argv], check=True, env=environment, stdout=subprocess.DEVNULL
    )


def fsdp2(folder: Path) -> bool:
    one, torch_file, again = folder / "dcp2" / "step_3", folder / "torch" / "step_3.pt", folder / "dcp1" / "step_3"
    run(FSDP2, str(one), ranks=2)
    run(CONVERT, str(one), str(torch_file.parent.mkdir(exist_ok=True) or torch_file))
    run(RESHARD, str(torch_file), str(again))
    return all([audited(one), audited(torch_file), audited(again), same(one, torch_file), same(one, again)])


def lightning(folder: Path) -> bool:
    run(LIGHTNING, str(folder / "lightning"))
    return audited(folder / "lightning" / "last.ckpt")


def accelerate(folder: Path) -> bool:
    run(ACCELERATE, str(folder / "accelerate"))
    return audited(folder / "accelerate")


def audited(path: Path) -> bool:
    result = audit_path(str(path))
    reasons = [f.text for f in result.findings if f.bad]
    print(f"  {result.word:14} {path.name}: {'; '.join(reasons)[:200]}")
    return result.word in ("OK", "DEGRADED")


def same(a: Path, b: Path) -> bool:
    found = compare_paths(str(a), str(b))
    rest = [d.name for d in found.differences[:5]] + list(found.only_in_a[:5]) + list(found.only_in_b[:5])
    print(f"  {'identical' if found.identical else 'different'}: {a.name} and {b.name} {rest}")
    return found.identical


TRIPS: dict[str, tuple[str, Callable[[Path], bool]]] = {
    "FSDP2 to torch file to DCP": ("torch", fsdp2),
    "Lightning": ("lightning", lightning),
    "Accelerate": ("accelerate", accelerate),
}


def main(folder: Path) -> int:
    good = True
    for name, (package, trip) in TRIPS.items():
        if importlib.util.find_spec(package) is None:
            print(f"{name}: not run, {package} is not installed")
            continue
        print(name)
        good &= trip(folder / package)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
