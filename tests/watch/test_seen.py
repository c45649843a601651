"""What the hooks make of settings, generators, loaders, moments and epochs, without a training."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, TensorDataset

from ddaudit.watch import random_state
from ddaudit.watch.checkpoints import state_digest
from ddaudit.watch.claims import Claims
from ddaudit.watch.join import _again
from ddaudit.watch.loaders import Loaders
from ddaudit.watch.models import Models
from ddaudit.watch.patching import Guard


def test_settings_within_settings_are_claims_unless_they_are_about_something_else():
    config = SimpleNamespace(optim=SimpleNamespace(warmup_steps=6), profiler={"warmup": 9}, seed=1)
    claims = Claims()
    claims.variables(sys._getframe())
    assert [c["value"] for c in claims.found if c["kind"] == "warmup_updates"] == [6]
    assert config.seed == 1


class Noisy(Dataset[Any]):
    """Draws from a generator of its own, or from that of its transform."""

    def __init__(self, of_transform: bool) -> None:
        own = SimpleNamespace(rng=np.random.default_rng(0))
        self.transform = own if of_transform else None
        self.rng = own.rng if not of_transform else None

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        rng = self.rng or self.transform.rng  # type: ignore[union-attr]
        return float(rng.random())


@pytest.mark.parametrize("of_transform", [False, True])
def test_generators_within_wrapped_data_sets_and_transforms_are_seen_to_be_drawn_from(of_transform: bool):
    whole = Subset(Noisy(of_transform), range(4))
    before = random_state.worker_streams(whole)
    whole[0]
    after = random_state.worker_streams(whole)
    assert [name for name in after if after[name] != before[name]] == [name for name in after if name.endswith(".rng")]
    assert any(name.endswith(".rng") for name in after)


class Iterating:
    """May be referred to weakly and be a key."""


def read_epoch(loaders: Loaders, loader: DataLoader[Any], to_the_end: bool = True) -> None:
    iterator = Iterating()  # stands for the loader's iterator
    loaders._began(iterator, loader, 0.0)
    loaders._fetched(iterator, [torch.zeros(4, 2)], 0.0)
    if to_the_end:
        loaders._ended(iterator)


@pytest.mark.parametrize(("to_the_end", "numbers"), [(True, {0}), (False, {0, 1, 2})])
def test_a_loader_that_is_made_anew_for_each_epoch_is_one_loader(to_the_end: bool, numbers: set[int]):
    data, loaders = TensorDataset(torch.zeros(8, 2)), Loaders(Guard())
    for _ in range(3):
        read_epoch(loaders, DataLoader(data, 4, sampler=RandomSampler(data)), to_the_end)
    assert {x.number for x in loaders.known.values()} == numbers
    read_epoch(loaders, DataLoader(data, 2))
    assert len({x.number for x in loaders.known.values()}) == len(numbers) + 1


def test_moments_on_other_parameters_are_another_state_and_another_order_is_not():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    names = {id(p): name for name, p in model.named_parameters()}
    first, second = model.parameters()
    forth, back = (torch.optim.Adam(order) for order in ([first, second], [second, first]))
    model(torch.ones(2, 4)).square().sum().backward()
    forth.step()
    kept = state_digest(forth, names)
    back.state.update(forth.state)
    assert state_digest(back, names) == kept
    back.load_state_dict(forth.state_dict())  # by position: the moments change places
    assert state_digest(back, names) != kept


def reading(*ids: list[int]) -> Any:
    """A run of which only the samples of each update are asked."""
    return SimpleNamespace(ids=lambda row, column: [1000 * row + i for i in ids[column]])


@pytest.mark.parametrize(
    ("now", "first", "again"),
    [([5, 6], [1, 2], True), ([7, 8], [1, 2], False), ([5, 6], [5, 6], False)],
    ids=["the same epoch", "the next epoch", "epochs are alike"],
)
def test_an_epoch_that_is_trained_again_is_told_where_epochs_have_orders_of_their_own(
    now: list[int], first: list[int], again: bool
):
    other = reading(first, [3, 4], [5, 6], [9, 9])
    found = _again(reading(now), other, {0: [2, 3], 1: [2, 3]})
    assert found == ({"epoch_again": True, "samples_repeated": 8} if again else {})


def test_buffers_count_once_training_changes_them():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(1))
            self.register_buffer("table", torch.ones(4))
            self.register_buffer("cache", torch.ones(1), persistent=False)

    models, module = Models(Guard()), Scaled()
    models.roots[id(module)] = module
    assert models.norm_digest() != models.norm_digest()  # NaN: nothing has changed yet
    module.cache.add_(1)
    assert models.norm_digest() != models.norm_digest()
    module.scale.add_(1)
    first = models.norm_digest()
    assert first == models.norm_digest()
    module.scale.add_(1)
    assert models.norm_digest() != first
