"""One device's model, batch and passes, for probes that time or count them without a training around."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ddaudit.context import ProbeContext
from ddaudit.device import device_of, synchronize
from ddaudit.training.data import Feed, MarkovSource, TextDataset, Window
from ddaudit.training.model import ModelShape, Transformer, shape_of, token_loss
from ddaudit.training.params import TrainParams, geometry

__all__ = ["ModelStep", "median_s"]


def median_s(device: torch.device, act: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call after one that warms up; the device is waited for in each."""
    took = []
    for turn in range(repeats + 1):
        begin = time.perf_counter()
        act()
        synchronize(device)
        if turn:
            took.append(time.perf_counter() - begin)
    return statistics.median(took)


@dataclass
class ModelStep:
    """The reference model of ``params`` on this rank's device, with its own feed of data."""

    params: TrainParams
    device: torch.device
    shape: ModelShape
    model: Transformer
    source: MarkovSource
    feed: Feed

    @classmethod
    def of(cls, context: ProbeContext, params: TrainParams) -> ModelStep:
        device, shape = device_of(context.device, context.local_rank), shape_of(params)
        source = MarkovSource(shape.vocab, params.seed)
        data = TextDataset(source, params.seed, params.dataset_samples, shape.seq_len, params.ragged)
        feed = Feed(params, geometry(params, 1), 0, data)
        return cls(params, device, shape, Transformer.seeded(params, device), source, feed)

    def window(self) -> Window:
        return self.feed.window(self.device)

    def loss(self, samples: int) -> Tensor:
        """Mean loss over a micro-batch of uniform symbols; time and memory do not depend on their values."""
        ids = torch.zeros(samples, self.shape.seq_len, dtype=torch.long, device=self.device)
        return token_loss(self.model(ids), ids) / ids.numel()

    def passes(self, samples: int) -> None:
        """Forward and backward over a micro-batch; gradients are dropped."""
        self.loss(samples).backward()  # type: ignore[no-untyped-call]
        self.model.zero_grad(set_to_none=True)
