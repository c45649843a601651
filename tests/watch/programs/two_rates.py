"""Two optimizers that step together: one for matrices, one for the rest; warm-up whose first rate is 0."""

import torch
import torch.nn.functional as F
from common import loader, mlp, start, task
from torch.nn.parallel import DistributedDataParallel as DDP

rank, world = start()
net = DDP(mlp())
wide = torch.optim.SGD([p for p in net.parameters() if p.dim() > 1], lr=0.1, momentum=0.9)
thin = torch.optim.AdamW([p for p in net.parameters() if p.dim() < 2], lr=1e-2)
rates = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: min(1.0, s / 8)) for o in (wide, thin)]
batches, sampler = loader(task())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in batches:
        F.cross_entropy(net(x), y).backward()
        for opt, rate in zip((wide, thin), rates, strict=True):
            opt.step()
            opt.zero_grad(set_to_none=False)
            rate.step()
