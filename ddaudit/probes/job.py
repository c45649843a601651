"""Reads a job file and records what it says. Touches no device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.evidence.job import JobPlan
from ddaudit.job import job_plan, load_job
from ddaudit.registry import probe

__all__ = ["JobParams", "job"]


class JobParams(BaseModel):
    """``file`` is the job file; ``set`` maps dotted keys (``"layout.tp"``) to values that win over the file's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str = Field(min_length=1)
    set: Mapping[str, int | float | str | bool] = Field(default_factory=dict)


@probe("job", produces=[JobPlan], params=JobParams, where="host")
def job(context: ProbeContext, params: JobParams) -> None:
    """Records the planned job and its known-good baseline in numbers: N, B_local, A, B_eff, tokens per update, updates
    per epoch, warm-up, and the memory floor of one rank.
    """
    loaded = load_job(Path(params.file), params.set)
    context.events.emit_evidence(job_plan(loaded))
