"""What every kind of parallelism does, and the defaults that fit one device.

A kind takes the full, seeded model, keeps or wraps its part of it, and turns a window of micro-batches into the
gradient of the token-weighted mean loss over the *global* batch. Everything above it (loop, checkpoint, records) is
the same for all kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ddaudit.device import Stopwatch
from ddaudit.training import optimizer as optimizers
from ddaudit.training.data import MicroBatch, Window
from ddaudit.training.ledger import SyncLedger
from ddaudit.training.model import Transformer, token_loss
from ddaudit.training.params import Geometry, TrainParams

__all__ = ["Parallel", "Place"]


@dataclass(frozen=True)
class Place:
    """Where a rank stands. ``coords`` maps every mesh axis, and "dp", to this rank's index on it; ``mesh`` is None
    for a run without a process group."""

    rank: int
    world_size: int
    device: torch.device
    layout: Geometry
    coords: Mapping[str, int]
    mesh: DeviceMesh | None

    def group(self, axis: str) -> dist.ProcessGroup:
        """Process group of this rank along a mesh axis."""
        assert self.mesh is not None
        return self.mesh.get_group(axis)


class Parallel:
    """One kind of parallelism on one rank.

    Attributes:
        syncs_needed: rounds of gradient synchronisation that the kind needs per update (see :meth:`sync_ranks`).
        implementation: which code does the work, where several could.
        data_group: ranks that read different samples, or None.
        loss_group: ranks whose summed losses add up to the global batch's, or None.
        average_over: what summed gradients are divided by, N.
        local_square: squared norm of this rank's gradient before it was averaged, where the kind sees it.
        divisors: what each micro-batch's mean loss was divided by in this update, for the record.
        model: this rank's part, with single-device parameter names. Set by :meth:`build`.
        module: what is called for a forward pass (``model``, or a wrapper of it).
    """

    syncs_needed = 0.0
    implementation = "torch"

    def __init__(self, params: TrainParams, place: Place, watch: Stopwatch) -> None:
        self.params, self.place, self.watch = params, place, watch
        self.ledger = SyncLedger(place.device)
        self.data_group: dist.ProcessGroup | None = None
        self.loss_group: dist.ProcessGroup | None = None
        self.average_over = place.layout.dp
        self.divisors: list[float] = []
        self.local_square: Tensor | None = None

    def build(self, model: Transformer) -> None:
        """Keeps or wraps this rank's part of the full model."""
        self.model: nn.Module = model
        self.module: nn.Module = model

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """This rank's parameters by their single-device names."""
        return dict(self.model.named_parameters())

    def replicated(self) -> list[str]:
        """Names of parameters that every rank holds whole and equal."""
        return list(self.named_parameters())

    def sync_ranks(self) -> int:
        """Ranks over which gradients are reduced; with one there is nothing to synchronise."""
        return self.place.layout.dp

    def synchronised(self) -> list[str]:
        """Names of parameters whose gradients must be reduced over ranks."""
        return list(self.named_parameters())

    def optimizer(self) -> Optimizer:
        """The optimizer over this rank's parameters."""
        return optimizers.build(self.params, self.named_parameters().values())

    def inner_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """The optimizer that holds the state which lives on this rank."""
        return optimizer

    def accumulate(self, window: Window) -> Tensor:
        """Forward and backward over the window; gradients end up in ``.grad``, synchronised at the last micro-batch
        where the kind overlaps that with the backward pass.

        Returns: the sum of this rank's token losses, in nats.
        """
        share = self.share(window)
        total = torch.zeros((), device=self.place.device)
        last = len(window.micro_batches) - 1
        for index, micro in enumerate(window.micro_batches):
            with self.synchronising(index == last):
                with self.watch.span("forward_s"):
                    loss = self.loss(micro)
                with self.watch.span("backward_s"):
                    (loss / self.divisor(micro, share)).backward()  # type: ignore[no-untyped-call]
                self.ledger.close_backward(self.data_group)
            total = total + loss.detach()
        return total

    def loss(self, micro: MicroBatch) -> Tensor:
        """Sum of the micro-batch's token losses in nats."""
        return token_loss(self.module(micro.inputs), micro.targets)

    def synchronising(self, last: bool) -> AbstractContextManager[None]:
        """Context of one micro-batch's forward and backward; gradients need synchronising only in the ``last``."""
        return nullcontext()

    def alone(self, last: bool) -> AbstractContextManager[None]:
        """Context of one micro-batch in which this rank exchanges no gradients, for windows that leave them out."""
        return nullcontext()

    def timing(self) -> AbstractContextManager[None]:
        """Context of the whole run, for kinds whose libraries wait for peers in places of their own."""
        return nullcontext()

    def share(self, window: Window) -> float:
        """Target tokens of the global batch per data-parallel replica: what summed losses are divided by.

        Averaging the replicas' gradients then gives the token-weighted mean over the global batch, also where sample
        lengths differ. (A mean per micro-batch, or per rank, would weight tokens of short samples more.)
        """
        if not self.params.ragged or self.data_group is None:
            return float(window.tokens)
        with self.watch.span("loss_s"):
            tokens = torch.tensor(float(window.tokens), dtype=torch.float64).to(self.place.device)
            return float(self.ledger.all_reduce(tokens, self.data_group)) / self.place.layout.dp

    def divisor(self, micro: MicroBatch, share: float) -> float:
        """What the sum of a micro-batch's losses is divided by before its backward pass."""
        self.divisors.append(share / micro.tokens)
        return share

    def synchronise(self) -> None:
        """Synchronises gradients where the backward pass did not do it."""

    def split_over(self) -> dict[str, Sequence[dist.ProcessGroup]]:
        """For each parameter of which this rank holds a part: the groups over which the parts are spread."""
        groups: dict[str, Sequence[dist.ProcessGroup]] = {}
        for name, weight in self.named_parameters().items():
            if isinstance(weight, DTensor):
                mesh = weight.device_mesh
                # Asked this way round because the strided shards of FSDP over tensor parallelism deny is_shard().
                spread = [i for i, p in enumerate(weight.placements) if not (p.is_replicate() or p.is_partial())]
                groups[name] = [mesh.get_group(i) for i in spread]
        return groups

    def gradients(self, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """This rank's gradients by name: all, or those of ``names``."""
        named = self.named_parameters()
        chosen = named if names is None else {name: named[name] for name in names}
        return {name: w.grad for name, w in chosen.items() if w.grad is not None}

    def norm_of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Global L2 norm of tensors that are spread like the parameters of those names."""
        like = torch.zeros((), dtype=next(iter(self.model.parameters())).dtype, device=self.place.device)
        return optimizers.global_norm(tensors, self.split_over(), like, self.ledger.all_reduce)

    def global_loss(self, window: Window, total: Tensor) -> Tensor:
        """Mean loss per token of the global batch, from this rank's sum: the value that is logged."""
        tokens = torch.tensor(float(self.own_tokens(window)), dtype=torch.float64).to(self.place.device)
        sums = torch.stack([total.to(torch.float64), tokens])
        self.ledger.all_reduce(sums, self.loss_group)
        return sums[0] / sums[1]

    def own_tokens(self, window: Window) -> int:
        """Target tokens whose loss this rank computed; 0 where it sees no loss."""
        return window.tokens

    def full(self, tensor: Tensor) -> Tensor:
        """The whole logical tensor, gathered from its holders. A collective: every rank calls it in the same order."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
