"""A digest changes with any bit and any order, and fits a float64."""

from __future__ import annotations

import torch

from ddaudit.training import digest as module
from ddaudit.training.digest import digest


def test_equal_bits_give_equal_digests_that_a_float_holds() -> None:
    one = torch.randn(100)
    value = digest([one])
    assert value == digest([one.clone()])
    assert int(float(value)) == value < 2**53


def test_one_bit_the_order_or_the_sign_of_zero_changes_the_digest() -> None:
    tensor = torch.arange(10.0)
    flipped = tensor.clone()
    flipped.view(torch.int32)[7] ^= 1
    negative = tensor.clone()
    negative[0] = -0.0
    values = {digest([t]) for t in (tensor, flipped, negative, tensor.flip(0), tensor.double())}
    assert len(values) == 5


def test_swapped_tensors_differ_and_large_ones_are_cut(monkeypatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 8)
    one, two = torch.randn(20), torch.randn(20)
    assert digest([one, two]) != digest([two, one])
    assert digest([one, two]) == digest([one.clone(), two.clone()])
