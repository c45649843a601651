"""Synthetic text whose entropy rate is known, its dataset, the distributed sampler and the loader."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ddaudit.training.params import Geometry, TrainParams

__all__ = ["IGNORED", "Feed", "MarkovSource", "MicroBatch", "ShardedSampler", "TextDataset", "Window"]

IGNORED = -100
"""Target of a padded position, as ``cross_entropy`` ignores it by default."""


class MarkovSource:
    """A first-order Markov chain over ``vocab`` symbols with a closed-form entropy rate.

    Symbol x is followed by ``base[(x + offset_j) % vocab]`` with probability ``p_j``; the successors of a symbol are
    distinct, so every row of the transition matrix has entropy H(p), and H(p) is the entropy rate whatever the
    stationary distribution (Cover & Thomas, Elements of Information Theory, theorem 4.2.4). The matrix is doubly
    stochastic: the uniform distribution, from which first symbols are drawn, is stationary.
    """

    PROBABILITIES = (0.5, 0.25, 0.125, 0.125)

    def __init__(self, vocab: int, seed: int) -> None:
        rng = np.random.Generator(np.random.Philox(key=seed))
        self.vocab = vocab
        self.base: list[int] = rng.permutation(vocab).tolist()
        self.offsets: list[int] = rng.choice(vocab, size=len(self.PROBABILITIES), replace=False).tolist()

    @property
    def entropy_nats(self) -> float:
        """Entropy rate in nats per symbol."""
        return -sum(p * math.log(p) for p in self.PROBABILITIES)

    def draw(self, rng: np.random.Generator, length: int) -> list[int]:
        """Draws ``length`` consecutive symbols."""
        symbol = int(rng.integers(self.vocab))
        choices = rng.choice(len(self.PROBABILITIES), size=length - 1, p=self.PROBABILITIES)
        symbols = [symbol]
        for offset in np.asarray(self.offsets)[choices].tolist():
            symbol = self.base[(symbol + offset) % self.vocab]
            symbols.append(symbol)
        return symbols


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one forward pass: ids [batch], inputs and targets [batch, seq]. ``tokens`` counts the targets that
    are not ignored; it is taken on the CPU, where counting does not stall a device."""

    ids: Tensor
    inputs: Tensor
    targets: Tensor
    tokens: int

    def to(self, device: torch.device) -> MicroBatch:
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


@dataclass(frozen=True)
class Window:
    """The micro-batches of one update on one replica, in order, and the epoch they were drawn in."""

    micro_batches: tuple[MicroBatch, ...]
    epoch: int

    @property
    def tokens(self) -> int:
        return sum(m.tokens for m in self.micro_batches)

    @property
    def sample_ids(self) -> list[int]:
        return [int(i) for m in self.micro_batches for i in m.ids]


