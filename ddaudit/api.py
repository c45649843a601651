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
    ResumeFacts,
    Stream,
    TensorCapture,
    TrainingTrace,
    WatchedRank,
    WatchedScript,
)
from ddaudit.evidence.checkpoint import CheckpointDiff, CheckpointFacts, Fault, NameSeen, Position, StepValue
from ddaudit.evidence.checkpoint_words import meaning_of, status_of
from ddaudit.evidence.incident import IncidentFacts, Suspect
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
    "CheckpointDiff",
    "CheckpointFacts",
    "CheckpointWritten",
    "CommandRun",
    "Evidence",
    "Fault",
    "Finding",
    "HostLoad",
    "IncidentFacts",
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
    "NameSeen",
    "Neighbour",
    "NoParams",
    "Plant",
    "Position",
    "ProbeContext",
    "RankOutcome",
    "RankPlace",
    "Remedy",
    "ResumeFacts",
    "Severity",
    "Status",
    "StepValue",
    "Stream",
    "Suspect",
    "TensorCapture",
    "TrainingTrace",
    "WatchedRank",
    "WatchedScript",
    "Where",
    "check",
    "draft",
    "fail",
    "meaning_of",
    "ok",
    "probe",
    "skip",
    "status_of",
    "warn",
]
