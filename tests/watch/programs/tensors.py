"""Tensor parallelism: all ranks rightly read the same batch and draw the same dropout."""

import torch
import torch.nn.functional as F
from common import mlp, start, task
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader

rank, world = start()
mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
model = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
opt = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for _ in range(2):
    for x, y in DataLoader(task(), 16, shuffle=True, generator=torch.Generator().manual_seed(4)):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
