"""Parameters of one optimizer as the watcher sees them: digests of everything, and small slices in full.

A slice is followed through a window: the gradients that arrive in it by autograd are added up (what this rank alone
computed), then it is read after the last backward pass, before clipping, and at the step.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import unserializable_hook

from ddaudit.watch.fingerprint import local, tensors
from ddaudit.watch.patching import Guard

__all__ = ["ROLES", "Parameters"]

#: What of a slice is read when, in the order of the ``role`` axis of ``grad_slices``.
ROLES = ("arrived", "ended", "unclipped", "stepped")
SLICES, ELEMENTS = 6, 24
MAX_GROUPS = 256


class Parameters:
    """The parameters of an optimizer, in the order of its groups."""

    def __init__(self, optimizer: Any, guard: Guard) -> None:
        self.items: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"]]
        self.nbytes = sum(local(p).numel() * p.element_size() for p in self.items)
        self.numel = sum(p.numel() for p in self.items)
        self.parts = _groups(self.items)
        self.chosen = _spread([p for p in self.items if p.requires_grad], SLICES)
        self.sampling = True
        self.touched = False
        self.slices: dict[str, list[list[float]]] = {}
        self._arrived: dict[int, Tensor] = {}
        for index, parameter in enumerate(self.chosen):
            parameter.register_hook(_follower(self, index, guard))  # type: ignore[no-untyped-call]

    def arrive(self, index: int, gradient: Tensor) -> None:
        """Adds what autograd brings to a slice."""
        self.touched = True
        if self.sampling:
            part = _head(gradient).to(torch.float64, copy=True)
            before = self._arrived.get(index)
            self._arrived[index] = part if before is None else before.add_(part)

    @property
    def arrived(self) -> bool:
        """True when gradients other than zero arrived in the chosen slices."""
        return any(bool((part != 0).any()) for part in self._arrived.values())

    def cleared(self) -> bool:
        """True when no chosen parameter holds a gradient other than zero."""
        held = [p.grad for p in self.chosen if p.grad is not None]
        return not any(bool((local(g).reshape(-1)[: 4 * ELEMENTS] != 0).any()) for g in held)

    def forget(self) -> None:
        """Starts a window."""
        self._arrived.clear()
        self.slices.clear()

    def read(self, role: str) -> None:
        """Notes the chosen gradients under a role; later readings of one role replace earlier ones."""
        if not self.sampling:
            return
        if role == "arrived":
            found = [self._arrived.get(i) for i in range(len(self.chosen))]
        else:
            found = [None if p.grad is None else _head(p.grad) for p in self.chosen]
        self.slices[role] = _numbers(found)

    def table(self) -> list[list[float | str]]:
        """Readings [role][slot] of the window, "NaN" as JSON has it where there was none."""
        widths = [min(ELEMENTS, local(p).numel()) for p in self.chosen]
        result: list[list[float | str]] = []
        for role in ROLES:
            parts = self.slices.get(role, [[] for _ in self.chosen])
            result.append([x for part, width in zip(parts, widths, strict=True) for x in (part or ["NaN"] * width)])
        return result

    def digests(self) -> list[int]:
        """Digest of each parameter (or of groups of neighbours, where there are more than 256)."""
        return [tensors(part) for part in self.parts]

    def grad_digests(self) -> list[int]:
        """Digest of each gradient; -1 where a parameter has none."""
        result = []
        for part in self.parts:
            held = [p.grad for p in part if p.grad is not None]
            result.append(tensors(held) if held else -1)
        return result

    def grad_norm(self) -> float:
        """L2 norm of this rank's gradients, NaN when there are none."""
        held = [local(p.grad).detach() for p in self.items if p.grad is not None]
        if not held:
            return float("nan")
        norms = torch._foreach_norm(held) if len({g.dtype for g in held}) == 1 else [g.norm() for g in held]
        return float(torch.linalg.vector_norm(torch.stack([n.to(torch.float64) for n in norms])))

    def replicated(self) -> list[bool]:
        """For each digest: whether its parameters are whole copies, not shards of a DTensor."""
        return [all(_whole(p) for p in group) for group in self.parts]

    def names(self, known: dict[int, str]) -> list[str]:
        """One name a digest."""
        return [known.get(id(g[0]), "?") + (f" +{len(g) - 1}" if len(g) > 1 else "") for g in self.parts]


def _head(tensor: Tensor) -> Tensor:
    """The first elements of this rank's part."""
    return local(tensor).detach().reshape(-1)[:ELEMENTS]


def _numbers(found: Sequence[Tensor | None]) -> list[list[float]]:
    """Numbers of each part, none of those that are missing, by one conversion for all."""
    kept = [part for part in found if part is not None]
    if not kept:
        return [[] for _ in found]
    alike = len({(part.dtype, part.device) for part in kept}) == 1
    flat = (torch.cat(kept) if alike else torch.cat([p.cpu().double() for p in kept])).to(torch.float64).tolist()
    ends = iter(itertools.accumulate((len(part) for part in kept), initial=0))
    begin, result = next(ends), []
    for part in found:
        end = begin if part is None else next(ends)
        result.append(flat[begin:end])
        begin = end
    return result


def _whole(parameter: Tensor) -> bool:
    return all(not (p.is_shard() or p.is_partial()) for p in getattr(parameter, "placements", ()))


def _groups(items: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    width = -(-len(items) // MAX_GROUPS) if items else 1
    return [items[i : i + width] for i in range(0, len(items), width)]


def _spread(items: list[Tensor], count: int) -> list[Tensor]:
    if len(items) <= count:
        return items
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _follower(parameters: Parameters, index: int, guard: Guard) -> Any:
    def follow(gradient: Tensor) -> None:
        if parameters.touched and not parameters.sampling:
            return  # nothing to add, and this runs for every backward pass
        guard.call("gradient", parameters.arrive, index, gradient)

    return unserializable_hook(follow)  # type: ignore[no-untyped-call]
