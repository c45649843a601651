"""How a loss is put together: which means or sums it consists of, and the factor with which each reaches backward.

The factor is measured, not guessed: a pre-hook on the reducing node of the autograd graph sees the gradient that flows
into it, so every division, scaler and wrapper between the script and ``backward`` is included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ddaudit.watch.patching import Guard

__all__ = ["Micro", "Term", "inspect"]

#: Nodes between the loss and its reductions that keep a scalar a scalar.
SCALAR = (
    "DivBackward", "MulBackward", "AddBackward", "SubBackward", "NegBackward", "ToCopyBackward", "CloneBackward",
    "AliasBackward", "ViewBackward", "SqueezeBackward", "UnsqueezeBackward", "ReshapeAliasBackward", "_DDPSink",
    "StackBackward", "CatBackward", "SelectBackward", "ExpandBackward",
)  # fmt: skip
MEANS = ("MeanBackward",)
SUMS = ("SumBackward",)
#: Losses with a ``reduction`` argument: saved as 1 = mean, 2 = sum.
FUSED = (
    "NllLoss", "MseLoss", "BinaryCrossEntropy", "SmoothL1Loss", "HuberLoss", "SoftMarginLoss", "MultiMarginLoss",
    "MultilabelMarginLoss", "CtcLoss",
)  # fmt: skip
#: What may lie above the reductions; a reduction over a few gathered scalars does too.
INNER = SCALAR + MEANS + SUMS
GATHERED = ("StackBackward", "CatBackward")
MASKED = ("IndexBackward", "MaskedSelectBackward")
MAX_NODES = 200
MASK_DEPTH = 6


@dataclass
class Term:
    """One reduction in a loss. ``kind`` is "mean", "sum" or "opaque"; ``count`` the elements that were averaged."""

    kind: str
    count: float | None
    ragged: bool
    weight: float | None = None


@dataclass
class Micro:
    """One outermost backward call."""

    value: float | None
    terms: list[Term] = field(default_factory=list)
    divisors: list[float] = field(default_factory=list)
    node: Any = None
    """The first reduction: whoever keeps the loss, divided or not, keeps this node."""
    shape: int = 0
    """Hash of the graph's visible top, to tell micro-batches of one loss from different losses."""
    weighed: bool = True
    """Whether its terms were asked for."""

    def weights(self, scale: float) -> tuple[float, float] | None:
        """Largest and total weight of the terms as means, without the scaler's factor; None where not all is known."""
        found = []
        for term in self.terms:
            if term.kind == "opaque" and term.weight is None:
                continue  # reached through a wrapper's other outputs: no number of the loss comes from there
            if term.weight is None or term.kind == "opaque" or (term.kind == "sum" and not term.count):
                return None
            found.append(abs(term.weight / scale) * (term.count if term.kind == "sum" and term.count else 1.0))
        return (max(found), math.fsum(found)) if found else None

    @property
    def main(self) -> Term | None:
        """The term that weighs most."""
        known = [t for t in self.terms if t.weight is not None]
        return max(known, key=lambda t: abs(t.weight or 0.0), default=None)


def inspect(
    loss: Tensor, top: Any, guard: Guard, masks: dict[int, list[bool]], *, anew: bool = True, weigh: bool = True
) -> Micro:
    """Walks the scalar top of a loss's graph, which begins at the node ``top``, and hooks its reductions; the weights
    fill in during backward.

    ``masks`` keeps for each shape of graph which reductions are masked; unless ``anew``, it is believed. Without
    ``weigh`` the terms are left out: only the loss's value and the shape of its graph are told."""
    micro = Micro(loss.item() if loss.numel() == 1 else None)
    if not weigh and not (name := top.name()).startswith(INNER):
        micro.shape, micro.node, micro.weighed = hash((name,)) & 0xFFFFFFFF, top, False
        return micro
    names: list[str] = []
    nodes = list(_reductions(top, micro, names))
    micro.shape = hash(tuple(names)) & 0xFFFFFFFF
    if not weigh:
        micro.node, micro.weighed = nodes[0] if nodes else None, False
        return micro
    if anew or len(masks.get(micro.shape, ())) != len(nodes):
        masks[micro.shape] = [_masked(node) for node in nodes]
    for node, masked in zip(nodes, masks[micro.shape], strict=True):
        term = _term(node, masked)
        micro.terms.append(term)
        node.register_prehook(_weigher(term, guard))
        micro.node = micro.node or node
    return micro


def _weigher(term: Term, guard: Guard) -> Any:
    def weigh(gradients: tuple[Tensor | None, ...]) -> None:
        first = gradients[0] if gradients else None
        if first is not None and first.numel() == 1:
            term.weight = float(first.detach())

    def note(gradients: tuple[Tensor | None, ...]) -> None:
        guard.call("loss-weight", weigh, gradients)

    return note


def _reductions(root: Any, micro: Micro, names: list[str]) -> Iterator[Any]:
    """Yields the nodes at which the scalar region ends."""
    seen: set[Any] = set()
    stack = [root]
    while stack and len(seen) < MAX_NODES:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name()
        names.append(name)
        if name.startswith(SCALAR) or (name.startswith(MEANS + SUMS) and _over_scalars(node)):
            micro.divisors += _factors(node, name)
            stack += [child for child, _ in node.next_functions if child is not None]
        elif "AccumulateGrad" not in name:
            yield node


def _over_scalars(node: Any) -> bool:
    children = [c for c, _ in node.next_functions if c is not None]
    return len(children) == 1 and children[0].name().startswith(GATHERED)


def _factors(node: Any, name: str) -> list[float]:
    """Constants that a division divides by (a multiplication by 1/x counts as x)."""
    if not name.startswith(("DivBackward", "MulBackward")):
        return []
    other = getattr(node, "_saved_other", None)
    value = float(other) if isinstance(other, int | float) or (isinstance(other, Tensor) and other.numel() == 1) else 0
    if not value:
        return []
    return [value if name.startswith("Div") else 1.0 / value]


def _term(node: Any, ragged: bool) -> Term:
    name = node.name()
    if name.startswith(MEANS):
        numel = getattr(node, "_saved_self_sym_numel", None) or _size(node)
        return Term("mean", float(numel) if numel else None, ragged)
    if name.startswith(SUMS):
        return Term("sum", _size(node), ragged)
    if name.startswith(FUSED):
        kind = {1: "mean", 2: "sum"}.get(getattr(node, "_saved_reduction", 0), "opaque")
        count, ignored = _fused_count(node)
        return Term(kind, count, ignored)
    return Term("opaque", None, False)


def _masked(root: Any) -> bool:
    """True where what is reduced was picked out by a mask or an index a few operations before."""
    level, seen = [root], 0
    for _ in range(MASK_DEPTH):
        level = [c for node in level for c, _ in node.next_functions if c is not None]
        seen += len(level)
        if any(node.name().startswith(MASKED) for node in level):
            return True
        if seen > MAX_NODES:
            return False
    return False


def _size(node: Any) -> float | None:
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    return float(math.prod(sizes)) if sizes is not None else None


def _fused_count(node: Any) -> tuple[float | None, bool]:
    """Elements that count in a fused loss, and whether some were ignored (``ignore_index``)."""
    weight = getattr(node, "_saved_total_weight", None)
    target = getattr(node, "_saved_target", None)
    whole = float(target.numel()) if isinstance(target, Tensor) else None
    if isinstance(weight, Tensor) and weight.numel() == 1 and getattr(node, "_saved_weight", None) is None:
        count = float(weight)
        return count, whole is not None and count < whole
    return whole, False
