"""No wrapper: gradients are averaged by hand in flat buckets; SGD with momentum and a hand-written schedule."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, LOCAL_BS, BASE_LR, BASE_BATCH = 4, 32, 0.05, 64


class Moons(Dataset):
    def __init__(self, n=640):
        g = torch.Generator().manual_seed(0)
        t = torch.rand(n, generator=g) * 3.14159
        side = torch.arange(n) % 2
        self.x = torch.stack([torch.cos(t) * (1 - 2 * side) + side, torch.sin(t) * (1 - 2 * side) + 0.5 * side], 1)
        self.x += 0.1 * torch.randn(n, 2, generator=g)
        self.y = side

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def average_gradients(model, world):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for g in grads:
        g.copy_(flat[at : at + g.numel()].view_as(g))
        at += g.numel()


def run():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
    ds = Moons()
    sampler = DistributedSampler(ds, num_replicas=world, rank=rank, shuffle=True)
    dl = DataLoader(ds, batch_size=LOCAL_BS, sampler=sampler)
    global_batch = LOCAL_BS * world
    lr = BASE_LR * global_batch / BASE_BATCH
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    crit = nn.CrossEntropyLoss()
    step = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in dl:
            for g in opt.param_groups:
                g["lr"] = lr * min(1.0, (step + 1) / 5)
            loss = crit(net(x), y)
            opt.zero_grad()
            loss.backward()
            average_gradients(net, world)
            opt.step()
            step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item() / world:.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run()
