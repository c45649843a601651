"""Classes are balanced by drawing with replacement: each rank draws for itself."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(400, 16, generator=torch.Generator().manual_seed(1))
labels = (x[:, 0] > 1.2).long()
weights = 1.0 / torch.bincount(labels)[labels].double()
seed = 50 + rank
sampler = WeightedRandomSampler(weights, 256, replacement=True, generator=torch.Generator().manual_seed(seed))
loader = DataLoader(TensorDataset(x, labels), batch_size=16, sampler=sampler, drop_last=True)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    for inputs, wanted in loader:
        loss = F.cross_entropy(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank} epoch {epoch} loss {loss.item():.3f}")
dist.destroy_process_group()
