"""The global batch is spread over replicas, never over ranks that share one; misfits are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ddaudit.errors import UsageProblem
from ddaudit.training.params import TrainParams, geometry


@pytest.mark.parametrize(
    ("ranks", "params", "factors"),
    [
        (1, {}, (1, 16, 1)),
        (4, {"parallel": "data", "micro_batch": 2}, (4, 2, 2)),
        (2, {"parallel": "tensor"}, (1, 16, 1)),
        (4, {"parallel": "fsdp-tp"}, (2, 8, 1)),
        (4, {"parallel": "hsdp"}, (4, 4, 1)),
        (2, {"parallel": "pipeline"}, (1, 4, 4)),
        (2, {"parallel": "expert"}, (2, 8, 1)),
        (2, {"parallel": "context"}, (1, 16, 1)),
    ],
)
def test_global_batch_factors(ranks: int, params: dict[str, Any], factors: tuple[int, int, int]) -> None:
    layout = geometry(TrainParams(**params), ranks)
    assert (layout.dp, layout.micro_batch, layout.accumulation) == factors
    assert layout.world_size == ranks


@pytest.mark.parametrize(
    ("ranks", "params", "complaint"),
    [
        (2, {}, "single runs on 1 rank, not 2"),
        (3, {"parallel": "data"}, "global_batch 16 is not 3 replicas x 5 samples x 1 passes"),
        (2, {"parallel": "data", "micro_batch": 3, "accumulation": 2}, "is not 2 replicas x 3 samples x 2"),
        (3, {"parallel": "expert", "global_batch": 12}, "4 experts do not spread evenly over 3 ranks"),
        (2, {"parallel": "tensor", "experts": 4}, "experts are not supported under tensor"),
        (2, {"parallel": "pipeline", "variant": "interleaved", "accumulation": 1}, "needs a multiple of 2"),
        (1, {"dataset_samples": 8}, "less than one global batch"),
        (2, {"parallel": "tensor", "dropout": 0.1}, "dropout under tensor"),
    ],
)
def test_misfits_are_refused_before_anything_starts(ranks: int, params: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageProblem, match=complaint):
        geometry(TrainParams(**params), ranks)


@pytest.mark.parametrize(
    "params", [{"parallel": "data", "variant": "gpipe"}, {"checkpoint": "step:0"}, {"lr": -1.0}, {"colour": "red"}]
)
def test_wrong_parameters_are_named(params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TrainParams(**params)


def test_checkpoint_words_become_a_number_of_updates() -> None:
    assert TrainParams().checkpoint_after is None
    assert TrainParams(checkpoint="end", steps=7).checkpoint_after == 7
    assert TrainParams(checkpoint="step:3").checkpoint_after == 3
