"""Traces of trainings that look odd and are right, beside the faults that they resemble."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddaudit.api import Array, TrainingTrace, WatchedScript
from ddaudit.evidence import WatchedRank
from tests.checks.test_watch_scripts import said
from tests.checks.traces import trace

STEPS = 24
JOB = {"source": "script", "parallel": "data", "dp": 2, "parameters": 1000}


def watched(job: dict[str, Any] | None = None, lists: dict[str, Any] | None = None, **series: Any) -> TrainingTrace:
    """A trace of two ranks; ``lists`` are arrays [rank, step, slot]."""
    made = trace(2, STEPS, job={**JOB, **(job or {})}, **series)
    arrays = {k: Array(np.asarray(v, dtype=np.int64), "1", ("rank", "step", "slot")) for k, v in (lists or {}).items()}
    return TrainingTrace(facts=made.facts, arrays={**made.arrays, **arrays})


def script(loader: dict[str, Any] | None = None, starts: Any = None) -> WatchedScript:
    """Two ranks with one loader each; ``starts`` are the digests of the parameters they begin with."""
    first = [(), ()] if starts is None else starts
    loaders = () if loader is None else (loader,)
    ranks = (
        WatchedRank(
            rank=r, world_size=2, start_digests=tuple(first[r]), loaders=loaders, optimizers=({"updates": STEPS},)
        )
        for r in range(2)
    )
    return WatchedScript(ranks=tuple(ranks), cores=8)


def digests(*same: int, apart: tuple[int, ...] = (), steps: int = STEPS) -> np.ndarray:
    """Digests [rank, step, parameter]: equal on both ranks, except for the columns in ``apart``."""
    table = np.tile(np.arange(1, len(same) + len(apart) + 1), (2, steps, 1)) * 1000 + np.arange(steps)[None, :, None]
    table[1][:, list(apart)] += 500_000
    return table


def uneven(first: int, second: int) -> np.ndarray:
    """Epochs [rank, step, slot] of ranks that make so many updates in each epoch."""
    return np.array([[[column // length] for column in range(STEPS)] for length in (first, second)])


@pytest.mark.parametrize(
    ("ends", "from_step", "wanted"),
    [
        ((9, 9), 9, "FAIL sync.missing-on-step"),
        ((11, 9), 9, "PASS"),
        ((11, 9), 5, "FAIL sync.missing-on-step"),
    ],
)
def test_updates_are_compared_only_until_ranks_end_an_epoch_apart(ends: tuple[int, int], from_step: int, wanted: str):
    """With Join a rank may leave an epoch early; its next update is then another one than its peers'."""
    grads = digests(0, 1)
    grads[1, from_step:] += 500_000
    given = watched(lists={"grad_digests": grads, "sample_epoch": uneven(*ends)}, last_synced=0.0)
    (finding,) = said("script.sync", given, script())
    assert finding.startswith(wanted)


@pytest.mark.parametrize(
    ("starts", "third", "wanted"),
    [
        ([(1, 2, 3, 4), (1, 2, 7, 8)], "router.weight", "SKIP"),
        ([(1, 2, 3, 4), (1, 2, 3, 8)], "expert.0.bias", "SKIP"),
        ([(1, 2, 3, 4), (1, 2, 3, 8)], "expert.0.norm.weight", "SKIP"),
        ([(1, 2, 3, 4), (1, 2, 3, 8)], "router.weight", "FAIL sync.params-not-reduced"),
        ([(1, 2, 3, 4), (1, 2, 3, 4)], "expert.0.bias", "FAIL sync.params-not-reduced"),
        ([(1, 2, 3, 4), (5, 6, 7, 8)], "expert.0.bias", "FAIL sync.params-not-reduced"),
    ],
)
def test_experts_of_a_rank_are_told_from_parameters_that_nobody_reduces(
    starts: list[tuple[int, ...]], third: str, wanted: str
):
    given = watched(
        {"parallel": None}, lists={"grad_digests": digests(0, 1, apart=(2, 3)), "sample_epoch": uneven(9, 9)}
    )
    told = script({"sampler": {"distributed": True, "num_replicas": 2}}, starts)
    names = ("shared.weight", "shared.bias", third, "expert.0.weight")
    told = told.model_copy(update={"ranks": tuple(r.model_copy(update={"parameters": names}) for r in told.ranks)})
    (finding,) = said("script.sync", given, told)
    assert finding.startswith(wanted)


