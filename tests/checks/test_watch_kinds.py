"""Judgements of watched scripts on kinds of faults that only arrays show: gradients, indices, buffers, shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddaudit.api import Array, TrainingTrace, WatchedScript
from ddaudit.engine.judge import judge
from ddaudit.evidence import WatchedRank
from ddaudit.evidence.series import LISTS
from ddaudit.runbook.model import PlannedStep
from tests.checks.traces import REGISTRY, trace

STEPS = 24
STEP = PlannedStep(id="script", title="", source="test", runbook="test")
ONE_OPTIMIZER = ({"number": 0, "updates": STEPS},)


def said(check: str, given: TrainingTrace, script: WatchedScript) -> list[str]:
    """``STATUS id`` of each finding, PASS and SKIP without the id."""
    found = judge(REGISTRY.checks[check], {"training": given, "script": script}, step=STEP)
    return [f"{f.status.value} {f.id}" if f.bad else f.status.value for f in found]


def script(**told: Any) -> WatchedScript:
    """Two ranks; keyword arguments go into each of them."""
    return WatchedScript(ranks=tuple(WatchedRank(rank=r, world_size=2, **told) for r in range(2)), cores=8)


def run(job: dict[str, Any], arrays: dict[str, Any], **series: Any) -> TrainingTrace:
    """Two ranks, 24 updates."""
    made = trace(2, STEPS, job={"source": "script", **job}, **series)
    more = {}
    for name, table in arrays.items():
        unit, axes, _ = LISTS[name]
        more[name] = Array(np.asarray(table), unit, axes)
    return TrainingTrace(facts=made.facts, arrays={**made.arrays, **more})


def slices(*sizes: float) -> np.ndarray:
    """Gradients at the step, of elements that are as large as told [rank, step, role, element]."""
    signs = np.where(np.arange(STEPS) % 2, 1.0, -1.0)
    return np.broadcast_to(np.asarray(sizes) * signs[None, :, None, None], (2, STEPS, 4, len(sizes)))


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((1e-17, 1e-16, 1e-15, 1e-13, 1e-3, 1e-2), "FAIL grad.vanishing"),
        ((1e-5, 1e-5, 1e-4, 1e-4, 1e-3, 1e-2), "PASS"),
        ((0.0, 0.0, 0.0, 0.0, 1e-3, 1e-2), "PASS"),
        ((1e-14, 1e-3, 1e-3, 1e-2), "PASS"),
        ((float("nan"), float("nan"), 1e-3, 1e-2), "PASS"),
    ],
    ids=["layers", "healthy", "rows not looked up", "a cancelled bias", "not recorded"],
)
def test_gradients_that_vanish_on_their_way_are_told_from_zeros_and_cancelled_biases(
    sizes: tuple[float, ...], wanted: str
):
    table = slices(*sizes).copy()
    table[:, 8:] = np.nan  # later updates are sampled
    given = run({"parallel": "data"}, {"grad_slices": table}, loss_raw=1.0, grad_norm=0.01, lr=0.1)
    assert said("script.loss", given, script(optimizers=ONE_OPTIMIZER)) == [wanted]


FALLING = 2.0 * 0.97 ** np.arange(STEPS)


@pytest.mark.parametrize(
    ("optimizer", "lr", "loss", "wanted"),
    [
        ("AdamW", 1e-9, 2.0, "FAIL loss.flat"),
        ("AdamW", 1e-4, 2.0, "PASS"),
        ("AdamW", 1e-9, FALLING, "PASS"),
        ("AdamW", 1e-9 * np.arange(1, STEPS + 1), 2.0, "PASS"),
        ("SGD", 1e-9, 2.0, "PASS"),
    ],
    ids=["no unit", "a plateau", "falls", "warm-up", "unknown scale"],
)
def test_a_loss_is_called_flat_only_where_the_rate_cannot_move_anything(
    optimizer: str, lr: Any, loss: Any, wanted: str
):
    given = run({"parallel": "data", "optimizer": optimizer}, {}, loss_raw=loss, grad_norm=0.01, lr=lr)
    assert said("script.loss", given, script(optimizers=ONE_OPTIMIZER)) == [wanted]


def shared_out(again: bool) -> dict[str, Any]:
    """Six epochs of four updates of two samples: indices are shared out; data sets differ where ``again``."""
    index, prints = (np.zeros((2, STEPS, 2), dtype=np.int64) for _ in range(2))
    epochs = np.broadcast_to((np.arange(STEPS) // 4)[None, :, None], (2, STEPS, 2)).copy()
    for epoch in range(6):
        order = np.random.default_rng(epoch).permutation(16).reshape(2, 4, 2)
        index[:, epoch * 4 : epoch * 4 + 4] = order
        prints[:, epoch * 4 : epoch * 4 + 4] = 1000 + order + (np.array([0, 500])[:, None, None] if again else 0)
    return {"sample_index": index, "sample_ids": prints, "sample_epoch": epochs}


@pytest.mark.parametrize(("again", "wanted"), [(True, "FAIL data.double-sharded"), (False, "PASS")])
def test_parts_whose_indices_are_shared_out_again_are_told_without_a_known_sampler(again: bool, wanted: str):
    read = {str(epoch): 4 for epoch in range(6)}
    loader = {"number": 0, "samples": 16, "batch_size": 2, "sampler": {"type": "SeedableRandomSampler"},
              "finished": list(range(6)), "batches_read": read}  # fmt: skip
    given = run({"parallel": "data", "dp": 2, "world_size": 2}, shared_out(again))
    assert said("script.shards", given, script(loaders=(loader,))) == [wanted]


@pytest.mark.parametrize(("replicas", "wanted"), [(2, "FAIL data.double-sharded"), (4, "FAIL data.partial-coverage")])
def test_a_sampler_that_parts_for_the_ranks_there_are_and_covers_a_share_of_a_share_is_parted_again(
    replicas: int, wanted: str
):
    """Both ranks together read 16 of 32 samples: shared out by the sampler, and again by what wraps its loader."""
    read = {str(epoch): 4 for epoch in range(6)}
    sampler = {"type": "DistributedSampler", "distributed": True, "num_replicas": replicas}
    loader = {"number": 0, "samples": 32, "batch_size": 2, "sampler": sampler, "finished": list(range(6)),
              "batches_read": read}  # fmt: skip
    given = run({"parallel": "data", "dp": 2, "world_size": 2}, shared_out(False))
    assert said("script.shards", given, script(loaders=(loader,))) == [wanted]


def digests(apart: bool) -> np.ndarray:
    """Gradient digests of a parameter that is split and one that is whole [rank, step, parameter]."""
    table = np.arange(2 * STEPS * 2).reshape(2, STEPS, 2)
    table[1, :, 1] = table[0, :, 1] + apart
    return table


@pytest.mark.parametrize(
    ("apart", "synced", "wanted"),
    [
        (False, 1.0, "SKIP"),
        (True, 1.0, "FAIL sync.params-not-reduced"),
        (False, 0.0, "FAIL sync.missing-on-step"),
    ],
)
def test_sharded_training_must_reduce_before_each_update_and_leave_no_parameter_out(
    apart: bool, synced: float, wanted: str
):
    given = run({"parallel": "sharded"}, {"grad_digests": digests(apart)}, last_synced=synced)
    told = script(replicated=(False, True), parameters=("block.weight", "head.weight"))
    assert said("script.sync", given, told) == [wanted]


@pytest.mark.parametrize(
    ("wrapped", "wanted"),
    [
        ((), "FAIL replica.buffers-differ"),
        (({"broadcast_buffers": False},), "FAIL replica.buffers-differ"),
        (({"broadcast_buffers": True},), "PASS"),
    ],
    ids=["by hand", "told not to share", "shared"],
)
def test_buffers_that_training_changes_must_be_shared_by_somebody(wrapped: Any, wanted: str):
    same = np.broadcast_to(np.arange(STEPS)[None, :, None], (2, STEPS, 2))
    given = run({"parallel": "data", "dp": 2}, {"grad_digests": same, "param_digests": same},
                norm_digest=[[1.0], [2.0]])  # fmt: skip
    assert said("script.replicas", given, script(wrapped=wrapped)) == [wanted]


@pytest.mark.parametrize(
    ("source", "value", "micro", "wanted"),
    [
        ("cfg.grad_accum_steps in main", 4, 1.0, "FAIL accum.unexpected"),
        ("cfg.grad_accum_steps in main", 2, 1.0, "PASS"),
        ("cfg.grad_accum_steps in main", 4, 2.0, "PASS"),
        ("variable accumulated in main", 4, 1.0, "PASS"),
        ("option --grad-accum", 2, 1.0, "FAIL accum.unexpected"),
    ],
    ids=["a setting", "a total for all ranks", "other windows", "a counter", "an option"],
)
def test_a_setting_claims_an_accumulation_where_every_micro_batch_is_stepped(
    source: str, value: int, micro: float, wanted: str
):
    claim = {"kind": "accumulation", "value": value, "source": source}
    given = run({"parallel": "data"}, {}, micro_batches=micro)
    assert said("script.accumulation", given, script(claims=(claim,), optimizers=ONE_OPTIMIZER)) == [wanted]
