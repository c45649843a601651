"""Character model: DDP, accumulation with no_sync, warm-up and cosine, clipping, dropout, exact resume."""
import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self, vocab=32, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.drop = nn.Dropout(0.1)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.drop(self.rnn(self.emb(x))[0]))


def corpus(n=768, length=16, vocab=32):
    g = torch.Generator().manual_seed(3)
    table = torch.randint(vocab, (vocab,), generator=g)
    rows = torch.empty(n, length + 1, dtype=torch.long)
    rows[:, 0] = torch.randint(vocab, (n,), generator=g)
    for t in range(length):
        noise = torch.rand(n, generator=g) < 0.2
        rows[:, t + 1] = torch.where(noise, torch.randint(vocab, (n,), generator=g), table[rows[:, t]])
    return TensorDataset(rows[:, :-1], rows[:, 1:])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=16, help="sequences per rank and micro-batch")
    p.add_argument("--grad-accum", type=int, default=2)
    p.add_argument("--iters", type=int, default=40)
    p.add_argument("--warmup-iters", type=int, default=8)
    p.add_argument("--out", default="")
    p.add_argument("--stop", type=int, default=0)
    p.add_argument("--resume", action="store_true")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    data = corpus()
    sampler = DistributedSampler(data, shuffle=True, seed=5, drop_last=True)
    loader = DataLoader(data, a.batch, sampler=sampler, drop_last=True)
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))

    def shape(it):
        if it < a.warmup_iters:
            return (it + 1) / a.warmup_iters
        t = (it - a.warmup_iters) / max(1, a.iters - a.warmup_iters)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * t))

    sched = torch.optim.lr_scheduler.LambdaLR(opt, shape)
    torch.manual_seed(100 + rank)
    it, epoch, done = 0, 0, 0
    path = os.path.join(a.out, f"rank{rank}.ckpt")
    if a.resume:
        ck = torch.load(path)
        model.module.load_state_dict(ck["model"])
        opt.load_state_dict(ck["opt"])
        sched.load_state_dict(ck["sched"])
        it, epoch, done = ck["it"], ck["epoch"], ck["done"]
        torch.set_rng_state(ck["rng"])
    if rank == 0:
        print(f"global batch: {a.batch} x {world} x {a.grad_accum} = {a.batch * world * a.grad_accum} sequences")
    while it < a.iters:
        sampler.set_epoch(epoch)
        micro = 0
        for k, (x, y) in enumerate(loader):
            if k < done:
                continue
            last = (k + 1) % a.grad_accum == 0
            model.require_backward_grad_sync = last
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / a.grad_accum
            loss.backward()
            micro += 1
            if not last:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            sched.step()
            it += 1
            done = k + 1
            if rank == 0 and it % 10 == 0:
                print(f"iter {it} loss {loss.item() * a.grad_accum:.4f} lr {sched.get_last_lr()[0]:.2e}")
            if a.out and it == a.stop:
                torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(),
                            "it": it, "epoch": epoch, "done": done, "rng": torch.get_rng_state()}, path)
                return
            if it == a.iters:
                break
        epoch, done = epoch + 1, 0


main()
