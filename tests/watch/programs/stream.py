"""A stream that is shared out over ranks and loader workers, in its own order every epoch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import mlp, start, task
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

rank, world = start()


class Stream(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        worker = get_worker_info()
        part, parts = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for i in range(rank * parts + part, len(self.data), world * parts):
            yield self.data[i]


net = DDP(mlp())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
batches = DataLoader(Stream(task()), 8, num_workers=1, multiprocessing_context="fork", persistent_workers=True)
for _ in range(2):
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
dist.barrier()
