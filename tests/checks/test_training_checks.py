"""Judgements of training traces: red where the numbers are wrong, quiet where they only look odd."""

from __future__ import annotations

import numpy as np
import pytest

from tests.checks.traces import asked, ids, sharded_ids, trace

FALLING = np.linspace(3.4, 1.4, 40)
KNOWN = {"entropy_nats": 1.2, "loss_start_nats": 3.4657}


def noisy(curve: np.ndarray, sigma: float = 0.05, seed: int = 0) -> np.ndarray:
    return curve + np.random.default_rng(seed).normal(0, sigma, curve.shape)


# --- loss -----------------------------------------------------------------------------------------------------------


def test_a_right_curve_passes_every_loss_check():
    good = trace(1, 40, job=KNOWN, loss_nats=noisy(FALLING), grad_norm=1.0)
    for check in ("finite", "start", "descends", "floor", "spikes", "gradients"):
        assert [s.split()[0] for s in ids(f"loss.{check}", good)] == ["PASS"], check


@pytest.mark.parametrize("seed", range(5))
def test_noise_around_a_right_curve_is_no_spike(seed: int):
    assert ids("loss.spikes", trace(1, 40, loss_nats=noisy(FALLING, 0.3, seed))) == ["PASS loss.spikes"]


@pytest.mark.parametrize(
    ("curve", "check", "id"),
    [
        (np.r_[FALLING[:20], np.nan, FALLING[21:]], "finite", "FAIL loss.nan"),
        (np.r_[FALLING[:20], np.inf, FALLING[21:]], "finite", "FAIL loss.nan"),
        (np.full(40, 3.46), "descends", "FAIL loss.flat"),
        (np.linspace(3.4, 8, 40), "descends", "FAIL loss.diverged"),
        (np.linspace(3.4, 0.5, 40), "floor", "FAIL loss.below-entropy"),
        (np.linspace(9.0, 1.4, 40), "start", "FAIL loss.start-off"),
        (np.linspace(0.1, 0.1, 40), "start", "FAIL loss.start-off"),
        (np.r_[FALLING[:20], 6.0, FALLING[21:]], "spikes", "WARN loss.spike"),
    ],
)
def test_a_wrong_curve_is_named(curve: np.ndarray, check: str, id: str):
    job = {**KNOWN, "source": "reference"}
    assert ids(f"loss.{check}", trace(1, 40, job=job, loss_nats=curve)) == [id]


def test_a_curve_without_known_entropy_must_fall_out_of_its_noise():
    assert ids("loss.descends", trace(1, 40, loss_nats=noisy(FALLING))) == ["PASS loss.descends"]
    undecided = asked("loss.descends", trace(1, 40, loss_nats=noisy(np.full(40, 2.0))))
    assert [f.status.value for f in undecided] == ["SKIP"]
    assert "not decided" in undecided[0].text


def test_a_nan_finding_names_rank_and_first_step():
    table = np.tile(FALLING, (2, 1))
    table[1, 7:] = np.nan
    (finding,) = asked("loss.finite", trace(2, 40, job={"source": "reference"}, loss_nats=table))
    assert (finding.where.rank, finding.where.step, finding.first_seen_step) == (1, 7, 7)


def test_a_resumed_run_does_not_have_to_start_at_ln_v():
    late = trace(1, 40, job={**KNOWN, "resumed_from_step": 100}, loss_nats=1.5)
    assert ids("loss.start", late) == ["SKIP loss.start"]


