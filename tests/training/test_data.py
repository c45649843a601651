"""The source has the entropy it claims, and every layout reads the same global batch."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddaudit.training.data import IGNORED, Feed, MarkovSource, ShardedSampler, TextDataset
from ddaudit.training.params import TrainParams, geometry

CPU = torch.device("cpu")


def test_measured_conditional_entropy_is_the_entropy_rate() -> None:
    source = MarkovSource(16, seed=3)
    text = source.draw(np.random.default_rng(0), 60_000)
    pairs, firsts = Counter(itertools.pairwise(text)), Counter(text[:-1])
    total = len(text) - 1
    entropy = -sum(n / total * math.log(n / firsts[a]) for (a, _), n in pairs.items())
    assert entropy == pytest.approx(source.entropy_nats, abs=0.01)
    assert len(pairs) == 4 * 16


def test_every_symbol_is_equally_frequent_in_the_long_run() -> None:
    counts = Counter(MarkovSource(16, seed=3).draw(np.random.default_rng(1), 60_000))
    assert max(counts.values()) / min(counts.values()) < 1.15


def test_a_sample_depends_on_seed_and_index_alone() -> None:
    source = MarkovSource(16, 1)
    one, two = (TextDataset(source, 5, 100, 8, ragged=True) for _ in range(2))
    assert all((one[i][1] == two[i][1]).all() for i in (0, 99, 3))
    assert not (one[0][1] == one[1][1]).all()


def samplers(dp: int, params: TrainParams) -> list[ShardedSampler]:
    layout = geometry(params, dp)
    return [ShardedSampler(params, layout, rank) for rank in range(dp)]


@settings(max_examples=40, deadline=None)
@given(
    dp=st.sampled_from([1, 2, 4]),
    accumulation=st.sampled_from([1, 2]),
    samples=st.integers(8, 60),
    drop_last=st.booleans(),
)
def test_an_epoch_gives_every_update_the_same_global_batch(
    dp: int, accumulation: int, samples: int, drop_last: bool
) -> None:
    kind = "single" if dp == 1 else "data"
    params = TrainParams(
        parallel=kind, global_batch=8, accumulation=accumulation, dataset_samples=samples, drop_last=drop_last
    )
    mine = [list(sampler) for sampler in samplers(dp, params)]
    order = samplers(dp, params)[0].order(0)
    updates = len(order) // 8
    assert updates == (samples // 8 if drop_last else -(-samples // 8))
    for update in range(updates):
        window = slice(update * accumulation, (update + 1) * accumulation)
        read = [i for rank in mine for micro in rank[window] for i in micro]
        assert sorted(read) == sorted(order[update * 8 : update * 8 + 8])
    assert len(set(order)) == (min(samples, len(order)))


def test_the_next_epoch_has_another_order_of_the_same_samples() -> None:
    (sampler,) = samplers(1, TrainParams(global_batch=8, dataset_samples=32))
    assert sampler.order(0) != sampler.order(1)
    assert sorted(sampler.order(0)) == sorted(sampler.order(1))


def feed_of(params: TrainParams) -> Feed:
    dataset = TextDataset(MarkovSource(16, 1), params.seed, params.dataset_samples, 8, params.ragged)
    return Feed(params, geometry(params, 1), 0, dataset)


@pytest.mark.parametrize("workers", [0, 1])
def test_position_counts_what_was_trained_on_and_not_what_was_prefetched(workers: int) -> None:
    params = TrainParams(global_batch=4, dataset_samples=16, num_workers=workers)
    feed, seen = feed_of(params), []
    for _ in range(6):
        window = feed.window(CPU)
        seen.append((window.epoch, window.sample_ids))
        feed.advance()
    assert [epoch for epoch, _ in seen] == [0, 0, 0, 0, 1, 1]
    assert feed.sampler.state_dict() == {"epoch": 1, "position": 8, "seed": params.seed}
    again = feed_of(params)
    again.sampler.load_state_dict({"epoch": 0, "position": 8, "seed": params.seed})
    assert again.window(CPU).sample_ids == seen[2][1]


def test_ragged_samples_count_the_targets_that_are_not_padding() -> None:
    feed = feed_of(TrainParams(global_batch=16, dataset_samples=64, ragged=True))
    window = feed.window(CPU)
    (micro,) = window.micro_batches
    lengths = (micro.targets != IGNORED).sum(dim=1)
    assert window.tokens == int(lengths.sum())
    assert 2 <= int(lengths.min()) < int(lengths.max()) <= 8
    assert int(micro.inputs.min()) >= 0
