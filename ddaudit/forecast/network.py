"""What a collective costs: alpha-beta times of rings, and of groups that span nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Link", "Network", "Op"]

Op = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv"]


@dataclass(frozen=True)
class Link:
    """One hop: ``alpha_s`` seconds to start, ``bytes_per_s`` of one rank in one direction."""

    alpha_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Network:
    """Ranks in nodes of ``node_size``: ``inner`` links within a node, ``outer`` per rank between nodes.

    ``call_s`` is what a rank's host spends on issuing one collective, whatever its ranks and size, and
    ``meet_s`` what it waits there for the others to arrive, once and not at every hop; ``trees`` is False where the
    backend knows rings only (Gloo). ``measured`` holds (alpha_s, s_per_byte) of an operation by (op, ranks)
    where a sweep timed it; the table then answers instead of the formula.
    """

    node_size: int
    inner: Link
    outer: Link
    measured: Mapping[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    call_s: float = 0.0
    meet_s: float = 0.0
    trees: bool = True

    def seconds(self, op: Op, size_bytes: float, ranks: int, near: int) -> float:
        """Time of one collective over ``ranks`` ranks of which ``near`` share a node.

        ``size_bytes`` is the whole buffer (nccl-tests convention). Rings: an all-reduce moves 2 (n - 1) / n of it in
        2 (n - 1) hops, the others (n - 1) / n in n - 1 (Thakur et al. 2005; nccl-tests PERFORMANCE.md). A group of
        several nodes first works within nodes, then across with 1 / near of the buffer each; an all-to-all sends to
        both at once, so its longer part counts. An all-reduce may take a tree, 2 log2 n hops and twice the buffer,
        where that is quicker. Issuing it is counted.
        """
        if ranks <= 1 or size_bytes <= 0:
            return 0.0
        return self.call_s + self.meet_s + self._on_wire(op, size_bytes, ranks, near)

    def _on_wire(self, op: Op, size_bytes: float, ranks: int, near: int) -> float:
        if (op, ranks) in self.measured:
            alpha_s, s_per_byte = self.measured[op, ranks]
            return alpha_s + size_bytes * s_per_byte
        near = max(1, min(near, ranks))
        if op == "send-recv":
            return _hop(self.inner if near > 1 else self.outer, size_bytes)
        nodes = -(-ranks // near)
        if op == "all-to-all":
            far = (ranks - near) / ranks * size_bytes
            inside = near * self.inner.alpha_s + (near - 1) / ranks * size_bytes / self.inner.bytes_per_s
            return max(inside, (ranks - near) * self.outer.alpha_s + far / self.outer.bytes_per_s)
        within = _ring(self.inner, size_bytes, near)
        across = _ring(self.outer, size_bytes / near, nodes)
        if op != "all-reduce":
            return within + across
        if not self.trees:
            return 2 * (within + across)
        return 2 * (
            min(within, _tree(self.inner, size_bytes, near)) + min(across, _tree(self.outer, size_bytes / near, nodes))
        )


def _hop(link: Link, size_bytes: float) -> float:
    return link.alpha_s + size_bytes / link.bytes_per_s


def _tree(link: Link, size_bytes: float, ranks: int) -> float:
    return math.ceil(math.log2(ranks)) * link.alpha_s + size_bytes / link.bytes_per_s if ranks > 1 else 0.0


def _ring(link: Link, size_bytes: float, ranks: int) -> float:
    return (ranks - 1) * link.alpha_s + (ranks - 1) / ranks * size_bytes / link.bytes_per_s
