"""Tensor parallelism by hand (Shoeybi et al. 2019): column- and row-parallel layers, replicated norms, one batch."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        up, down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.up = nn.Parameter(up.weight.data.chunk(world)[rank].clone())
        self.up_bias = nn.Parameter(torch.zeros(64 // world))
        self.down = nn.Parameter(down.weight.data.chunk(world, 1)[rank].clone())
        self.bias = nn.Parameter(torch.zeros(16))

    def forward(self, x):
        hidden = F.linear(Enter.apply(self.norm(x)), self.up, self.up_bias).relu()
        return x + Leave.apply(F.linear(hidden, self.down)) + self.bias


torch.manual_seed(0)
model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
x = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x[:, :4].argmax(1))
for epoch in range(2):
    for inputs, labels in DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(epoch)):
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}")
dist.destroy_process_group()
