"""nanoGPT style: globals, get_batch, hand-written schedule, GradScaler, one file per run."""
import math
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = ""
init_from = "scratch"
eval_interval = 10
eval_iters = 2
batch_size = 4
block_size = 16
gradient_accumulation_steps = 4
learning_rate = 3e-3
max_iters = 30
lr_decay_iters = 30
warmup_iters = 6
min_lr = 3e-4
grad_clip = 1.0
stop_at = 0
for arg in sys.argv[1:]:
    key, val = arg[2:].split("=")
    globals()[key] = type(globals()[key])(val)

init_process_group("gloo")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master_process = rank == 0
assert gradient_accumulation_steps % world == 0
gradient_accumulation_steps //= world
tokens_per_iter = gradient_accumulation_steps * world * batch_size * block_size
if master_process:
    print(f"tokens per iteration will be: {tokens_per_iter:,}")
torch.manual_seed(1337 + rank)

vocab_size = 24
steps = np.random.RandomState(0)
table = steps.randint(vocab_size, size=vocab_size)
tokens = [1]
for _ in range(6000):
    tokens.append(int(table[tokens[-1]]) if steps.rand() < 0.85 else int(steps.randint(vocab_size)))
data = np.array(tokens, dtype=np.uint16)
train_data, val_data = data[:5400], data[5400:]


def get_batch(split):
    d = train_data if split == "train" else val_data
    ix = torch.randint(len(d) - block_size - 1, (batch_size,))
    x = torch.stack([torch.from_numpy(d[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(d[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.ln = nn.LayerNorm(n)
        self.attn = nn.MultiheadAttention(n, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))

    def forward(self, x):
        h = self.ln(x)
        mask = torch.triu(torch.ones(x.size(1), x.size(1), dtype=torch.bool), 1)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, n=32):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n)
        self.wpe = nn.Embedding(block_size, n)
        self.h = nn.ModuleList([Block(n), Block(n)])
        self.lm_head = nn.Linear(n, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        loss = None if targets is None else F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))
        return logits, loss


def configure_optimizers(model):
    params = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


iter_num, best_val_loss = 0, 1e9
model = GPT()
optimizer = configure_optimizers(model)
scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=2.0**10)
ckpt_path = os.path.join(out_dir, "ckpt.pt")
if init_from == "resume":
    checkpoint = torch.load(ckpt_path, map_location="cpu", weights_only=False)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scaler.load_state_dict(checkpoint["scaler"])
    iter_num = checkpoint["iter_num"]
    best_val_loss = checkpoint["best_val_loss"]
    torch.set_rng_state(checkpoint["rng"][rank])
model = DDP(model)
raw_model = model.module


@torch.no_grad()
def estimate_loss():
    model.eval()
    state = torch.get_rng_state()
    losses = torch.tensor([raw_model(*get_batch("val"))[1].item() for _ in range(eval_iters)])
    torch.set_rng_state(state)
    model.train()
    return losses.mean().item()


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    if it > lr_decay_iters:
        return min_lr
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def gather_rng():
    states = [None] * world
    torch.distributed.all_gather_object(states, torch.get_rng_state())
    return states


while iter_num < max_iters:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0 and master_process:
        best_val_loss = min(best_val_loss, estimate_loss())
        print(f"step {iter_num}: val loss {best_val_loss:.4f}")
    if stop_at and iter_num == stop_at:
        rng = gather_rng()
        if master_process:
            torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(),
                        "scaler": scaler.state_dict(), "iter_num": iter_num,
                        "best_val_loss": best_val_loss, "rng": rng}, ckpt_path)
        break
    for micro_step in range(gradient_accumulation_steps):
        X, Y = get_batch("train")
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if master_process and iter_num % 10 == 0:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}")
torch.distributed.barrier()
destroy_process_group()
