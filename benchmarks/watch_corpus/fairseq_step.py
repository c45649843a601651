"""fairseq style: Trainer.train_step over a list of samples, gradients all-reduced by hand, normalised by tokens."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

PAD = 0


def make_corpus(n, vocab=30):
    g = torch.Generator().manual_seed(2)
    nxt = torch.randint(1, vocab, (vocab,), generator=g)
    out = []
    for _ in range(n):
        length = int(torch.randint(5, 20, (1,), generator=g))
        s = [int(torch.randint(1, vocab, (1,), generator=g))]
        while len(s) < length:
            s.append(int(nxt[s[-1]]))
        out.append(torch.tensor(s))
    return out


class EpochBatchIterator:
    """Shuffles with seed + epoch, shards over ranks, groups batches by update_freq."""

    def __init__(self, dataset, max_sentences, seed, num_shards, shard_id, update_freq):
        self.dataset, self.max_sentences, self.seed = dataset, max_sentences, seed
        self.num_shards, self.shard_id, self.update_freq = num_shards, shard_id, update_freq

    def next_epoch_itr(self, epoch):
        g = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(len(self.dataset), generator=g).tolist()
        batches = [order[i : i + self.max_sentences] for i in range(0, len(order), self.max_sentences)]
        batches = batches[self.shard_id :: self.num_shards]
        samples = [self.collate(b) for b in batches]
        whole = len(samples) // self.update_freq * self.update_freq
        for i in range(0, whole, self.update_freq):
            yield samples[i : i + self.update_freq]

    def collate(self, ids):
        rows = pad_sequence([self.dataset[i] for i in ids], batch_first=True, padding_value=PAD)
        return {"net_input": {"src": rows[:, :-1]}, "target": rows[:, 1:], "ntokens": int((rows[:, 1:] != PAD).sum())}


class Model(nn.Module):
    def __init__(self, vocab=30, dim=40):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.proj = nn.Linear(dim, vocab)

    def forward(self, src):
        return self.proj(self.encoder(self.embed(src))[0])


class InverseSquareRoot:
    def __init__(self, optimizer, lr, warmup_updates):
        self.optimizer, self.lr, self.warmup_updates = optimizer, lr, warmup_updates
        self.step_update(0)

    def step_update(self, num_updates):
        n = max(1, num_updates)
        lr = self.lr * min(n / self.warmup_updates, (self.warmup_updates / n) ** 0.5)
        for group in self.optimizer.param_groups:
            group["lr"] = lr


class Trainer:
    def __init__(self, args, model):
        self.args, self.model = args, model
        self.world = dist.get_world_size()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
        self.scheduler = InverseSquareRoot(self.optimizer, args.lr, args.warmup_updates)
        self.num_updates = 0

    def train_step(self, samples):
        self.model.train()
        self.optimizer.zero_grad()
        sample_size, total = 0, 0.0
        for sample in samples:
            logits = self.model(**sample["net_input"])
            loss = F.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), ignore_index=PAD, reduction="sum")
            loss.backward()
            sample_size += sample["ntokens"]
            total += loss.item()
        stats = torch.tensor([float(sample_size), total], dtype=torch.float64)
        dist.all_reduce(stats)
        self.reduce_grads()
        self.multiply_grads(1.0 / float(stats[0]))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip_norm)
        self.optimizer.step()
        self.set_num_updates(self.num_updates + 1)
        return float(stats[1] / stats[0]), float(norm)

    def reduce_grads(self):
        for p in self.model.parameters():
            dist.all_reduce(p.grad)

    def multiply_grads(self, factor):
        for p in self.model.parameters():
            p.grad.mul_(factor)

    def set_num_updates(self, num_updates):
        self.num_updates = num_updates
        self.scheduler.step_update(num_updates)


def cli_main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-sentences", type=int, default=8)
    parser.add_argument("--update-freq", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--warmup-updates", type=int, default=6)
    parser.add_argument("--clip-norm", type=float, default=0.3)
    parser.add_argument("--max-epoch", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    itr = EpochBatchIterator(make_corpus(576), args.max_sentences, 1, world, rank, args.update_freq)
    trainer = Trainer(args, Model())
    for epoch in range(1, args.max_epoch + 1):
        for samples in itr.next_epoch_itr(epoch):
            loss, gnorm = trainer.train_step(samples)
        if rank == 0:
            print(f"| epoch {epoch:03d} | loss {loss:.3f} | gnorm {gnorm:.3f} | num_updates {trainer.num_updates}")


if __name__ == "__main__":
    cli_main()
