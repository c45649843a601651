"""A gradient scaler used as it should be, gradients divided instead of the loss, a counter of micro-batches."""

import torch
import torch.nn.functional as F
from common import loader, mlp, start, task
from torch.nn.parallel import DistributedDataParallel as DDP

rank, world = start()
net = DDP(mlp())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
batches, sampler = loader(task())
A, step = 2, 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    for i, (x, y) in enumerate(batches):
        net.require_backward_grad_sync = i % A == A - 1
        scaler.scale(F.cross_entropy(net(x), y)).backward()
        step += 1
        if i % A == A - 1:
            scaler.unscale_(opt)
            for p in net.parameters():
                p.grad /= A
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
