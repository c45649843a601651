"""One small training script with switches, from which the plants of watched scripts are built.

The fault named by ``FAULT`` is written into the script's text, so the twin is the same program without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SCRIPT = '''"""Trains a small model on two ranks."""
import argparse, math, os, random, time
from datetime import timedelta
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

FAULT = {fault!r}
O = dict({options!r})
A, STEPS, BATCH = O.get("accum", 1), 24, 8
if O.get("beside") and FAULT != "bigger":
    BATCH = 16 // int(os.environ.get("WORLD_SIZE", "1"))


class Rows(Dataset):
    def __init__(self, n, shift=0):
        g = torch.Generator().manual_seed(5 + shift)
        self.x = torch.randn(n, 12, generator=g)
        self.y = (self.x @ torch.randn(12, 4, generator=torch.Generator().manual_seed(1))).argmax(1)
        self.ragged = O.get("ragged")
        self.rng = random.Random(3)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if FAULT == "slow-input":
            time.sleep(0.006)
        x, y = self.x[i], self.y[i]
        if O.get("workers") and not O.get("short"):
            x = x + 0.1 * (self.rng.random() if FAULT == "worker-seed" else torch.rand(()).item())
        if self.ragged:
            y = torch.where(torch.arange(6) < 1 + i % 6, y, -100)
        return x, y


def build():
    norm = [nn.BatchNorm1d(16)] if O.get("norm") else []
    drop = [nn.Dropout(0.2)] if O.get("dropout") else []
    return nn.Sequential(nn.Linear(12, 16), *norm, nn.Tanh(), *drop, nn.Linear(16, 4))


def loss_of(out, y):
    if not O.get("ragged"):
        return F.cross_entropy(out, y)
    keep = y != -100
    each = F.cross_entropy(out[:, None].expand(-1, 6, -1)[keep], y[keep], reduction="none")
    return each.mean() if FAULT == "mean-of-means" else each.sum() / WINDOW_TARGETS[0] * A


WINDOW_TARGETS = [1.0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=BATCH * 2,
                        help="total over all processes" if O.get("claim") else "rows")
    parser.add_argument("--warmup-steps", type=int, default=6)
    args = parser.parse_args([])
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank if FAULT == "init-differs" else 0)
    data = Rows(STEPS // 3 * BATCH * world * A + (BATCH * world * 2 if O.get("odd") else 0))
    held = None
    if O.get("split"):
        g = torch.Generator().manual_seed(rank if FAULT == "split" else 9)
        order = torch.randperm(len(data), generator=g).tolist()
        cut = len(data) // 4
        data, held = Subset(data, order[: -cut or None]), Subset(data, order[:cut] if FAULT == "leak" else order[-cut:])
    if FAULT == "double-sharded":
        data.x, data.y = data.x[rank::world], data.y[rank::world]
    batch = args.batch_size if FAULT == "batch-per-rank" else BATCH
    replicas = {{"too-many-replicas": 4, "alone": 1}}.get(FAULT, world)
    sampler = DistributedSampler(data, replicas, 0 if FAULT in ("no-sharding", "alone") else rank,
                                 seed=rank if FAULT == "sampler-seed" else 0)
    workers = O.get("workers", 0)
    loader = DataLoader(data, batch, sampler=sampler, drop_last=True, num_workers=workers,
                        persistent_workers=bool(workers) and FAULT != "respawn",
                        multiprocessing_context="fork" if workers else None)
    model = build()
    if FAULT == "unfreeze":
        model[0].requires_grad_(False)
    manual = O.get("wrap") == "manual"
    if O.get("sharded"):
        manual = True
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    net = model if manual else DDP(model, broadcast_buffers=not O.get("norm") or FAULT != "buffers")
    if FAULT == "unfreeze":
        model[0].requires_grad_(True)
    if FAULT == "hooks-lost":
        for module in (model[0], model[-1]):
            module.weight = nn.Parameter(module.weight.detach().clone())
            module.bias = nn.Parameter(module.bias.detach().clone())
    peak = {{"no-op": 1e-30, "diverge": 900.0, "nan": 0.05}}.get(FAULT, 0.05)
    if O.get("claim"):
        base_lr, base_batch = 0.025, BATCH
        peak = base_lr * (BATCH if FAULT == "lr-unscaled" else BATCH * world) / base_batch
    opt = torch.optim.SGD(net.parameters(), lr=peak, momentum=0.0 if FAULT in ("no-op", "diverge") else 0.9)
    if FAULT == "stale":
        model[-1] = nn.Linear(16, 4)
    total = STEPS // 2 if FAULT == "short-schedule" else STEPS
    def shape(s):
        up = 1.0 if FAULT == "no-warmup" else min(1.0, (s + 1) / args.warmup_steps)
        return up * 0.5 * (1 + math.cos(math.pi * min(1.0, s / total)))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, shape)
    scaler = torch.amp.GradScaler("cpu", enabled=bool(O.get("scaler")), init_scale=256.0)
    torch.manual_seed(0 if FAULT in ("same-seed", "alone") else 100 + rank)
    global_step, kept, path = 0, [], os.path.join(os.path.dirname(os.path.abspath(__file__)), "last.pt")
    start, skip = 0, 0
    if O.get("resume"):
        start, skip = resume(path, model, opt, sched)
        global_step = start
    for epoch in range(3 if not O.get("short") else 5):
        if epoch * (STEPS // 3) + STEPS // 3 <= start:
            continue
        if FAULT != "no-set-epoch":
            sampler.set_epoch(epoch)
        rows = loader
        window = []
        for i, (x, y) in enumerate(rows):
            if skip > 0:
                skip -= 1
                continue
            if O.get("short") and i >= 3:
                break
            window.append((x, y))
            if O.get("ragged") and len(window) < A:
                continue
            if O.get("ragged"):
                WINDOW_TARGETS[0] = float(sum((b != -100).sum() for _, b in window))
            else:
                window = [(x, y)]
            for j, (x, y) in enumerate(window):
                k = j if O.get("ragged") else i
                take = A - 1 if FAULT == "accum-differs" and rank else A
                boundary = (k + 1) % take == 0
                first = k % A == 0
                if not manual:
                    net.require_backward_grad_sync = {{"sync-last": first, "sync-all": True}}.get(FAULT, boundary)
                call = model if FAULT == "bypass" else net
                loss = loss_of(call(x), y)
                if FAULT == "nan" and global_step == 8:
                    loss = loss * float("nan")
                if FAULT == "vanish":
                    loss = loss * 1e-20
                if FAULT == "retain":
                    kept.append(loss)
                if FAULT not in ("undivided",):
                    loss = loss / A
                if FAULT == "divided-twice":
                    loss = loss / A
                scaler.scale(loss).backward()
                if FAULT == "tick-micro":
                    sched.step()
                if FAULT == "count-micro":
                    global_step += 1
                if not boundary:
                    continue
                reduce(model, manual, world, rank)
                if FAULT == "averaged-twice":
                    for p in model.parameters():
                        p.grad /= world
                if O.get("scaler"):
                    if FAULT != "clip-early":
                        scaler.unscale_(opt)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                late = FAULT == "host-work" and rank == 0 and global_step % 4 == 3
                if (FAULT == "straggler" and rank == 1) or late:
                    time.sleep(0.12 if FAULT == "straggler" else 0.6)
                if FAULT == "damped" and world > 1:
                    for p in model.parameters():
                        p.grad *= 0.02
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
                if FAULT == "drift" and rank:
                    with torch.no_grad():
                        model[0].bias.add_(1e-4)
                if FAULT != "tick-micro":
                    sched.step()
                if FAULT != "count-micro":
                    global_step += 1
                if O.get("resume") and not start and global_step == 11:
                    save(path, model, opt, sched, global_step)
                    return
            window = []
            if FAULT == "uneven" and rank and epoch == 2 and i == 4:
                return
        if not O.get("odd") or FAULT != "leftover":
            opt.zero_grad()
        if held is not None:
            with torch.no_grad():
                for x, y in DataLoader(held, 8):
                    net(x)
    if O.get("sharded") and (rank == 0 or FAULT != "shards"):
        torch.save({{"model": model.state_dict(), "optimizer": opt.state_dict()}}, f"{{path}}.{{rank}}")
    print("done", flush=True)


def reduce(model, manual, world, rank):
    if not manual or O.get("sharded") or FAULT == "alone":
        return
    if FAULT == "clip-local":
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    for p in model.parameters():
        dist.all_reduce(p.grad, async_op=True).wait(timedelta(seconds=4))
        if FAULT != "summed":
            p.grad /= world


def save(path, model, opt, sched, step):
    if dist.get_rank() == 0:
        state = {{"model": model.state_dict(), "step": step, "batches": step % 8}}
        if FAULT != "no-optimizer":
            state["optimizer"] = opt.state_dict()
        if FAULT != "lr-reset":
            state["scheduler"] = sched.state_dict()
        torch.save(state, path)
    dist.barrier()


def resume(path, model, opt, sched):
    if not os.path.exists(path):
        return 0, 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    if FAULT != "no-optimizer":
        opt.load_state_dict(state["optimizer"])
    if FAULT != "lr-reset":
        sched.load_state_dict(state["scheduler"])
    elif "optimizer" in state:
        for group in opt.param_groups:
            group["lr"] = 0.05 / 6
    return state["step"], 0 if FAULT == "repeat-data" else state["batches"]


main()
'''


def builder(fault: str, options: Mapping[str, Any]) -> Callable[[Path, bool], Mapping[str, Any]]:
    """A plant's ``build``: writes the script with its fault, or without, and gives the probe's parameters.

    Its name tells programs apart by their options, so that plants on one program share one healthy run.
    """
    chosen = dict(options)

    def build(folder: Path, planted: bool) -> Mapping[str, Any]:
        path = folder / "train.py"
        path.write_text(SCRIPT.format(fault=fault if planted else "", options=chosen), encoding="utf-8")
        return {"script": str(path), "twice": bool(chosen.get("resume") or chosen.get("beside"))}

    build.__qualname__ = f"script{sorted(chosen.items())}"
    return build
