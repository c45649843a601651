"""The schema of what can be known. Probes write it, checks read it, the store keeps it."""

from __future__ import annotations

from ddaudit.evidence.base import Array, ArrayEvidence, Evidence, JsonEvidence
from ddaudit.evidence.command import CommandRun
from ddaudit.evidence.events import EventWriter, Stream, read_stream, read_streams
from ddaudit.evidence.host import HostLoad, Neighbour
from ddaudit.evidence.job import JobNumbers, JobPlan, MemoryFloor
from ddaudit.evidence.launch import LaunchFacts, RankOutcome
from ddaudit.evidence.measures import Measure, Measures
from ddaudit.evidence.script import ResumeFacts, WatchedRank, WatchedScript
from ddaudit.evidence.trace import SERIES, CheckpointWritten, Job, RankPlace, TensorCapture, TrainingTrace

__all__ = [
    "SERIES",
    "Array",
    "ArrayEvidence",
    "CheckpointWritten",
    "CommandRun",
    "EventWriter",
    "Evidence",
    "HostLoad",
    "Job",
    "JobNumbers",
    "JobPlan",
    "JsonEvidence",
    "LaunchFacts",
    "Measure",
    "Measures",
    "MemoryFloor",
    "Neighbour",
    "RankOutcome",
    "RankPlace",
    "ResumeFacts",
    "Stream",
    "TensorCapture",
    "TrainingTrace",
    "WatchedRank",
    "WatchedScript",
    "read_stream",
    "read_streams",
]
