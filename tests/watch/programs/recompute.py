"""Gradient checkpointing (the reentrant kind runs a backward inside backward), bf16 autocast, accumulation with a
short last window that is weighed by its length."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from common import loader, start, task
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

rank, world = start()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(12, 16), nn.Linear(16, 4)
        self.first, self.second = (nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(2))

    def forward(self, x):
        x = self.inp(x)
        x = checkpoint(self.first, x, use_reentrant=True)
        return self.out(checkpoint(self.second, x, use_reentrant=False))


net = DDP(Net())
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
batches, sampler = loader(task(272))
A, count = 4, len(batches)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for i, (x, y) in enumerate(batches):
        size = min(A, count - i // A * A)
        last = (i + 1) % A == 0 or i + 1 == count
        with nullcontext() if last else net.no_sync(), torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(net(x), y) / size
            loss.backward()
        if last:
            opt.step()
            opt.zero_grad()
