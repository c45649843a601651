"""Experts of one rank each beside shared layers: tokens change ranks and come back, only shared layers are reduced."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def swap(x):
    parts = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat([p.chunk(world)[rank] for p in parts])


class Exchange(torch.autograd.Function):
    """Each rank gives every other rank an equal part of its rows; its own inverse."""

    @staticmethod
    def forward(ctx, x):
        return swap(x)

    @staticmethod
    def backward(ctx, grad):
        return swap(grad)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.out = nn.Linear(16, 32), nn.Linear(32, 4)


torch.manual_seed(0)
shared = Shared()
torch.manual_seed(100 + rank)
expert = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
optimizer = torch.optim.AdamW([*shared.parameters(), *expert.parameters()], lr=2e-3)
x = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x[:, :4].argmax(1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        hidden = torch.relu(shared.up(inputs))
        hidden = hidden + Exchange.apply(expert(Exchange.apply(hidden)))
        loss = F.cross_entropy(shared.out(hidden), labels)
        optimizer.zero_grad()
        loss.backward()
        for p in shared.parameters():
            dist.all_reduce(p.grad)
        for p in [*shared.parameters(), *expert.parameters()]:
            p.grad /= world
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}")
dist.destroy_process_group()
