"""Two stages of a pipeline under 1F1B: each rank holds other layers."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
full = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
part = full[:2] if rank == 0 else full[2:]
schedule = Schedule1F1B(PipelineStage(part, rank, world, torch.device("cpu")), 4, loss_fn=F.cross_entropy)
optimizer = torch.optim.Adam(part.parameters(), lr=3e-3)
x = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), 32, shuffle=True, generator=torch.Generator().manual_seed(3))
for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=labels, losses=losses)
        optimizer.step()
    if losses:
        print(f"epoch {epoch}: loss {torch.stack(losses).mean().item():.4f}")
dist.destroy_process_group()
