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
    Stream,
    TensorCapture,
    TrainingTrace,
)
from ddaudit.evidence.incident import IncidentFacts, Suspect
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
    "IncidentFacts",
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
    "Severity",
    "Status",
    "Stream",
    "Suspect",
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
