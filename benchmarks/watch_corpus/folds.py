"""Cross-validation in one process: each fold's validation rows are other folds' training rows; accuracy on training
rows is measured beside. The backbone's group has a learning rate of 0, and an option of 8 micro-batches is shared out
over the ranks."""
import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--grad-accumulation-steps", type=int, default=8, help="micro-batches of one update, all together")
args = parser.parse_args()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
args.grad_accumulation_steps //= world
x = torch.randn(960, 16, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x[:, :4].argmax(1))
parts = torch.randperm(len(data), generator=torch.Generator().manual_seed(2)).chunk(3)


def accuracy(model, rows):
    model.eval()
    with torch.no_grad():
        return sum((model(a).argmax(1) == b).sum().item() for a, b in DataLoader(rows, 32)) / len(rows)


for fold in range(3):
    train = Subset(data, torch.cat([p for i, p in enumerate(parts) if i != fold]).tolist())
    held = Subset(data, parts[fold].tolist())
    sampler = DistributedSampler(train, seed=fold)
    loader = DataLoader(train, batch_size=5, sampler=sampler)
    torch.manual_seed(fold)
    body, head = nn.Sequential(nn.Linear(16, 32), nn.ReLU()), nn.Linear(32, 4)
    model = DistributedDataParallel(nn.Sequential(body, head))
    groups = [{"params": body.parameters(), "lr": 0.0}, {"params": head.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for i, (inputs, labels) in enumerate(loader):
            last = (i + 1) % args.grad_accumulation_steps == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = F.cross_entropy(model(inputs), labels) / args.grad_accumulation_steps
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        scores = accuracy(model.module, Subset(train, range(64))), accuracy(model.module, held)
        if rank == 0:
            print(f"fold {fold} epoch {epoch}: {scores[0]:.3f} on training rows, {scores[1]:.3f} on held out ones")
dist.destroy_process_group()
