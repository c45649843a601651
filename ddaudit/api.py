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
    Job,
    JsonEvidence,
    LaunchFacts,
    Measure,
    Measures,
    RankOutcome,
    RankPlace,
    ResumeFacts,
    Stream,
    TensorCapture,
    TrainingTrace,
    WatchedRank,
    WatchedScript,
)
from ddaudit.findings import Finding, Remedy, Severity, Status, Where, draft, fail, ok, skip, warn
from ddaudit.limits import Limit, Limits, MeasureLimits
from ddaudit.plants import Plant
from ddaudit.registry import NoParams, check, probe

__all__ = [
    "SERIES",
    "Array",
    "ArrayEvidence",
    "CheckpointWritten",
    "CommandRun",
    "Evidence",
    "Finding",
    "Job",
    "JsonEvidence",
    "LaunchFacts",
    "Limit",
    "Limits",
    "Measure",
    "MeasureLimits",
    "Measures",
    "NoParams",
    "Plant",
    "ProbeContext",
    "RankOutcome",
    "RankPlace",
    "Remedy",
    "ResumeFacts",
    "Severity",
    "Status",
    "Stream",
    "TensorCapture",
    "TrainingTrace",
    "WatchedRank",
    "WatchedScript",
    "Where",
    "check",
    "draft",
    "fail",
    "ok",
    "probe",
    "skip",
    "warn",
]