def reads(orders: list[list[int]], each: int = 4) -> dict[str, np.ndarray]:
    """Samples of one epoch, ``each`` of them in an update."""
    table = np.full((2, STEPS, each), -1)
    epochs = np.full((2, STEPS, each), -1)
    for rank, order in enumerate(orders):
        rows = len(order) // each
        table[rank, :rows], epochs[rank, :rows] = np.reshape(order, (rows, each)), 0
    return {"sample_index": table, "sample_ids": table, "sample_epoch": epochs}


def loader(batches: int, samples: int, **sampler: Any) -> dict[str, Any]:
    return {"number": 0, "samples": samples, "batch_size": 4, "batches": batches, "drop_last": False, "finished": [0],
            "batches_read": {"0": batches}, "sampler": {"type": "Sampler", **sampler}}  # fmt: skip


HALVES = [list(range(40)), list(range(40, 80))]
PADDED = [[*HALVES[0], 40, 41, 42, 43], [*HALVES[1], 0, 1, 2, 3]]
DRAWN = [np.random.default_rng(rank).integers(0, 40, 80).tolist() for rank in (0, 1)]


@pytest.mark.parametrize(
    ("orders", "wanted"),
    [
        (HALVES, "PASS"),
        (PADDED, "PASS"),
        (DRAWN, "SKIP"),
        ([DRAWN[0], DRAWN[0]], "FAIL data.ranks-overlap"),
        ([HALVES[0], HALVES[0]], "FAIL data.ranks-overlap"),
        ([HALVES[0], HALVES[0][::-1]], "FAIL data."),
    ],
)
def test_padding_and_drawing_with_replacement_are_told_from_ranks_that_share(orders: list[list[int]], wanted: str):
    """A last batch made full again by samples from the start is no overlap; equal draws on both ranks are one."""
    given = watched(lists=reads(orders))
    (finding,) = said("script.shards", given, script(loader(len(orders[0]) // 4, 80)))
    assert finding.startswith(wanted)


@pytest.mark.parametrize(
    ("calls", "loaded", "wanted"), [(4.0, False, "PASS"), (0.1, False, "FAIL loss.diverged"), (4.0, True, "FAIL loss.")]
)
def test_the_growing_loss_of_an_agent_that_acts_between_updates_is_not_called_diverged(
    calls: float, loaded: bool, wanted: str
):
    """Values that a model estimates for itself grow with what it learns; a loader's data do not."""
    lists = {"sample_epoch": uneven(30, 30)} if loaded else {}
    growing = 0.2 * 1.2 ** np.arange(STEPS)
    (finding,) = said("script.loss", watched(lists=lists, loss_raw=growing, free_calls=calls, grad_norm=1.0), script())
    assert finding.startswith(wanted)


@pytest.mark.parametrize(
    ("every", "call", "wanted"),
    [
        (4, "all_reduce", "SKIP"),
        (4, "all_gather", "FAIL sync.missing-on-step"),
        (STEPS, "all_reduce", "FAIL sync.missing-on-step"),
        (1, "all_reduce", "FAIL sync.missing-on-step"),
    ],
)
def test_models_that_are_averaged_every_few_updates_need_no_equal_gradients(every: int, call: str, wanted: str):
    """One exchange of the first weights is no averaging, gathered metrics are none, and one in every update should have
    made gradients equal."""
    moved = np.where(np.arange(STEPS) % every == 0, 4000.0, 0.0)
    lists = {"grad_digests": digests(apart=(0, 1)), "param_digests": digests(apart=(0, 1))}
    told = script({"sampler": {"distributed": True, "num_replicas": 2}})
    sums = {call: (STEPS, float(moved.sum()))}
    told = told.model_copy(update={"ranks": tuple(r.model_copy(update={"collectives": sums}) for r in told.ranks)})
    (finding,) = said("script.sync", watched({"parallel": None}, lists=lists, collective_bytes=moved), told)
    assert finding.startswith(wanted)


@pytest.mark.parametrize(("growth", "wanted"), [(1.4, "PASS"), (1.0, "FAIL loss.diverged")])
def test_a_loss_that_runs_away_at_the_end_of_a_range_test_is_what_the_test_looks_for(growth: float, wanted: str):
    values = np.where(np.arange(STEPS) < 16, 2.0, 60.0)
    given = watched(loss_raw=values, grad_norm=1.0, lr=1e-4 * growth ** np.arange(STEPS))
    found = said("script.loss", given, script())
    assert found[-1].startswith(wanted)


@pytest.mark.parametrize(
    ("others", "wanted"),
    [
        ([range(8)], "FAIL data.train-val-leak"),
        ([range(8), range(60, 80)], "PASS"),
        ([range(8), range(30, 50)], "FAIL data.train-val-leak"),
    ],
)
def test_a_loader_of_training_samples_beside_a_validation_loader_measures_training(others: list[range], wanted: str):
    first = loader(10, 80) | {"dataset_id": 1, "own_dataset_id": 2}
    beside = [
        loader(2, 20) | {"number": i, "dataset_id": 1, "own_dataset_id": 2 + i} for i in range(1, len(others) + 1)
    ]
    seen = {str(i): {"indices": list(part), "prints": []} for i, part in enumerate(others, 1)}
    both = script().model_copy(
        update={"ranks": tuple(
            WatchedRank(rank=r, world_size=2, loaders=(first, *beside), evaluated=seen) for r in range(2)
        )}
    )  # fmt: skip
    (finding,) = said("script.leak", watched(lists=reads([list(range(20)), list(range(20, 40))])), both)
    assert finding.startswith(wanted)


@pytest.mark.parametrize(("variable", "wanted"), [(4, "PASS"), (8, "FAIL accum.unexpected")])
def test_an_accumulation_shared_out_over_the_ranks_is_as_claimed(variable: int, wanted: str):
    claims = (
        {"kind": "accumulation", "value": 8, "source": "option --gradient_accumulation_steps"},
        {"kind": "accumulation", "value": variable, "source": "args.gradient_accumulation_steps in main"},
    )
    told = WatchedScript(ranks=(WatchedRank(rank=0, world_size=2, claims=claims), WatchedRank(rank=1, world_size=2)))
    (finding,) = said("script.accumulation", watched(micro_batches=4.0), told)
    assert finding.startswith(wanted)


@pytest.mark.parametrize(
    ("sampler", "wanted"),
    [
        ({"type": "ByLength"}, "SKIP"),
        ({"type": "ByLength", "seed": 0}, "WARN data.no-reshuffle"),
        ({"type": "RandomSampler"}, "WARN data.no-reshuffle"),
        ({"type": "DistributedSampler", "distributed": True, "shuffle": False}, "SKIP"),
    ],
)
def test_an_order_that_repeats_is_a_fault_where_the_sampler_shuffles(sampler: dict[str, Any], wanted: str):
    once = [[7, 3, 5, 1, 0, 6, 2, 4], [15, 11, 13, 9, 8, 14, 10, 12]]
    lists = reads([[*part, *part] for part in once])
    lists["sample_epoch"][:, 2:4] = 1
    twice = loader(2, 16, **sampler) | {"finished": [0, 1], "batches_read": {"0": 2, "1": 2}}
    (finding,) = said("script.reshuffled", watched(lists=lists), script(twice))
    assert finding.startswith(wanted)
