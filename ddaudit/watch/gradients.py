"""Parameters of one optimizer as the watcher sees them: digests of everything, and small slices in full.

A slice is followed through a window: the gradients that arrive in it by autograd are added up (what this rank alone
computed), then it is read after the last backward pass, before clipping, and at the step.
"""

from __future__ import annotations

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
        self._arrived: dict[int, Any] = {}
        """On other devices a tensor, because a hook that asks for its numbers would make backward wait for them."""
        for index, parameter in enumerate(self.chosen):
            parameter.register_hook(_follower(self, index, guard))  # type: ignore[no-untyped-call]

    def arrive(self, index: int, gradient: Tensor) -> None:
        """Adds what autograd brings to a slice."""
        self.touched = True
        if self.sampling:
            part, before = _head(gradient), self._arrived.get(index)
            if part.device.type != "cpu":
                part = part.to(torch.float64, copy=True)
                self._arrived[index] = part if before is None else before + part
                return
            numbers = part.tolist()
            self._arrived[index] = numbers if before is None else [a + b for a, b in zip(before, numbers, strict=True)]

    @property
    def arrived(self) -> bool:
        """True when gradients other than zero arrived in the chosen slices."""
        return any(any(_listed(part)) for part in self._arrived.values())

    def cleared(self) -> bool:
        """True when no chosen parameter holds a gradient other than zero."""
        held = [g for p in self.chosen if (g := p.grad) is not None]
        return not held or not any(bool((local(g).reshape(-1)[: 4 * ELEMENTS] != 0).any()) for g in held)

    def forget(self) -> None:
        """Starts a window."""
        self._arrived.clear()
        self.slices.clear()

    def read(self, role: str) -> None:
        """Notes the chosen gradients under a role; later readings of one role replace earlier ones."""
        if not self.sampling:
            return
        if role == "arrived":
            self.slices[role] = [_listed(self._arrived.get(i, [])) for i in range(len(self.chosen))]
        else:
            self.slices[role] = [[] if p.grad is None else _head(p.grad).tolist() for p in self.chosen]

    def table(self) -> list[list[float | str]]:
        """Readings [role][slot] of the window, "NaN" as JSON has it where there was none."""
        widths = [min(ELEMENTS, local(p).numel()) for p in self.chosen]
        result: list[list[float | str]] = []
        for role in ROLES:
            parts = self.slices.get(role, [[] for _ in self.chosen])
            row: list[float | str] = []
            for part, width in zip(parts, widths, strict=True):
                row += part or ["NaN"] * width
            result.append(row)
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
        if len({(g.dtype, g.device) for g in held}) == 1:
            return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(held)).to(torch.float64)))
        return float(torch.linalg.vector_norm(torch.stack([g.norm().to("cpu", torch.float64) for g in held])))

    def replicated(self) -> list[bool]:
        """For each digest: whether its parameters are whole copies, not shards of a DTensor."""
        return [all(_whole(p) for p in group) for group in self.parts]

    def names(self, known: dict[int, str]) -> list[str]:
        """One name a digest."""
        return [known.get(id(g[0]), "?") + (f" +{len(g) - 1}" if len(g) > 1 else "") for g in self.parts]


def _head(tensor: Tensor) -> Tensor:
    """The first elements of this rank's part."""
    return local(tensor).detach().reshape(-1)[:ELEMENTS]


def _listed(part: Any) -> list[float]:
    return list(part.tolist() if isinstance(part, Tensor) else part)


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
        if not parameters.sampling:
            parameters.touched = True  # nothing to add, and this runs for every backward pass
            return
        guard.call("gradient", parameters.arrive, index, gradient)

    return unserializable_hook(follow)  # type: ignore[no-untyped-call]
