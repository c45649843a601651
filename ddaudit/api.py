"""The only door for packs: everything a check, a probe or a plant needs, and nothing else."""

from __future__ import annotations

from ddaudit.context import ProbeContext
from ddaudit.evidence import (
    SERIES,
    Array,
    ArrayEvidence,
    CheckpointWritten,
    CommandRun,
    Evidence,
    HostLoad,
    Job,
    JobNumbers,
    JobPlan,
    JsonEvidence,
    LaunchFacts,
    Measure,
    Measures,
    Neighbour,
    RankOutcome,
    RankPlace,
    Stream,
    TensorCapture,
    TrainingTrace,
)
from ddaudit.findings import Finding, Remedy, Severity, Status, Where, draft, fail, ok, skip, warn
from ddaudit.job import EXAMPLE as EXAMPLE_JOB
from ddaudit.limits import Limit, Limits, MeasureLimits
from ddaudit.plants import Plant
from ddaudit.registry import NoParams, check, probe

__all__ = [
    "EXAMPLE_JOB",
    "SERIES",
    "Array",
    "ArrayEvidence",
    "CheckpointWritten",
    "CommandRun",
    "Evidence",
    "Finding",
    "HostLoad",
    "Job",
    "JobNumbers",
    "JobPlan",
    "JsonEvidence",
    "LaunchFacts",
    "Limit",
    "Limits",
    "Measure",
    "MeasureLimits",
    "Measures",
    "Neighbour",
    "NoParams",
    "Plant",
    "ProbeContext",
    "RankOutcome",
    "RankPlace",
    "Remedy",
    "Severity",
    "Status",
    "Stream",
    "TensorCapture",
    "TrainingTrace",
    "Where",
    "check",
    "draft",
    "fail",
    "ok",
    "probe",
    "skip",
    "warn",
]
