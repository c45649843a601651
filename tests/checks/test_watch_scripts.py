"""Judgements of watched scripts from traces made by hand: what updates wait for, jumps of the loss, how a run ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddaudit.api import TrainingTrace, WatchedScript
from ddaudit.engine.judge import judge
from ddaudit.evidence import WatchedRank
from ddaudit.runbook.model import PlannedStep
from tests.checks.traces import REGISTRY, trace

STEPS = 24
STEP = PlannedStep(id="script", title="", source="test", runbook="test")
BIG = {"source": "script", "parallel": "data", "dp": 2, "parameters": 4_000_000}


def said(check: str, given: TrainingTrace, script: WatchedScript) -> list[str]:
    """``STATUS id`` of each finding."""
    found = judge(REGISTRY.checks[check], {"training": given, "script": script}, step=STEP)
    return [f"{f.status.value} {f.id}" for f in found]


def script(**told: Any) -> WatchedScript:
    """Two ranks; keyword arguments go into each of them."""
    return WatchedScript(ranks=tuple(WatchedRank(rank=r, world_size=2, **told) for r in range(2)), cores=8)


def run(job: dict[str, Any] | None = None, **series: Any) -> TrainingTrace:
    """Updates of 100 ms that wait for nothing."""
    told = {"step_s": 0.1, "input_s": 0.001, "backward_s": 0.04, "comm_wait_s": 0.0, "runqueue_s": 0.0, **series}
    return trace(2, STEPS, job=BIG if job is None else job, **told)


def pauses(*first: int) -> np.ndarray:
    """Collections of 60 ms in every sixth update of each rank, from its ``first``."""
    table = np.zeros((2, STEPS))
    for rank, start in enumerate(first):
        table[rank, start::6] = 0.06
    return table


REDUCED = ({"comm_s": 0.07, "exposed_s": 0.06},)


@pytest.mark.parametrize(
    ("given", "told", "wanted"),
    [
        (run(), {}, "PASS"),
        (run(gc_s=pauses(0, 3)), {}, "WARN perf.gc-uncoordinated"),
        (run(gc_s=pauses(0, 0)), {}, "PASS"),
        (run(tiny_calls=40, tiny_s=0.04), {}, "WARN perf.forced-sync"),
        (run(tiny_calls=2, tiny_s=0.04), {}, "PASS"),
        (run(tiny_calls=40, tiny_s=[[0.0], [0.06]]), {}, "PASS"),
        (run(synced_passes=1), {"reductions": REDUCED}, "WARN perf.communication-bound"),
        (run({**BIG, "parameters": 1000}, synced_passes=1), {"reductions": REDUCED}, "PASS"),
        (run(comm_wait_s=[[0.001], [0.08]]), {}, "WARN perf.straggler-rank"),
        (run(step_s=0.2, backward_s=[[0.15], [0.03]]), {}, "WARN perf.straggler-rank"),
        (run(step_s=0.2, backward_s=[[0.15], [0.03]], runqueue_s=[[0.0], [0.09]]), {}, "PASS"),
    ],
)
def test_what_an_update_waits_for_is_named_where_it_is_no_chance(
    given: TrainingTrace, told: dict[str, Any], wanted: str
):
    """A rank for which the others wait is named; small data, few calls and queues for cores accuse nothing."""
    (finding,) = said("script.cost", given, script(**told))
    assert finding.startswith(wanted)


def losses(*changed: tuple[int, float]) -> np.ndarray:
    values = 2.0 * 0.97 ** np.arange(STEPS)
    for at, value in changed:
        values[at] = value
    return values


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (losses(), ["PASS script.loss"]),
        (losses((14, 30.0)), ["WARN loss.spike", "PASS script.loss"]),
        (losses((14, 2.5)), ["PASS script.loss"]),
        (losses(*((i, 30.0) for i in range(14, STEPS))), ["WARN loss.spike", "FAIL loss.diverged"]),
    ],
)
def test_a_jump_of_the_loss_is_told_from_running_away(values: np.ndarray, wanted: list[str]):
    optimizers = ({"number": 0, "updates": STEPS},)
    found = said("script.loss", run(loss_raw=values, grad_norm=1.0), script(optimizers=optimizers))
    assert [x if x.startswith(("WARN", "FAIL")) else "PASS script.loss" for x in found] == wanted


@pytest.mark.parametrize(
    ("ended", "wanted"),
    [
        ({"exit_code": 0}, "PASS"),
        ({"exit_code": 1, "stacks": {"0": ('File "distributed_c10d.py", line 1',)},
          "guards": {"0": "train.py:9 under `if rank == 0`"}}, "FAIL hang.rank-conditional-collective"),
        ({"hang_s": 30.0, "stacks": {"0": ('File "fetch.py", line 5',)}}, "FAIL hang.loader"),
        ({"exit_code": 1}, "SKIP"),
    ],
)  # fmt: skip
def test_how_a_script_ended_is_told_from_stacks_and_the_source(ended: dict[str, Any], wanted: str):
    optimizers = ({"number": 0, "updates": STEPS},)
    notes = {"ended": "exit"} if ended.get("exit_code") == 0 else {}
    told = script(optimizers=optimizers, notes=notes).model_copy(update=ended)
    (finding,) = said("script.end", run(), told)
    assert finding.startswith(wanted)


@pytest.mark.parametrize(("stored", "wanted"), [(STEPS, "PASS"), (2 * STEPS, "FAIL step.counted-in-micro-batches")])
def test_a_run_stopped_early_by_its_own_count_of_updates_is_not_said_to_count_micro_batches(stored: int, wanted: str):
    """Half of the step limit may also be where the script was told to stop: its checkpoint's step number decides."""
    saved = {"action": "save", "update": STEPS, "numbers": {"global_step": stored}, "areas": ["model"]}
    limit = {"kind": "updates", "value": 2 * STEPS, "source": "option --max-steps"}
    watched = script(checkpoints=(saved,), claims=(limit,)).model_copy(update={"exit_code": 0})
    (finding,) = said("script.step-count", run(micro_batches=2.0), watched)
    assert finding.startswith(wanted)
