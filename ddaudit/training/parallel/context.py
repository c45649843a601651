"""Context parallelism: every rank holds the whole model and a slice of each sequence.

All layers but attention work position by position. In attention a rank's queries need the keys and values of all
earlier positions: here they are gathered from all ranks, and the mask knows where the slice begins.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor

from ddaudit.errors import UsageProblem
from ddaudit.training.data import IGNORED, MicroBatch, Window
from ddaudit.training.model import Attention, Transformer, token_loss
from ddaudit.training.parallel.contract import Parallel

__all__ = ["ContextParallel"]


class ContextParallel(Parallel):
    """All-gather of keys and values; gradients are summed over the slices.

    This form runs on CPU and CUDA ranks alike. torch's own (``torch.distributed.tensor.experimental``) has no sharding
    rule for the CPU's attention kernel in 2.13, and it orders a sequence's slices in its own way.
    """

    syncs_needed = 1.0
    implementation = "all-gather of keys and values"

    def build(self, model: Transformer) -> None:
        self.group = self.loss_group = self.place.group("cp")
        self.ranks = self.place.layout.axes["cp"]
        if model.shape.seq_len % self.ranks:
            raise UsageProblem(f"seq_len {model.shape.seq_len} does not split evenly over {self.ranks} ranks")
        self.slice_len = model.shape.seq_len // self.ranks
        self.start = self.place.coords["cp"] * self.slice_len
        self.model = self.module = model
        for layer in [m for m in model.modules() if isinstance(m, Attention)]:
            layer.core = self.attend
        self.ledger.parameters = len(self.named_parameters())

    def sync_ranks(self) -> int:
        return self.place.world_size

    def mask(self, queries: int, keys: int) -> Tensor:
        """Which key positions [keys] each query of this slice [queries] may see."""
        rows = torch.arange(self.start, self.start + queries, device=self.place.device)
        return rows[:, None] >= torch.arange(keys, device=self.place.device)[None, :]

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of this slice's queries over the keys and values of the whole sequence; arguments
        [batch, heads, slice, head width]."""
        keys = functional.all_gather_single_autograd(key.contiguous(), 2, self.group)
        values = functional.all_gather_single_autograd(value.contiguous(), 2, self.group)
        mask = self.mask(query.shape[2], keys.shape[2])
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)

    def own_slice(self, micro: MicroBatch) -> MicroBatch:
        """This rank's positions of every sample."""
        mine = slice(self.start, self.start + self.slice_len)
        return replace(micro, inputs=micro.inputs[:, mine], targets=micro.targets[:, mine])

    def loss(self, micro: MicroBatch) -> Tensor:
        own = self.own_slice(micro)
        return token_loss(self.module(own.inputs, self.start), own.targets)

    def own_tokens(self, window: Window) -> int:
        own = [self.own_slice(micro).targets for micro in window.micro_batches]
        return int(sum((targets != IGNORED).sum() for targets in own))

    def synchronise(self) -> None:
        # A sum and no mean: every slice's loss was divided by the tokens of the whole sequences already.
        self.ledger.reduce_gradients(list(self.gradients(self.synchronised()).values()), self.group, divide_by=1)
