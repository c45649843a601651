"""``job.toml``: the one file that describes a planned job, read by every command that judges or predicts one."""

from __future__ import annotations

from ddaudit.job.example import EXAMPLE
from ddaudit.job.load import LoadedJob, load_job, parse_job
from ddaudit.job.model import JobFile, Layout, ModelShape, RunSettings
from ddaudit.job.numbers import job_plan, numbers

__all__ = [
    "EXAMPLE",
    "JobFile",
    "Layout",
    "LoadedJob",
    "ModelShape",
    "RunSettings",
    "job_plan",
    "load_job",
    "numbers",
    "parse_job",
]
