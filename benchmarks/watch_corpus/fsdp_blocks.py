"""FSDP2 by blocks, accumulation with set_requires_gradient_sync, clipping, distributed checkpoint."""
import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Regressor(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.inp = nn.Linear(12, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(3))
        self.head = nn.Linear(dim, 2)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batches(rank, step, size=16):
    g = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 12, generator=g)
    return x, torch.stack([x[:, :6].sum(1).tanh(), x[:, 6:].prod(1).clamp(-1, 1)], 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--accum", type=int, default=3)
    p.add_argument("--save", default="")
    p.add_argument("--load", default="")
    p.add_argument("--stop", type=int, default=0)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world,))
    model = Regressor()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=args.steps)
    first = 0
    if args.load:
        model_sd, optim_sd = get_state_dict(model, optimizer)
        state = {"model": model_sd, "optimizer": optim_sd, "scheduler": scheduler.state_dict(), "step": 0}
        dcp.load(state, checkpoint_id=args.load)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        first = state["step"]
    for step in range(first, args.steps):
        for micro in range(args.accum):
            last = micro == args.accum - 1
            model.set_requires_gradient_sync(last)
            x, y = batches(rank, step * args.accum + micro)
            loss = F.smooth_l1_loss(model(x), y) / args.accum
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if rank == 0 and step % 8 == 7:
            print(f"step {step} loss {loss.item() * args.accum:.4f}")
        if args.save and step + 1 == args.stop:
            model_sd, optim_sd = get_state_dict(model, optimizer)
            dcp.save({"model": model_sd, "optimizer": optim_sd, "scheduler": scheduler.state_dict(),
                      "step": step + 1}, checkpoint_id=args.save)
            break
    dist.barrier()
    dist.destroy_process_group()


main()
