"""torchdata's StatefulDataLoader under DDP: every rank saves and loads the state of its own loader."""
import argparse
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


class Signals(Dataset):
    def __init__(self, n=480):
        t = torch.linspace(0, 6.28, 24)
        f = 1 + torch.arange(n) % 4
        self.x = torch.sin(f[:, None] * t) + 0.3 * torch.randn(n, 24, generator=torch.Generator().manual_seed(6))
        self.f = f - 1

    def __len__(self):
        return len(self.f)

    def __getitem__(self, i):
        return {"signal": self.x[i], "label": self.f[i]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--folder", type=pathlib.Path, default=None)
    p.add_argument("--pause", type=int, default=0)
    p.add_argument("--restart", action="store_true")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Signals()
    sampler = StatefulDistributedSampler(data, shuffle=True, seed=1)
    loader = StatefulDataLoader(data, batch_size=8, sampler=sampler, num_workers=0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 4)))
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    step, epoch = 0, 0
    if a.restart:
        ck = torch.load(a.folder / f"state_{rank}.pt", weights_only=False)
        model.load_state_dict(ck["model"])
        opt.load_state_dict(ck["optimizer"])
        loader.load_state_dict(ck["loader"])
        step, epoch = ck["step"], ck["epoch"]
    while epoch < 2:
        sampler.set_epoch(epoch)
        for batch in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["signal"]), batch["label"])
            loss.backward()
            opt.step()
            step += 1
            if step == a.pause:
                torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(),
                            "loader": loader.state_dict(), "step": step, "epoch": epoch},
                           a.folder / f"state_{rank}.pt")
                dist.barrier()
                return
        epoch += 1
    dist.destroy_process_group()


main()
