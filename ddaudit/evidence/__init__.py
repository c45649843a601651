"""The schema of what can be known. Probes write it, checks read it, the store keeps it."""

from __future__ import annotations

from ddaudit.evidence.bandwidth import Fit, algbw_gbps, busbw_gbps, fit_alpha_beta
from ddaudit.evidence.base import Array, ArrayEvidence, Evidence, JsonEvidence
from ddaudit.evidence.collectives import CollectivePoint, CollectiveSweep, PairTime, Spread, WrongResult
from ddaudit.evidence.command import CommandRun
from ddaudit.evidence.devices import Device, DeviceProcess, DeviceReport, Xid
from ddaudit.evidence.events import EventWriter, Stream, read_stream, read_streams
from ddaudit.evidence.forecast import ForecastFacts, Prediction
from ddaudit.evidence.host import HostLoad, Neighbour
from ddaudit.evidence.job import JobNumbers, JobPlan, MemoryFloor
from ddaudit.evidence.launch import LaunchFacts, RankOutcome
from ddaudit.evidence.links import Interface, LinkTrials, Meeting
from ddaudit.evidence.measures import Measure, Measures
from ddaudit.evidence.rails import RailAccused, RailSuspects, confirm_rails, suspect_rails
from ddaudit.evidence.scheduler import JobPlacement, LaunchLedger, RankStart, SchedulerFacts
from ddaudit.evidence.script import ResumeFacts, WatchedRank, WatchedScript
from ddaudit.evidence.settings import RankSettings, SettingsReport
from ddaudit.evidence.tournament import Accused, Suspects, confirm, suspect
from ddaudit.evidence.trace import SERIES, CheckpointWritten, Job, RankPlace, TensorCapture, TrainingTrace

__all__ = [
    "SERIES",
    "Accused",
    "Array",
    "ArrayEvidence",
    "CheckpointWritten",
    "CollectivePoint",
    "CollectiveSweep",
    "CommandRun",
    "Device",
    "DeviceProcess",
    "DeviceReport",
    "EventWriter",
    "Evidence",
    "Fit",
    "ForecastFacts",
    "HostLoad",
    "Interface",
    "Job",
    "JobNumbers",
    "JobPlacement",
    "JobPlan",
    "JsonEvidence",
    "LaunchFacts",
    "LaunchLedger",
    "LinkTrials",
    "Measure",
    "Measures",
    "Meeting",
    "MemoryFloor",
    "Neighbour",
    "PairTime",
    "Prediction",
    "RailAccused",
    "RailSuspects",
    "RankOutcome",
    "RankPlace",
    "RankSettings",
    "RankStart",
    "ResumeFacts",
    "SchedulerFacts",
    "SettingsReport",
    "Spread",
    "Stream",
    "Suspects",
    "TensorCapture",
    "TrainingTrace",
    "WatchedRank",
    "WatchedScript",
    "WrongResult",
    "Xid",
    "algbw_gbps",
    "busbw_gbps",
    "confirm",
    "confirm_rails",
    "fit_alpha_beta",
    "read_stream",
    "read_streams",
    "suspect",
    "suspect_rails",
]
