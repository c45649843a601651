"""The schema of what can be known. Probes write it, checks read it, the store keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddaudit.lazy import offered

if TYPE_CHECKING:
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

__getattr__ = offered(__name__, {
    "ddaudit.evidence.bandwidth": "Fit algbw_gbps busbw_gbps fit_alpha_beta",
    "ddaudit.evidence.base": "Array ArrayEvidence Evidence JsonEvidence",
    "ddaudit.evidence.collectives": "CollectivePoint CollectiveSweep PairTime Spread WrongResult",
    "ddaudit.evidence.command": "CommandRun",
    "ddaudit.evidence.devices": "Device DeviceProcess DeviceReport Xid",
    "ddaudit.evidence.events": "EventWriter Stream read_stream read_streams",
    "ddaudit.evidence.forecast": "ForecastFacts Prediction",
    "ddaudit.evidence.host": "HostLoad Neighbour",
    "ddaudit.evidence.job": "JobNumbers JobPlan MemoryFloor",
    "ddaudit.evidence.launch": "LaunchFacts RankOutcome",
    "ddaudit.evidence.links": "Interface LinkTrials Meeting",
    "ddaudit.evidence.measures": "Measure Measures",
    "ddaudit.evidence.rails": "RailAccused RailSuspects confirm_rails suspect_rails",
    "ddaudit.evidence.scheduler": "JobPlacement LaunchLedger RankStart SchedulerFacts",
    "ddaudit.evidence.script": "ResumeFacts WatchedRank WatchedScript",
    "ddaudit.evidence.settings": "RankSettings SettingsReport",
    "ddaudit.evidence.tournament": "Accused Suspects confirm suspect",
    "ddaudit.evidence.trace": "SERIES CheckpointWritten Job RankPlace TensorCapture TrainingTrace",
})  # fmt: skip
