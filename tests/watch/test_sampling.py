"""Which updates are recorded whole, and that reading samples together changes no fingerprint."""

from __future__ import annotations

import pytest
import torch

from ddaudit.watch import fingerprint
from ddaudit.watch.sampling import DIGEST_BYTES, FIRST, Sampling


def due(every: int, updates: int) -> list[int]:
    return [u for u in range(updates) if Sampling(every).due(u)]


def test_every_update_is_recorded_at_first_and_ever_fewer_later():
    counts = [sum(u // 100 == hundred for u in due(1, 400)) for hundred in range(4)]
    assert due(1, 24) == list(range(24))
    assert counts[0] > 3 * counts[2] and counts[1] >= counts[2] == counts[3] >= 2


def test_a_given_distance_is_kept_after_the_first_updates():
    assert due(100, 400) == [*range(FIRST), 100, 200, 300]


@pytest.mark.parametrize("every", [1, 50])
def test_large_models_are_digested_more_seldom_and_always_in_recorded_updates(every: int):
    sampling = Sampling(every)
    large = [u for u in range(2_000) if sampling.digests_due(u, 6 * DIGEST_BYTES)]
    small = [u for u in range(2_000) if sampling.digests_due(u, 1024)]
    assert small == due(every, 2_000)
    assert large[:3] == [0, 1, 2] and len(large) < len(small)


SAMPLES = {
    "tensors": [torch.arange(12.0).reshape(3, 4) + i for i in range(5)],
    "pairs with labels": [(torch.arange(48) + i, torch.tensor(i)) for i in range(4)],
    "pairs with plain labels": [(torch.ones(3) * i, i) for i in range(4)],
    "unequal lengths": [torch.ones(i + 1) for i in range(4)],
    "transposed": [torch.arange(6.0).reshape(2, 3).t() + i for i in range(3)],
    "16 bits": [torch.ones(4, dtype=torch.bfloat16) * i for i in range(3)],
    "parameters": [torch.ones(4, requires_grad=True) * (i + 1) for i in range(3)],
    "tables": [{"x": torch.ones(2) * i, "text": "word"} for i in range(3)],
    "empty tensors": [torch.ones(0), torch.ones(0)],
    "words": ["a", "b"],
    "nothing": [],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_read_together_have_the_fingerprints_of_each(name: str):
    assert fingerprint.samples(SAMPLES[name]) == [fingerprint.sample(item) for item in SAMPLES[name]]


def test_collated_rows_have_the_fingerprints_of_their_samples():
    batch = SAMPLES["pairs with labels"]
    columns = [torch.stack([pair[i] for pair in batch]) for i in range(2)]
    assert fingerprint.rows(columns) == fingerprint.samples(batch)
    assert len(set(fingerprint.samples(batch))) == len(batch)


def test_rows_without_any_element_have_the_fingerprint_of_an_empty_sample():
    empty = torch.ones(2, 0)
    assert fingerprint.rows([empty]) == [fingerprint.sample(empty[0])] * 2


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        ((torch.ones(2), torch.tensor(1)), True),
        ({"x": [torch.ones(2)]}, True),
        ((torch.ones(2), 1), False),
        ((torch.ones(2), "word"), False),
        ((), False),
    ],
)
def test_only_samples_made_of_tensors_are_read_from_their_batch(sample: object, told: bool):
    assert fingerprint.only_tensors(sample) is told
