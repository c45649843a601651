"""Lateness, noise scale and the fit: estimates against numbers that are known."""

from __future__ import annotations

import numpy as np
import pytest

from ddaudit.forecast.batch import batch_advice, noise_scale, reached, steps_to_loss
from ddaudit.forecast.fit import fit
from ddaudit.forecast.stragglers import expected_excess, spread_of


def test_the_mean_of_the_largest_of_n_is_that_of_the_draws():
    draws = np.random.default_rng(1).exponential(0.1, 4000)
    spread = spread_of([float(v) for v in draws])
    for ranks in (2, 8, 32):
        largest = float(np.mean(np.max(np.random.default_rng(2).choice(draws, (20000, ranks)), axis=1)))
        assert expected_excess(spread, ranks) == pytest.approx(largest - float(np.mean(draws)), rel=0.12)


def test_lateness_grows_with_ranks_up_to_the_largest_that_was_seen():
    spread = spread_of([0.0, 0.01, 0.02, 0.05, 0.0, 0.01, 0.02, 0.3])
    values = [expected_excess(spread, n) for n in (1, 2, 4, 64, 4096)]
    assert values[0] == 0
    assert values == sorted(values)
    assert values[-1] < 0.3
    assert spread_of([0.1] * 7) == ()


def test_the_noise_scale_of_known_gradients_is_found():
    """Gradients G + noise / sqrt(b): |G|^2 = 4, tr(Sigma) = 4 * 100, so B_simple = 100."""
    rng = np.random.default_rng(3)
    size, ranks, local = 400, 8, 16
    signal = np.full(size, (4 / size) ** 0.5)
    own, whole = [], []
    for _ in range(200):
        parts = signal + rng.normal(0, (400 / size / local) ** 0.5, (ranks, size))
        own.append(float(np.mean(np.sum(parts**2, axis=1))))
        whole.append(float(np.sum(np.mean(parts, axis=0) ** 2)))
    found = noise_scale(own, whole, local, local * ranks)
    assert found is not None
    assert found.samples == pytest.approx(100, rel=0.1)
    assert found.low <= found.samples <= found.high


def test_equal_batches_few_steps_or_a_wrong_sign_give_no_noise_scale():
    assert noise_scale([1.0] * 20, [1.0] * 20, 8, 8) is None
    assert noise_scale([1.0] * 4, [0.5] * 4, 8, 16) is None
    assert noise_scale([1.0] * 20, [2.0] * 20, 8, 16) is None


def test_at_the_critical_batch_an_update_count_is_twice_the_least():
    assert steps_to_loss(1000, 1000) == 2
    assert steps_to_loss(1e9, 1000) == pytest.approx(1, rel=1e-5)
    assert reached([3.0, 2.0, 1.0, 1.0, 1.0], 1.0) == 5
    assert reached([3.0, 2.0], 1.0) is None


def test_a_larger_batch_names_both_rules_until_the_optimizer_is_known():
    both = batch_advice(512, 4096, None, 5, critical=1900)
    text = " ".join(both.lines)
    assert "x8 linear" in text
    assert "x2.83 square root" in text
    assert "up to 40" in text
    assert "critical batch of 1,900" in text
    assert "linear rule" in batch_advice(512, 4096, "linear", None).lines[0]
    assert batch_advice(64, 64, "sqrt", 10).ratio == 1


def test_a_fit_recovers_factors_that_the_rows_decide_and_keeps_the_prior_for_the_rest():
    def predict(factors):
        return [3 * factors["a"] / n + 0.5 * factors["b"] for n in (1, 2, 4)]

    truth = predict({"a": 2.0, "b": 0.5})
    found = fit(predict, truth, {"a": 2.0, "b": 2.0}, noise=0.001)
    assert found.factors["a"] == pytest.approx(2.0, rel=0.01)
    assert found.factors["b"] == pytest.approx(0.5, rel=0.03)
    blind = fit(lambda f: [f["a"]], [2.0], {"a": 2.0, "unseen": 0.5})
    assert blind.factors["unseen"] == pytest.approx(1.0)
    assert blind.deviations["unseen"] == pytest.approx(0.5)


def test_one_wild_row_bends_a_robust_fit_little():
    def predict(factors):
        return [factors["a"]] * 9

    rows = [1.0] * 8 + [10.0]
    plain = fit(predict, rows, {"a": 3.0}).factors["a"]
    robust = fit(predict, rows, {"a": 3.0}, robust=1.5).factors["a"]
    assert abs(robust - 1) < 0.02 < abs(plain - 1)
