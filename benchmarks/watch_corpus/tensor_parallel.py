"""Tensor parallelism over both ranks: the same batch on each, split linear layers, a replicated norm."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 64)
        self.down = nn.Linear(64, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(x + self.down(torch.relu(self.up(self.norm(x)))))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(4)
    model = parallelize_module(Mlp(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    g = torch.Generator().manual_seed(9)
    x = torch.randn(384, 16, generator=g)
    y = (x @ torch.randn(16, 4, generator=g)).argmax(1)
    loader = DataLoader(TensorDataset(x, y), 16, shuffle=True, generator=torch.Generator().manual_seed(21))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    for epoch in range(2):
        for xb, yb in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            opt.step()
        if rank == 0:
            print("epoch", epoch, loss.item())


main()
