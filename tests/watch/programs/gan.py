"""An adversarial pair: two optimizers, two backward calls for the discriminator, gradients of one in the other."""

import torch
import torch.nn.functional as F
from common import loader, mlp, start, task
from torch.nn.parallel import DistributedDataParallel as DDP

rank, world = start()
torch.manual_seed(0)
gen, disc = DDP(mlp(dim=6, classes=12)), DDP(mlp(classes=1), broadcast_buffers=False)
opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(disc.parameters(), lr=1e-3, betas=(0.0, 0.9))
torch.manual_seed(100 + rank)
batches, sampler = loader(task())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, _ in batches:
        fake = gen(torch.randn(len(x), 6))
        opt_d.zero_grad()
        F.softplus(-disc(x)).mean().backward()
        F.softplus(disc(fake.detach())).mean().backward()
        opt_d.step()
        opt_g.zero_grad()
        F.softplus(-disc(fake)).mean().backward()
        opt_g.step()
