"""An exponential moving average of the weights, kept and evaluated on rank 0 only."""

import copy

import torch
import torch.nn.functional as F
from common import loader, mlp, start, task
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset

rank, world = start()
data = task()
train, held = Subset(data, range(192)), Subset(data, range(192, 256))
net = DDP(mlp())
mean = copy.deepcopy(net.module).requires_grad_(False)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
batches, sampler = loader(train)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        with torch.no_grad():
            for a, b in zip(mean.parameters(), net.module.parameters(), strict=True):
                a.lerp_(b, 0.1)
    if rank == 0:
        with torch.no_grad():
            print(sum(float(F.cross_entropy(mean(x), y)) for x, y in DataLoader(held, 32)))
