"""A plain DDP loop whose only interest is what its updates cost."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Rows(Dataset):
    def __init__(self, n=384):
        self.x = torch.randn(n, 64, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[i].pow(2).mean(0, keepdim=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Rows()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 16, sampler=sampler, num_workers=1, persistent_workers=True)
    width = 256
    model = DDP(
        nn.Sequential(
            nn.Linear(64, width),
            nn.ReLU(),
            *[nn.Linear(width, width) for _ in range(4)],
            nn.ReLU(),
            nn.Linear(width, 1),
        )
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    seen = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            opt.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            seen.append(loss.item())
    if rank == 0:
        print(f"{sum(seen[-5:]) / 5:.4f}")


main()
