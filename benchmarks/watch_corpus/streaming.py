"""IterableDataset sharded by rank and worker, a step budget instead of epochs, ReduceLROnPlateau on the mean loss."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

MAX_STEPS = 30


class Stream(IterableDataset):
    def __init__(self, rank, world, n=4096):
        self.rank, self.world, self.n = rank, world, n

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(self.rank * workers + worker, self.n, self.world * workers):
            g = torch.Generator().manual_seed(i)
            x = torch.randn(9, generator=g)
            yield x, x[:3].sum() - x[3:].max()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    loader = DataLoader(Stream(rank, world), batch_size=16, num_workers=2)
    model = DDP(nn.Sequential(nn.Linear(9, 40), nn.Tanh(), nn.Linear(40, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=2, factor=0.7)
    history, avg = [], 0.0
    for step, (x, y) in enumerate(loader):
        if step >= MAX_STEPS:
            break
        loss = nn.functional.smooth_l1_loss(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        avg += loss.item()
        if step % 5 == 4:
            mean = torch.tensor(avg / 5)
            dist.all_reduce(mean)
            plateau.step(mean.item() / world)
            history.append(mean.item() / world)
            avg = 0.0
    if rank == 0:
        print(history)


if __name__ == "__main__":
    main()
