"""Iterable data set of packed sequences with a shuffle buffer, parted by rank and worker; state saved with the model."""
import argparse
import random
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Packed(IterableDataset):
    def __init__(self, rank, world, docs=3000, buffer=32):
        self.rank, self.world, self.docs, self.buffer = rank, world, docs, buffer
        self.epoch, self.start = 0, 0

    def state_dict(self):
        return {"epoch": self.epoch, "start": self.start}

    def load_state_dict(self, state):
        self.epoch, self.start = state["epoch"], state["start"]

    def document(self, i):
        g = torch.Generator().manual_seed(i)
        a, b = torch.randint(1, 5, (2,), generator=g).tolist()
        row = (torch.arange(9) * a + b) % 16
        row[:4] = torch.randint(16, (4,), generator=g)
        return row

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        index, count = self.rank * workers + worker, self.world * workers
        mine = list(range(index, self.docs, count))
        random.Random(self.epoch).shuffle(mine)
        skip = self.start // workers
        for i in mine[skip:]:
            row = self.document(i)
            yield row[:-1], row[1:]


def train(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data = Packed(rank, world)
    model = nn.Sequential(nn.Embedding(16, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 16))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    path = Path(args.save_dir) / "latest.pt"
    done = 0
    if args.resume:
        state = torch.load(path, weights_only=False)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["optimizer"])
        data.load_state_dict(state["dataset"])
        done = state["step"]
    ddp = DistributedDataParallel(model)
    loader = iter(DataLoader(data, batch_size=16, num_workers=args.workers))
    while done < args.max_steps:
        x, y = next(loader)
        data.start += len(x)
        loss = nn.functional.cross_entropy(ddp(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        done += 1
        if args.save_dir and done == args.stop:
            if rank == 0:
                torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(),
                            "dataset": data.state_dict(), "step": done}, path)
            return
    if rank == 0:
        print(f"{loss.item():.4f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--save-dir", default="")
    p.add_argument("--stop", type=int, default=0)
    p.add_argument("--resume", action="store_true")
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--max-steps", type=int, default=40)
    dist.init_process_group("gloo")
    train(p.parse_args())
    dist.destroy_process_group()
