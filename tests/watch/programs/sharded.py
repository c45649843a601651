"""FSDP2: each rank holds shards, so parameters rightly differ; clipping by the whole model's norm."""

import torch
import torch.nn.functional as F
from common import loader, mlp, start, task
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank, world = start()
model = fully_shard(mlp(), mesh=init_device_mesh("cpu", (world,)))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
batches, sampler = loader(task())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in batches:
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        opt.zero_grad()
