"""What the healthy programs share: a process group, a small task, and loaders that share it out."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def start(seed=0):
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    return dist.get_rank(), dist.get_world_size()


def task(n=256, dim=12, classes=4):
    g = torch.Generator().manual_seed(7)
    x = torch.randn(n, dim, generator=g)
    return TensorDataset(x, (x @ torch.randn(dim, classes, generator=g)).argmax(1))


def loader(data, batch=8, **options):
    sampler = DistributedSampler(data)
    return DataLoader(data, batch, sampler=sampler, drop_last=True, **options), sampler


def mlp(*extra, dim=12, width=16, classes=4):
    return nn.Sequential(nn.Linear(dim, width), *extra, nn.Tanh(), nn.Linear(width, classes))
