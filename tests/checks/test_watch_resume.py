"""What is said of a resumed run, from the facts of both its legs."""

from __future__ import annotations

from typing import Any

import pytest

from ddaudit import packs
from ddaudit.engine.judge import judge
from ddaudit.evidence import ResumeFacts, TrainingTrace, WatchedScript
from ddaudit.findings import Status
from ddaudit.runbook.model import PlannedStep

CHECK = packs.load(entries=False, environment=False).registry.checks["script.resume"]
STEP = PlannedStep(id="script", title="", source="test", runbook="test")
TRACE = TrainingTrace(facts={"job": {"source": "script"}, "ranks": [], "steps": []})
WHOLE: dict[str, Any] = {
    "earlier": "watch-1", "path": "/ck/last.pt", "saved_update": 30,
    "areas": ("model", "optimizer", "rng", "scheduler"), "earlier_areas": ("model", "optimizer", "scheduler"),
    "mid_epoch": True, "samples_before": 320, "samples_after": 320, "samples_repeated": 0, "equal_positions": False,
    "lr_first": 0.001, "lr_start": (0.001, 0.002), "lr_before": 0.0102, "lr_after": 0.01, "lr_expected": 0.01,
    "optimizer_steps_before": 30, "optimizer_steps_after": 31, "position_stored": True,
}  # fmt: skip


def said(**changed: Any) -> set[str]:
    facts = ResumeFacts(**{**WHOLE, **changed})
    found = judge(CHECK, {"training": TRACE, "script": WatchedScript(resume=facts)}, step=STEP)
    assert {f.status for f in found} <= {Status.PASS, Status.FAIL}
    return {f.id for f in found if f.bad}


def test_an_exact_resume_is_quiet():
    assert said() == set()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"areas": ("model", "scheduler")}, {"ckpt.optimizer-missing"}),
        ({"optimizer_steps_after": 1}, {"resume.optimizer-reset"}),
        (
            {"samples_repeated": 300, "ranks_repeating": (0, 1), "order_changed": False},
            {"resume.data-repeated", "ckpt.sampler-position-ignored"},
        ),
        (
            {"samples_repeated": 150, "ranks_repeating": (1,), "order_changed": True, "position_stored": False},
            {"resume.data-order-changed", "ckpt.sampler-missing"},
        ),
        (
            {"samples_repeated": 150, "ranks_repeating": (1,), "order_changed": True, "ranks_loading_others": (1,)},
            {"resume.loader-state-of-rank0"},
        ),
        (
            {"samples_repeated": 300, "ranks_repeating": (0, 1), "ranks_loading_others": (1,)},
            {"resume.data-repeated", "ckpt.sampler-position-ignored"},
        ),
        ({"samples_repeated": 0, "ranks_loading_others": (1,)}, set()),
        ({"equal_positions": True}, {"resume.loader-state-of-rank0", "ckpt.sampler-shards-missing"}),
        ({"lr_after": 0.001}, {"resume.lr-reset"}),
        ({"lr_after": 0.005}, {"resume.lr-jump"}),
        ({"lr_after": 0.001, "areas": ("model", "optimizer", "rng")}, {"resume.lr-reset", "ckpt.scheduler-missing"}),
        ({"rng_equal": False}, {"resume.rng-changed"}),
        (
            {"earlier_areas": ("model", "rng", "scaler"), "areas": ("model",)},
            {"ckpt.rng-missing", "ckpt.scaler-missing"},
        ),
        ({"mid_epoch": False, "order_changed": True}, {"resume.data-order-changed"}),
        ({"mid_epoch": False, "epoch_again": True, "samples_repeated": 384}, {"resume.data-repeated"}),
        ({"optimizer_equal": False}, {"resume.optimizer-state-wrong"}),
        ({"params_equal": False}, {"resume.not-exact"}),
        ({"rng_of_rank": (0, 0)}, {"resume.rng-changed"}),
        ({"lr_soon": (0.01, 0.001), "lr_pace": 0.99}, {"resume.lr-reset"}),
        (
            {"first_difference": 34, "first_differs_in": "loss", "rng_equal": True, "optimizer_equal": True},
            {"resume.not-exact"},
        ),
        (
            {"tested": True, "first_difference": 31, "first_differs_in": "samples"},
            {"resume.data-order-changed"},
        ),
        ({"tested": True, "first_difference": 31, "first_differs_in": "learning rate"}, {"resume.lr-jump"}),
    ],
)
def test_each_fault_has_its_name(changed: dict[str, Any], expected: set[str]):
    assert said(**changed) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"rng_equal": False, "rng_of_rank": (0, 1)},
        {"first_difference": 31, "first_differs_in": "samples"},
        {"lr_soon": (0.01, 0.02, 0.03), "lr_pace": 1.5},
        {"lr_soon": (0.01, 0.0098), "lr_pace": 0.99},
        {"lr_soon": (0.0102, 0.003), "lr_pace": 1.0, "lr_after": 0.0102, "lr_expected": None},
        {"lr_after": 0.003, "lr_saved": 0.003, "lr_expected": None},
        {"optimizer_equal": True, "params_equal": True, "rng_of_rank": (0, 1)},
    ],
)
def test_what_a_right_resume_may_show_is_no_fault(changed: dict[str, Any]):
    """Making a loader draws a seed after states were put back, a warm-up moves fast by itself, and a milestone may lie
    at the checkpoint or soon after it."""
    assert said(**changed) == set()


def test_a_schedule_that_goes_on_without_stored_state_is_no_fault():
    """It may be a function of the stored step."""
    assert said(areas=("model", "optimizer", "rng")) == set()


def test_without_an_earlier_run_nothing_is_judged():
    found = judge(CHECK, {"training": TRACE, "script": WatchedScript()}, step=STEP)
    assert [f.status for f in found] == [Status.SKIP]
