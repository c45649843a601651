"""Expert parallelism: the experts of each mixture layer are spread over the ranks; everything else is data parallel.

Every rank reads its own samples. In a mixture layer it sends each token to the rank that holds the chosen expert and
gets the result back: one all-to-all each way, and again in the backward pass (Lepikhin et al., GShard, 2020).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddaudit.training.ledger import SyncLedger
from ddaudit.training.model import MixtureOfExperts, Transformer
from ddaudit.training.parallel.contract import Parallel
from ddaudit.training.parallel.exchange import all_to_all

__all__ = ["ExpertParallel"]


class ExpertParallel(Parallel):
    """Own all-to-all dispatch without a capacity limit, and one flat all-reduce for what all ranks hold.

    An expert's gradient already sums over the tokens of all replicas, since those tokens came to it; it still has to
    be divided by the number of replicas, because each of them divided its loss by its own share of the tokens only.
    """

    syncs_needed = 1.0
    implementation = "all-to-all dispatch, no capacity limit"

    def build(self, model: Transformer) -> None:
        self.group = self.data_group = self.loss_group = self.place.group("ep")
        self.ranks, rank = self.place.layout.axes["ep"], self.place.coords["ep"]
        self.model = self.module = model
        for layer in [m for m in model.modules() if isinstance(m, MixtureOfExperts)]:
            per_rank = len(layer.experts) // self.ranks
            mine = range(rank * per_rank, (rank + 1) * per_rank)
            layer.experts = nn.ModuleDict({str(i): layer.experts[str(i)] for i in mine})
            layer.apply_experts = Dispatch(layer, self.group, self.ranks, self.ledger)
        self.ledger.parameters = len(self.replicated())

    def replicated(self) -> list[str]:
        return [name for name in self.named_parameters() if ".experts." not in name]

    def synchronised(self) -> list[str]:
        return self.replicated()

    def split_over(self) -> dict[str, Sequence[dist.ProcessGroup]]:
        return {name: [self.group] for name in self.named_parameters() if ".experts." in name}

    def synchronise(self) -> None:
        shared = list(self.gradients(self.synchronised()).values())
        self.ledger.reduce_gradients(shared, self.group, self.average_over)
        self.divide_experts()

    def divide_experts(self) -> None:
        """Turns the experts' sums over replicas into means."""
        for name, weight in self.named_parameters().items():
            if ".experts." in name and weight.grad is not None:
                weight.grad /= self.average_over


class Dispatch:
    """Sends token rows to the ranks of their experts, applies the experts, and brings the results back."""

    def __init__(self, layer: MixtureOfExperts, group: dist.ProcessGroup, ranks: int, ledger: SyncLedger) -> None:
        self.layer, self.group, self.ranks, self.ledger = layer, group, ranks, ledger

    def __call__(self, tokens: Tensor, expert: Tensor) -> Tensor:
        """``tokens`` [n, width] through the experts that ``expert`` [n] names, in the same order."""
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self.layer.gate.out_features)
        arriving = torch.empty_like(counts)  # [source rank, local expert]
        with self.ledger.waiting(self.group):
            dist.all_to_all_single(arriving, counts, group=self.group)
        sent = counts.view(self.ranks, -1).sum(dim=1).tolist()
        received = arriving.view(self.ranks, -1).sum(dim=1).tolist()
        rows = all_to_all(tokens[order], received, sent, self.group, self.ledger)
        done = self.apply(rows, arriving.tolist())
        back = all_to_all(done, sent, received, self.group, self.ledger)
        return back[order.argsort()]

    def apply(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Rows lie by source rank, then by local expert; each expert takes its pieces of all sources at once. An expert
        without tokens runs on none, so that its gradient exists and is zero."""
        self.ledger.expert_tokens += rows.shape[0]
        pieces = list(torch.split(rows, counts))
        local = len(counts) // self.ranks
        for position, module in enumerate(self.layer.experts.values()):
            mine = slice(position, None, local)
            sizes = counts[mine]
            pieces[mine] = list(torch.split(module(torch.cat(pieces[mine])), sizes))
        return torch.cat(pieces)