class TextDataset(Dataset[tuple[int, Tensor]]):
    """Sample i depends on (seed, i) alone: any worker of any rank draws the same one. A ragged dataset pads samples of
    uneven length, between a quarter and all of ``seq_len`` targets."""

    def __init__(self, source: MarkovSource, seed: int, samples: int, seq_len: int, ragged: bool) -> None:
        self.source, self.seed, self.samples, self.seq_len, self.ragged = source, seed, samples, seq_len, ragged

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        """(index, symbols [seq_len + 1] with -100 where padded)."""
        rng = np.random.Generator(np.random.Philox(key=[self.seed, index]))
        symbols = torch.tensor(self.source.draw(rng, self.seq_len + 1))
        if self.ragged:
            symbols[int(rng.integers(self.seq_len // 4, self.seq_len + 1)) + 1 :] = IGNORED
        return index, symbols


def collate(items: list[tuple[int, Tensor]]) -> MicroBatch:
    """Inputs are symbols 0..seq-1, targets symbols 1..seq. Padded inputs read symbol 0: attention is causal, so no
    counted target sees them."""
    symbols = torch.stack([s for _, s in items])
    targets = symbols[:, 1:].contiguous()
    ids = torch.tensor([i for i, _ in items])
    return MicroBatch(ids, symbols[:, :-1].clamp(min=0), targets, int((targets != IGNORED).sum()))


class ShardedSampler(Sampler[list[int]]):
    """Yields the micro-batches of one replica, epoch after epoch, like ``DistributedSampler`` in a ``BatchSampler``.

    Every replica draws the same permutation from (seed, epoch) and takes every dp-th index, so update u of an epoch
    reads indices [u * global_batch, (u + 1) * global_batch) of it under every layout. An epoch is a whole number of
    global batches: the tail is dropped, or filled from the epoch's start when ``drop_last`` is False.

    ``position`` counts the samples of the current epoch that all replicas together have *trained on*: the loop
    advances it after each update. (Counting while iterating would count what loader workers merely prefetched.)
    """

    def __init__(self, params: TrainParams, layout: Geometry, dp_rank: int) -> None:
        self.samples, self.seed, self.drop_last = params.dataset_samples, params.seed, params.drop_last
        self.dp, self.micro_batch, self.dp_rank = layout.dp, layout.micro_batch, dp_rank
        self.global_batch = params.global_batch
        self.epoch = 0
        self.position = 0

    @property
    def epoch_samples(self) -> int:
        """Samples of one epoch over all replicas."""
        whole, rest = divmod(self.samples, self.global_batch)
        return (whole if self.drop_last or not rest else whole + 1) * self.global_batch

    def order(self, epoch: int) -> list[int]:
        """The epoch's permutation, cut or filled to whole global batches."""
        generator = torch.Generator().manual_seed(self.seed + 7919 * (epoch + 1))
        order: list[int] = torch.randperm(self.samples, generator=generator).tolist()
        return (order + order)[: self.epoch_samples]

    def __iter__(self) -> Iterator[list[int]]:
        mine = self.order(self.epoch)[self.position :][self.dp_rank :: self.dp]
        for start in range(0, len(mine), self.micro_batch):
            yield mine[start : start + self.micro_batch]

    def advance(self, samples: int) -> None:
        """Notes that one update trained on ``samples`` more; moves to the next epoch at the end of this one."""
        self.position += samples
        if self.position >= self.epoch_samples:
            self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position, self.seed = state["epoch"], state["position"], state["seed"]


class Feed:
    """Windows of micro-batches for one replica, on its device."""

    def __init__(self, params: TrainParams, layout: Geometry, dp_rank: int, dataset: TextDataset) -> None:
        self.sampler = ShardedSampler(params, layout, dp_rank)
        self.accumulation = layout.accumulation
        self.global_batch = params.global_batch
        # A generator of its own: an iterator that starts in the middle of a run must not disturb dropout.
        self.loader: DataLoader[tuple[int, Tensor]] = DataLoader(
            dataset,
            batch_sampler=self.sampler,
            num_workers=params.num_workers,
            collate_fn=collate,
            # Whatever a rank was started by: a dataset need not be picklable, and workers share its memory.
            multiprocessing_context="fork" if params.num_workers else None,
            generator=torch.Generator().manual_seed(params.seed),
        )
        self._iterator: Iterator[MicroBatch] | None = None

    def window(self, device: torch.device) -> Window:
        """The next update's micro-batches. Blocks on the loader, then copies to the device."""
        if self._iterator is None:
            self._iterator = iter(self.loader)
        epoch = self.sampler.epoch
        micro_batches = tuple(next(self._iterator).to(device) for _ in range(self.accumulation))
        return Window(micro_batches, epoch)

    def workers(self) -> list[int]:
        """Process ids of the loader's workers; none before the first window, and none without workers."""
        return [w.pid for w in getattr(self._iterator, "_workers", ()) if w.pid is not None and w.is_alive()]

    def advance(self) -> None:
        """Marks the last window as trained; a new epoch starts a new pass over the loader."""
        epoch = self.sampler.epoch
        self.sampler.advance(self.global_batch)
        if self.sampler.epoch != epoch:
            self._iterator = None
