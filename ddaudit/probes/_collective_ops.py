"""The collectives that are timed, each with buffers whose right result is known exactly.

Values are small whole numbers, so that sums are exact in float32 in whatever order they are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Prepared", "prepare"]

ITEM_BYTES = 4
PERIOD = 7


@dataclass
class Prepared:
    """One operation, ready to be called again and again.

    ``fill`` sets the input, ``run`` does the collective, ``result`` is what this rank then holds and ``expected`` what
    it must hold. ``sources`` gives the group's rank that each equal part of the result comes from; empty for a sum.
    ``size_bytes`` is S of the bandwidth definitions.
    """

    size_bytes: int
    fill: Callable[[], None]
    run: Callable[[], Any]
    result: torch.Tensor
    expected: torch.Tensor
    sources: tuple[int, ...]
    input: torch.Tensor


def prepare(op: str, size_bytes: int, ranks: Sequence[int], rank: int, group: Any, device: str) -> Prepared:
    """Buffers of about ``size_bytes`` (a whole number of elements a rank) for ``rank`` in the group ``ranks``."""
    n, me = len(ranks), ranks.index(rank)
    part = max(1, size_bytes // ITEM_BYTES // n)
    return _BUILD[op](n, me, part, ranks, group, device)


def _wave(count: int, device: str, rank: int, offset: int = 0) -> torch.Tensor:
    """``(rank + 1) * (1 .. PERIOD)`` repeated: differs from rank to rank and from element to element."""
    import torch

    steps = torch.arange(offset, offset + count, device=device) % PERIOD + 1
    return (steps * (rank + 1)).to(torch.float32)


def _all_reduce(n: int, me: int, part: int, ranks: Sequence[int], group: Any, device: str) -> Prepared:
    import torch
    import torch.distributed as dist

    count = part * n
    data, mine = torch.empty(count, device=device), _wave(count, device, me)
    expected = _wave(count, device, 0) * (n * (n + 1) // 2)
    fill = _refill(data, mine)
    return Prepared(count * ITEM_BYTES, fill, lambda: dist.all_reduce(data, group=group), data, expected, (), mine)


def _all_gather(n: int, me: int, part: int, ranks: Sequence[int], group: Any, device: str) -> Prepared:
    import torch
    import torch.distributed as dist

    mine, out = _wave(part, device, me), torch.empty(part * n, device=device)
    expected = torch.cat([_wave(part, device, r) for r in range(n)])

    def run() -> None:
        dist.all_gather_into_tensor(out, mine, group=group)

    return Prepared(part * n * ITEM_BYTES, _nothing, run, out, expected, tuple(ranks), mine)


def _reduce_scatter(n: int, me: int, part: int, ranks: Sequence[int], group: Any, device: str) -> Prepared:
    import torch
    import torch.distributed as dist

    mine, out = _wave(part * n, device, me), torch.empty(part, device=device)
    expected = _wave(part, device, 0, offset=me * part) * (n * (n + 1) // 2)

    def run() -> None:
        dist.reduce_scatter_tensor(out, mine, group=group)

    return Prepared(part * n * ITEM_BYTES, _nothing, run, out, expected, (), mine)


def _all_to_all(n: int, me: int, part: int, ranks: Sequence[int], group: Any, device: str) -> Prepared:
    import torch
    import torch.distributed as dist

    mine, out = _wave(part * n, device, me), torch.empty(part * n, device=device)
    expected = torch.cat([_wave(part, device, r, offset=me * part) for r in range(n)])

    def run() -> None:
        dist.all_to_all_single(out, mine, group=group)

    return Prepared(part * n * ITEM_BYTES, _nothing, run, out, expected, tuple(ranks), mine)


def _broadcast(n: int, me: int, part: int, ranks: Sequence[int], group: Any, device: str) -> Prepared:
    import torch
    import torch.distributed as dist

    count, root = part * n, ranks[0]
    data, mine = torch.empty(count, device=device), _wave(count, device, me)
    expected = _wave(count, device, 0)

    def run() -> None:
        dist.broadcast(data, src=root, group=group)

    return Prepared(count * ITEM_BYTES, _refill(data, mine), run, data, expected, (root,), mine)


def _send_recv(n: int, me: int, part: int, ranks: Sequence[int], group: Any, device: str) -> Prepared:
    """Every rank sends to the next and receives from the one before, all at once."""
    import torch
    import torch.distributed as dist

    count, to, source = part * n, ranks[(me + 1) % n], ranks[(me - 1) % n]
    mine, out = _wave(count, device, me), torch.empty(count, device=device)
    expected = _wave(count, device, (me - 1) % n)

    def run() -> None:
        both = [dist.P2POp(dist.isend, mine, to, group), dist.P2POp(dist.irecv, out, source, group)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return Prepared(count * ITEM_BYTES, _nothing, run, out, expected, (source,), mine)


def _refill(data: torch.Tensor, mine: torch.Tensor) -> Callable[[], None]:
    def fill() -> None:
        data.copy_(mine)

    return fill


def _nothing() -> None:
    """Operations with an output of their own leave the input as it is."""


_BUILD: dict[str, Callable[..., Prepared]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "broadcast": _broadcast,
    "send-recv": _send_recv,
}
