"""The ``loader`` probe: what the loader delivers with no model in its way, against what a step needs."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.evidence.costs import LoaderCosts
from ddaudit.registry import probe

if TYPE_CHECKING:
    from ddaudit.probes._model_step import ModelStep

__all__ = ["LoaderParams", "loader"]


class LoaderParams(BaseModel):
    """``updates`` batches are read in each of two passes over the same samples. ``sample_ms`` makes every sample take
    longer, on purpose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: Literal["tiny", "small", "medium", "large"] = "tiny"
    global_batch: int = Field(16, ge=1)
    num_workers: int = Field(0, ge=0, le=64)
    updates: int = Field(12, ge=3, le=10_000)
    sample_ms: float = Field(0.0, ge=0.0, le=1000.0)


@probe("loader", produces=(LoaderCosts,), params=LoaderParams, where="ranks")
def loader(context: ProbeContext, params: LoaderParams) -> None:
    """Reads the same samples twice with no model (cold, then warm), then times passes on a batch from memory.
    Prefetched batches would flatter a short look, so the first tenth and at least one read of each pass are left out.
    Rank 0 speaks for all."""
    from ddaudit.probes._model_step import ModelStep, median_s
    from ddaudit.training.params import TrainParams

    train = TrainParams(
        preset=params.preset,
        global_batch=params.global_batch,
        num_workers=params.num_workers,
        dataset_samples=params.global_batch * params.updates,
    )
    step = ModelStep.of(context, train)
    if params.sample_ms:
        _slow_down(step, params.sample_ms / 1e3)
    cold, warm = (_pass(step, params.updates) for _ in range(2))
    seconds = median_s(step.device, lambda: step.passes(params.global_batch), 5)
    if context.rank == 0:
        costs = LoaderCosts(
            host=context.host,
            workers=params.num_workers,
            updates=params.updates,
            cold_s=cold,
            warm_s=warm,
            step_s=seconds,
        )
        context.events.emit_evidence(costs)


def _slow_down(step: ModelStep, seconds: float) -> None:
    """Makes every sample take so much longer."""
    draw = step.source.draw

    def slow(*given: Any) -> list[int]:
        time.sleep(seconds)
        return draw(*given)

    step.source.draw = slow  # type: ignore[method-assign, assignment]


def _pass(step: ModelStep, updates: int) -> float:
    """Mean seconds of a read over one pass, without the reads that prefetching had done before the clock started."""
    took = []
    for _ in range(updates):
        begin = time.perf_counter()
        step.window()
        took.append(time.perf_counter() - begin)
        step.feed.advance()
    return statistics.mean(took[max(1, updates // 10) :])
