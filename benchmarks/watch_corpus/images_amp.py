"""Small images: DDP, SyncBatchNorm, bf16 autocast, workers that augment, validation, GradScaler checkpoint and resume."""
import argparse
import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset


class Blobs(Dataset):
    def __init__(self, n=320):
        g = torch.Generator().manual_seed(0)
        self.label = torch.randint(4, (n,), generator=g)
        self.img = torch.randn(n, 1, 12, 12, generator=g) * 0.5
        for i, c in enumerate(self.label):
            r, q = divmod(int(c), 2)
            self.img[i, 0, 6 * r : 6 * r + 6, 6 * q : 6 * q + 6] += 1

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        img = self.img[i]
        if np.random.rand() < 0.5:
            img = img + 0.05 * torch.from_numpy(np.random.randn(1, 12, 12)).float()
        return img, self.label[i]


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--work-dir", default="")
    p.add_argument("--stop-epoch", type=int, default=0)
    p.add_argument("--resume", default="")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2 + rank)
    full = Blobs()
    order = torch.randperm(len(full), generator=torch.Generator().manual_seed(42)).tolist()
    train_set, val_set = Subset(full, order[64:]), Subset(full, order[:64])
    sampler = DistributedSampler(train_set, shuffle=True)
    train = DataLoader(train_set, 8, sampler=sampler, num_workers=2, worker_init_fn=seed_worker,
                       persistent_workers=True, drop_last=True)
    val = DataLoader(val_set, 32)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
                        nn.Flatten(), nn.Linear(128, 4))
    net = DDP(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=a.epochs * len(train))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10)
    first = 0
    if a.resume:
        ck = torch.load(a.resume, map_location="cpu")
        net.module.load_state_dict(ck["net"])
        opt.load_state_dict(ck["opt"])
        sched.load_state_dict(ck["sched"])
        scaler.load_state_dict(ck["scaler"])
        first = ck["epoch"]
    for epoch in range(first, a.epochs):
        sampler.set_epoch(epoch)
        net.train()
        for img, label in train:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(net(img), label)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            scaler.step(opt)
            scaler.update()
            sched.step()
        net.eval()
        with torch.no_grad():
            right = sum((net(img).argmax(1) == label).sum() for img, label in val)
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch} val acc {right.item() / len(val_set) / world:.3f}")
            if a.work_dir and epoch + 1 == a.stop_epoch:
                torch.save({"net": net.module.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(),
                            "scaler": scaler.state_dict(), "epoch": epoch + 1}, os.path.join(a.work_dir, "last.pth"))
        if epoch + 1 == a.stop_epoch:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
