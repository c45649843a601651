"""Trainer class with a config dataclass, callbacks and snapshots (as in the multi-GPU tutorial)."""
import argparse
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.distributed import DistributedSampler


@dataclass
class OptimConfig:
    lr: float = 0.05
    momentum: float = 0.9
    step_size: int = 2
    gamma: float = 0.3


@dataclass
class TrainConfig:
    max_epochs: int = 5
    save_every: int = 1
    batch_size: int = 16
    snapshot_path: str = ""
    stop_after: int = 0
    optim: OptimConfig = field(default_factory=OptimConfig)


class Spirals(Dataset):
    def __init__(self, n=480):
        g = torch.Generator().manual_seed(7)
        t = torch.rand(n, generator=g) * 6
        self.y = torch.arange(n) % 3
        a = t + self.y * 2.1
        self.x = torch.stack([t * a.cos(), t * a.sin()], 1) / 6 + 0.03 * torch.randn(n, 2, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Callback:
    def on_epoch_end(self, trainer, epoch): ...
    def on_batch_end(self, trainer, loss): ...


class Meter(Callback):
    def __init__(self):
        self.total, self.count, self.seen = 0.0, 0, []

    def on_batch_end(self, trainer, loss):
        self.total += loss.item()
        self.count += 1

    def on_epoch_end(self, trainer, epoch):
        t = torch.tensor([self.total, self.count])
        dist.all_reduce(t)
        if trainer.rank == 0:
            print(f"epoch {epoch} loss {t[0] / t[1]:.4f} lr {trainer.scheduler.get_last_lr()[0]:.4g}")
        self.total, self.count = 0.0, 0


class Validate(Callback):
    def on_epoch_end(self, trainer, epoch):
        trainer.model.eval()
        right = torch.zeros(1)
        with torch.no_grad():
            for x, y in trainer.val_loader:
                right += (trainer.model(x).argmax(1) == y).sum()
        dist.all_reduce(right)
        trainer.model.train()


class Trainer:
    def __init__(self, cfg, model, train_set, val_set, callbacks):
        self.cfg, self.rank, self.world = cfg, dist.get_rank(), dist.get_world_size()
        self.callbacks = callbacks
        self.sampler = DistributedSampler(train_set, shuffle=True, seed=3, drop_last=True)
        self.loader = DataLoader(train_set, batch_size=cfg.batch_size, sampler=self.sampler, drop_last=True)
        self.val_loader = DataLoader(val_set, batch_size=32, sampler=DistributedSampler(val_set, shuffle=False))
        self.epochs_run = 0
        raw = model
        self.model = DDP(raw)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg.optim.lr, momentum=cfg.optim.momentum)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, cfg.optim.step_size, cfg.optim.gamma)
        if cfg.snapshot_path and os.path.exists(cfg.snapshot_path):
            self._load_snapshot()

    def _load_snapshot(self):
        snap = torch.load(self.cfg.snapshot_path, map_location="cpu", weights_only=False)
        self.model.module.load_state_dict(snap["MODEL_STATE"])
        self.optimizer.load_state_dict(snap["OPTIMIZER"])
        self.scheduler.load_state_dict(snap["SCHEDULER"])
        self.epochs_run = snap["EPOCHS_RUN"]
        print(f"[rank {self.rank}] resuming at epoch {self.epochs_run}")

    def _save_snapshot(self, epoch):
        snap = {"MODEL_STATE": self.model.module.state_dict(), "OPTIMIZER": self.optimizer.state_dict(),
                "SCHEDULER": self.scheduler.state_dict(), "EPOCHS_RUN": epoch + 1}
        torch.save(snap, self.cfg.snapshot_path)

    def _run_batch(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        for c in self.callbacks:
            c.on_batch_end(self, loss)

    def _run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        for x, y in self.loader:
            self._run_batch(x, y)
        self.scheduler.step()

    def train(self):
        for epoch in range(self.epochs_run, self.cfg.max_epochs):
            self._run_epoch(epoch)
            for c in self.callbacks:
                c.on_epoch_end(self, epoch)
            if self.cfg.snapshot_path and self.rank == 0 and epoch % self.cfg.save_every == 0:
                self._save_snapshot(epoch)
            dist.barrier()
            if self.cfg.stop_after and epoch + 1 == self.cfg.stop_after:
                return


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--snapshot-path", default="")
    p.add_argument("--stop-after", type=int, default=0)
    args = p.parse_args()
    dist.init_process_group("gloo")
    cfg = TrainConfig(snapshot_path=args.snapshot_path, stop_after=args.stop_after)
    torch.manual_seed(42)
    full = Spirals()
    train_set, val_set = random_split(full, [384, 96], generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(2, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(),
                          nn.Linear(48, 3))
    Trainer(cfg, model, train_set, val_set, [Meter(), Validate()]).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
