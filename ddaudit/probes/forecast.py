"""Forecasts from what the steps before it measured, or from a job file and a hardware description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.evidence.forecast import ForecastFacts
from ddaudit.registry import probe

__all__ = ["ForecastParams", "forecast"]


class ForecastParams(BaseModel):
    """``to`` lists numbers of devices. ``job`` and ``set`` name a job file and settings that win over it; without one
    the reference model of the run is forecast. ``hardware`` is a description file or the name of one that ships with
    ddaudit; with a job it stands alone where ``measured`` is false."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: tuple[int, ...] = Field(min_length=1, max_length=64)
    parallel: Literal["data", "sharded", "tensor", "pipeline", "expert", "context", "auto"] | None = None
    scaling: Literal["weak", "strong"] = "weak"
    job: str | None = None
    set: Mapping[str, int | float | str | bool] = Field(default_factory=dict)
    hardware: str | None = None
    critical_batch: float | None = Field(default=None, gt=0)
    measured: bool = True


@probe("forecast", produces=[ForecastFacts], params=ForecastParams, where="host")
def forecast(context: ProbeContext, params: ForecastParams) -> None:
    """Records predictions of step time, speedup, limiter and memory by number of devices. Touches no device.

    Raises:
        UsageProblem: nothing to forecast or to calibrate from.
        EvidenceProblem: no step of the run can be used.
    """
    from ddaudit.forecast.measured import read_run
    from ddaudit.forecast.outlook import Question, answer
    from ddaudit.job import load_job

    job = load_job(Path(params.job).expanduser(), params.set) if params.job else None
    run = replace(read_run(context.run_dir), facts=context.facts) if params.measured else None
    question = Question(params.to, params.parallel, params.scaling, params.critical_batch)
    context.events.emit_evidence(answer(question, run, job, params.hardware))