# --- batch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shards", "micro", "each", "text"),
    [
        ([0, 1], 1, 8, "2 * 8 * 1 = 16"),
        ([0, 1], 2, 8, "2 * 4 * 2 = 16"),
        ([0, 0], 1, 16, "1 * 16 * 1 = 16"),
        ([0, 0], 4, 16, "1 * 4 * 4 = 16"),
        ([0, 0, 1, 1], 1, 8, "2 * 8 * 1 = 16"),
        ([0, 1, 2, 3], 1, 4, "4 * 4 * 1 = 16"),
    ],
    ids=["data", "data-accumulated", "tensor", "pipeline", "tensor x sharded", "hybrid sharded"],
)
def test_n_counts_replicas_and_never_the_world(shards: list[int], micro: int, each: int, text: str):
    ranks = len(shards)
    given = trace(
        ranks,
        4,
        job={"global_batch": 16},
        sample_ids=sharded_ids(ranks, 4, each, shards=shards),
        samples=each,
        micro_batches=micro,
    )
    (finding,) = asked("batch.effective", given)
    assert finding.status.value == "PASS"
    assert f"B_eff = N * B_local * A = {text} samples" in finding.text
    assert f"on {ranks} ranks" in finding.text


def test_a_batch_that_is_not_the_configured_one_fails_with_both_numbers():
    given = trace(2, 4, job={"global_batch": 32}, sample_ids=sharded_ids(2, 4, 8), samples=8, micro_batches=1)
    (finding,) = asked("batch.effective", given)
    assert (finding.id, finding.measured, finding.limit) == ("batch.effective-mismatch", 16, 32)


def test_a_short_last_batch_does_not_decide():
    table = sharded_ids(1, 5, 8)
    table[0, 4, 3:] = -1
    given = trace(1, 5, job={"global_batch": 8}, sample_ids=table, samples=[8, 8, 8, 8, 3], micro_batches=1)
    assert ids("batch.effective", given) == ["PASS batch.effective"]


# --- accumulation, sync, learning rate ---


def test_ranks_that_count_differently_are_named():
    table = np.full((2, 6), 4.0)
    table[1, 3] = 3
    (finding,) = asked("accumulation.consistent", trace(2, 6, micro_batches=table))
    assert (finding.id, finding.where.step) == ("accum.count-differs", 3)


def test_a_window_that_is_shorter_on_all_ranks_is_consistent():
    assert ids("accumulation.consistent", trace(2, 3, micro_batches=[4, 4, 2])) == ["PASS accumulation.consistent"]


@pytest.mark.parametrize(
    ("rounds", "id"),
    [
        (1, "PASS sync.frequency"),
        (0, "FAIL sync.missing-on-step"),
        (4, "WARN sync.every-micro-step"),
        (0.97, "FAIL sync.params-not-reduced"),
        ([1, 1, 0, 1], "FAIL sync.missing-on-step"),
    ],
)
def test_sync_rounds_are_held_against_the_need(rounds: object, id: str):
    given = trace(2, 4, job={"grad_syncs_per_step": 1.0, "parallel": "data"}, grad_syncs=rounds)
    assert ids("sync.frequency", given) == [id]


def test_a_kind_that_needs_no_sync_may_do_without():
    given = trace(2, 4, job={"grad_syncs_per_step": 0.0, "parallel": "tensor"}, grad_syncs=0)
    assert ids("sync.frequency", given) == ["PASS sync.frequency"]


@pytest.mark.parametrize(
    ("ticks", "micro", "id"),
    [
        (1, 4, "PASS lr.ticks"),
        (4, 4, "FAIL lr.stepped-per-micro-batch"),
        (2, 4, "FAIL lr.schedule-too-fast"),
        (0, 1, "PASS lr.ticks"),
    ],
)
def test_scheduler_ticks(ticks: int, micro: int, id: str):
    assert ids("lr.ticks", trace(2, 6, scheduler_ticks=ticks, micro_batches=micro)) == [id]


def test_warmup_that_starts_at_zero_is_right():
    lr = np.r_[np.linspace(0, 1, 5), np.ones(5)]
    assert ids("lr.warmup", trace(1, 10, job={"warmup_steps": 4, "lr": 1.0}, lr=lr)) == ["PASS lr.warmup"]


# --- data and replicas ---


