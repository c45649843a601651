"""Digests of tensors as integers that a float64 holds exactly, computed on the tensor's own device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

__all__ = ["digest"]

_CHUNK = 1 << 22
_BITS = (1 << 53) - 1
_WORD = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(tensors: Iterable[Tensor]) -> int:
    """53-bit digest of the tensors' bits, in order.

    Each element's bit pattern is mixed with its position and the results are added modulo 2^64; integer addition has
    no rounding, so the value does not depend on the device or the order of summation. Equal bits give equal digests;
    different ones collide by chance about once in 2^53. It guards against error, not against malice.
    """
    sums = [_mixed_sum(part) for part in _chunks(tensors)]
    total = 0
    for value in torch.stack(sums).tolist() if sums else []:  # one wait for the device, not one per chunk
        total = (total * 31 + int(value)) & _WORD
    return (total ^ (total >> 29)) & _BITS


def _mixed_sum(part: Tensor) -> Tensor:
    position = torch.arange(1, part.numel() + 1, device=part.device, dtype=torch.int64)
    mixed = (part ^ (position * _ODD)) * _ODD
    mixed = (mixed ^ (mixed >> 32)) * _ODD
    return (mixed ^ (mixed >> 29)).sum()


def _chunks(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Bit patterns as int64 in pieces of bounded size: few large pieces, since each costs a device round trip."""
    pending: list[Tensor] = []
    held = 0
    for tensor in tensors:
        flat = tensor.detach().contiguous().view(-1)
        for part in torch.split(flat.view(_INTEGERS[flat.element_size()]), _CHUNK):
            if held + part.numel() > _CHUNK and pending:
                yield torch.cat(pending)
                pending, held = [], 0
            pending.append(part.to(torch.int64))
            held += part.numel()
    if pending:
        yield torch.cat(pending)
