"""Data parallelism: every rank holds the whole model and reads its own samples; gradients are averaged.

``g = (1/N) sum_i g_i``. DistributedDataParallel packs gradients into buckets and reduces a bucket as soon as its last
gradient is ready, while the backward pass goes on.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddaudit.training.model import Transformer
from ddaudit.training.optimizer import optimizer_class
from ddaudit.training.parallel.contract import Parallel

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

__all__ = ["DataParallel", "ZeroOne"]


class DataParallel(Parallel):
    """DistributedDataParallel with a communication hook that averages a bucket and counts it."""

    syncs_needed = 1.0
    implementation = "torch.nn.parallel.DistributedDataParallel"

    def build(self, model: Transformer) -> None:
        self.data_group = self.loss_group = self.place.group("dp")
        self.model = model
        on_gpu = [self.place.device] if self.place.device.type == "cuda" else None
        self.ddp = self.module = DistributedDataParallel(
            model,
            device_ids=on_gpu,
            process_group=self.data_group,
            find_unused_parameters=self.params.find_unused,
        )
        self.ledger.parameters = len(self.named_parameters())
        # DDP checks the hook's signature: the second parameter must be called "bucket", and an annotation that is a
        # string (as in this file) is refused; a lambda has none.
        self.ddp.register_comm_hook(None, lambda state, bucket: self.reduce_bucket(bucket))

    def reduce_bucket(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Averages one bucket of gradients while the backward pass goes on."""
        own = bucket.buffer().detach().square().sum()
        self.local_square = own if self.local_square is None else self.local_square + own
        buffer = bucket.buffer().div_(self.average_over)
        self.ledger.count(buffer, len(bucket.parameters()))
        launched = self.ledger.launched()
        work = dist.all_reduce(buffer, group=self.data_group, async_op=True)
        assert work is not None
        reduced: torch.futures.Future[Tensor] = work.get_future().then(lambda done: self._reduced(done, launched))
        return reduced

    def _reduced(self, done: torch.futures.Future[list[Tensor]], launched: float) -> Tensor:
        self.ledger.finished(launched)
        return done.value()[0]

    def synchronising(self, last: bool) -> AbstractContextManager[None]:
        # Without no_sync every micro-batch would pay for an all-reduce of which only the last is needed.
        return nullcontext() if last else self.ddp.no_sync()

    def alone(self, last: bool) -> AbstractContextManager[None]:
        return self.ddp.no_sync()


class ZeroOne(DataParallel):
    """ZeRO stage 1: gradients as in data parallelism, optimizer state split by parameter over the ranks; each rank
    updates its parameters and broadcasts them."""

    implementation = "torch.distributed.optim.ZeroRedundancyOptimizer"

    def optimizer(self) -> Optimizer:
        kind, options = optimizer_class(self.params)
        weights = list(self.named_parameters().values())
        optimizer: Any = ZeroRedundancyOptimizer(weights, kind, self.data_group, **options)
        broadcast = optimizer._sync_params  # no hook tells when the updated parameters are broadcast

        def timed_broadcast() -> None:
            with self.ledger.waiting(self.data_group):
                broadcast()

        optimizer._sync_params = timed_broadcast
        assert isinstance(optimizer, Optimizer)
        return optimizer

    def inner_optimizer(self, optimizer: Optimizer) -> Optimizer:
        assert isinstance(optimizer, ZeroRedundancyOptimizer)
        inner: Optimizer = optimizer.optim
        return inner