def test_tensor_parallel_ranks_may_read_the_same_samples():
    shared = sharded_ids(2, 4, 8, shards=[0, 0])
    given = trace(2, 4, coords=[{"dp": 0, "tp": 0}, {"dp": 0, "tp": 1}], sample_ids=shared)
    assert ids("data.disjoint", given) == ["SKIP data.disjoint"]
    assert ids("data.disjoint", trace(2, 4, sample_ids=shared)) == ["FAIL data.ranks-overlap"]


def test_an_epoch_in_the_order_of_the_last_is_seen_and_a_new_order_is_right():
    first = np.arange(16).reshape(1, 4, 4)
    other = np.random.default_rng(1).permutation(16).reshape(1, 4, 4)
    epoch = [0, 0, 0, 0, 1, 1, 1, 1]
    same = trace(1, 8, sample_ids=np.concatenate([first, first], axis=1), epoch=epoch)
    new = trace(1, 8, sample_ids=np.concatenate([first, other], axis=1), epoch=epoch)
    assert ids("data.reshuffled", same) == ["WARN data.no-reshuffle"]
    assert ids("data.reshuffled", new) == ["PASS data.reshuffled"]
    assert ids("data.reshuffled", trace(1, 8, job={"shuffle": False}, sample_ids=same.sample_ids, epoch=epoch)) == [
        "SKIP data.reshuffled"
    ]


def test_coverage_allows_what_drop_last_leaves_out():
    table = np.r_[np.arange(16), np.arange(16)][None].reshape(1, 8, 4)
    job = {"dataset_samples": 18, "global_batch": 4}
    epoch = [0, 0, 0, 0, 1, 1, 1, 1]
    assert ids("data.coverage", trace(1, 8, job={**job, "drop_last": True}, sample_ids=table, epoch=epoch)) == [
        "PASS data.coverage"
    ]
    assert ids("data.coverage", trace(1, 8, job={**job, "drop_last": False}, sample_ids=table, epoch=epoch)) == [
        "FAIL data.partial-coverage"
    ]


def test_shards_may_differ_where_copies_must_not():
    apart = np.array([[1.0] * 4, [2.0] * 4])
    assert ids("replicas.equal", trace(2, 4, param_digest=apart)) == ["FAIL replica.init-differs"]
    shards = [{"replicate": 0, "shard": 0}, {"replicate": 0, "shard": 1}]
    assert ids("replicas.equal", trace(2, 4, coords=shards, param_digest=apart)) == ["SKIP replicas.equal"]
    late = np.array([[1, 2, 3, 4], [1, 2, 9, 9]], dtype=float)
    (finding,) = asked("replicas.equal", trace(2, 4, param_digest=late))
    assert (finding.id, finding.where.rank, finding.where.step) == ("replica.diverged", 1, 2)


def test_an_update_at_learning_rate_zero_may_change_nothing():
    given = trace(1, 4, update_norm=[0, 1, 1, 1], lr=[0, 0.1, 0.1, 0.1])
    assert ids("replicas.updates", given) == ["PASS replicas.updates"]
    assert ids("replicas.updates", trace(1, 4, update_norm=[1, 0, 1, 1], lr=0.1)) == ["FAIL optim.no-op-step"]


# --- the split of the step ---


def test_the_split_adds_up_and_names_the_largest_term():
    given = trace(2, 6, step_s=0.1, input_s=0.01, forward_s=0.02, backward_s=0.05, optimizer_s=0.01, comm_wait_s=0.03)
    (finding,) = asked("bottleneck.split", given)
    assert finding.status.value == "PASS"
    for part in ("compute 50%", "communication 30%", "input 10%", "unexplained 10%", "60.0 to 90.0 ms"):
        assert part in finding.text


def test_a_loader_that_takes_most_of_the_step_is_a_warning_unless_the_runbook_allows_it():
    given = trace(1, 6, step_s=0.1, input_s=0.06, forward_s=0.04)
    assert ids("bottleneck.split", given) == ["WARN perf.input-bound"]
    assert ids("bottleneck.split", given, bottleneck__input_share={"warn_above": 0.9}) == ["PASS bottleneck.split"]
