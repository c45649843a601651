"""FSDP2: per-layer fully_shard, accumulation, clipping, distributed checkpoint, resume."""
import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, d=32, layers=2):
        super().__init__()
        self.inp = nn.Linear(8, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--accumulation-steps", type=int, default=2)
    ap.add_argument("--ckpt", default="")
    ap.add_argument("--save-at", type=int, default=0)
    ap.add_argument("--load", action="store_true")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(512, 8, generator=g)
    data = TensorDataset(x, (x.sin().sum(1, keepdim=True)))
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, 8, sampler=sampler, drop_last=True)
    model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=5)
    start = 0
    if args.load:
        msd, osd = get_state_dict(model, opt)
        state = {"model": msd, "optim": osd, "sched": warm.state_dict(), "step": 0}
        dcp.load(state, checkpoint_id=args.ckpt)
        set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["optim"])
        warm.load_state_dict(state["sched"])
        start = state["step"]
    step, total, a = 0, 32, args.accumulation_steps
    epoch = 0
    while step < total:
        sampler.set_epoch(epoch)
        for i, (xb, yb) in enumerate(loader):
            if step < start:
                step += (i + 1) % a == 0
                continue
            sync = (i + 1) % a == 0
            model.set_requires_gradient_sync(sync)
            with contextlib.nullcontext():
                loss = nn.functional.mse_loss(model(xb), yb) / a
                loss.backward()
            if not sync:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            warm.step()
            opt.zero_grad()
            step += 1
            if args.ckpt and step == args.save_at:
                msd, osd = get_state_dict(model, opt)
                dcp.save({"model": msd, "optim": osd, "sched": warm.state_dict(), "step": step},
                         checkpoint_id=args.ckpt)
                dist.destroy_process_group()
                return
            if step >= total:
                break
        epoch += 1
    dist.destroy_process_group()


main()
