"""Shards of unequal length under Join: one rank ends each epoch before the other and only mirrors its collectives."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
x = torch.randn(330, 16, generator=g)
data = TensorDataset(x, x[:, :4].argmax(1))
part = Subset(data, range(180) if rank == 0 else range(180, 330))
loader = DataLoader(part, batch_size=10, shuffle=True, generator=torch.Generator().manual_seed(rank))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    with Join([model]):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
    print(f"rank {rank} epoch {epoch} loss {loss.item():.3f}")
dist.destroy_process_group()
