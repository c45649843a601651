"""Low-rank adapters on a frozen base, wrapped after freezing; the head is trained with a rate of its own."""

import torch
import torch.nn.functional as F
from common import loader, mlp, start, task
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

rank, world = start()
model = mlp()
model.requires_grad_(False)


class Adapted(nn.Module):
    def __init__(self, base, size=2):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(base.in_features, size) * 0.1)
        self.up = nn.Parameter(torch.zeros(size, base.out_features))

    def forward(self, x):
        return self.base(x) + x @ self.down @ self.up


model[0] = Adapted(model[0])
model[-1].requires_grad_(True)
net = DDP(model)
opt = torch.optim.AdamW(
    [
        {"params": [model[0].down, model[0].up], "lr": 1e-2},
        {"params": model[-1].parameters(), "lr": 1e-3},
    ]
)
batches, sampler = loader(task())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
