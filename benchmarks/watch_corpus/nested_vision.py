"""Nested settings with overrides, as Hydra has them; functional loop, batch norm, workers that augment, SequentialLR."""
import json
import random
import sys
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

CONFIG = {
    "seed": 0,
    "epochs": 3,
    "data": {"size": 384, "val": 96, "batch_size": 8, "num_workers": 2},
    "optim": {"lr": 0.08, "momentum": 0.9, "weight_decay": 1.0e-4, "warmup_steps": 6},
}


def load(cfg, overrides):
    for item in overrides:
        key, value = item.split("=")
        *path, last = key.split(".")
        node = cfg
        for part in path:
            node = node[part]
        node[last] = json.loads(value)
    return SimpleNamespace(**{k: SimpleNamespace(**v) if isinstance(v, dict) else v for k, v in cfg.items()})


class Shapes(Dataset):
    def __init__(self, n):
        rng = np.random.RandomState(1)
        self.labels = rng.randint(3, size=n)
        self.images = rng.randn(n, 1, 10, 10).astype(np.float32) * 0.4
        self.transform = augment
        for i, c in enumerate(self.labels):
            self.images[i, 0, 3 * c : 3 * c + 3] += 1.0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.images[index]), int(self.labels[index])


def augment(image):
    image = image[..., ::-1].copy() if random.random() < 0.5 else image
    shift = int(torch.randint(0, 2, (1,)))
    return torch.from_numpy(np.roll(image, shift, axis=-1).copy())


def make_net():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
                         nn.Dropout(0.1), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 3))


def run(cfg):
    rank, world = dist.get_rank(), dist.get_world_size()
    random.seed(cfg.seed + rank)
    np.random.seed(cfg.seed + rank)
    torch.manual_seed(cfg.seed + rank)
    dataset = Shapes(cfg.data.size + cfg.data.val)
    order = np.random.RandomState(cfg.seed).permutation(len(dataset)).tolist()
    train_set, val_set = Subset(dataset, order[cfg.data.val :]), Subset(dataset, order[: cfg.data.val])
    sampler = DistributedSampler(train_set, num_replicas=world, rank=rank, shuffle=True, drop_last=True)
    train_loader = DataLoader(train_set, cfg.data.batch_size, sampler=sampler, num_workers=cfg.data.num_workers,
                              drop_last=True)
    val_loader = DataLoader(val_set, 32, shuffle=False)
    net = make_net()
    ddp = DistributedDataParallel(net)
    optimizer = optim.SGD(ddp.parameters(), lr=cfg.optim.lr, momentum=cfg.optim.momentum,
                          weight_decay=cfg.optim.weight_decay)
    total = cfg.epochs * len(train_loader)
    warm = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=cfg.optim.warmup_steps)
    cosine = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - cfg.optim.warmup_steps)
    schedule = optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[cfg.optim.warmup_steps])
    shadow = {k: v.clone() for k, v in net.state_dict().items() if v.is_floating_point()}
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        ddp.train()
        for images, labels in train_loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(ddp(images), labels, label_smoothing=0.05)
            loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                for k, v in net.state_dict().items():
                    if k in shadow:
                        shadow[k].mul_(0.9).add_(v, alpha=0.1)
        evaluate(ddp, net, val_loader, rank, epoch)


@torch.no_grad()
def evaluate(ddp, net, loader, rank, epoch):
    net.eval()
    right = sum(int((net(x).argmax(1) == y).sum()) for x, y in loader)
    if rank == 0:
        print(f"epoch {epoch}: {right} right", flush=True)
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(load(CONFIG, sys.argv[1:]))
    dist.destroy_process_group()
