"""What a forecast says: predictions by number of devices, and what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import JsonEvidence

__all__ = ["Basis", "ForecastFacts", "Interval", "Prediction", "Rejected", "Verdict"]

#: What the numbers rest on: two or more measured sizes give a prediction, one gives bounds, none a description's word.
Basis = Literal["two-sizes", "one-size", "description"]

Verdict = Literal["helps", "helps little", "does not help", "cannot tell", "does not fit"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(_Frozen):
    """A number with its bounds."""

    low: float
    mid: float
    high: float


class Rejected(_Frozen):
    """A layout that ``auto`` did not choose, and why."""

    layout: str
    step_s: float | None
    why: str


class Prediction(_Frozen):
    """One size. ``terms`` are seconds of a step by term; ``speedup`` is samples per second over those of the base;
    ``memory`` are bytes of the fullest rank by kind. ``verdict``: whether the added devices help.
    """

    devices: int
    layout: str
    step_s: Interval
    speedup: Interval
    efficiency: float
    samples_per_s: float
    terms: Mapping[str, float]
    limiter: str
    memory_bytes: float
    memory: Mapping[str, float]
    fits: bool | None
    global_batch: int
    device_hours_ratio: float
    """Device hours for equally many samples, over those of the base."""
    time_to_loss_ratio: float | None = None
    """Time to the same loss over that of the base, with the critical batch counted; None where it is not known. Times
    the ratio of devices it is that of the device hours."""
    verdict: Verdict
    reason: str
    advice: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()


class ForecastFacts(JsonEvidence):
    """A forecast. ``base`` is the size that speedups refer to; ``planned`` is True where a job file was forecast and
    not the reference model; ``refused`` maps sizes to why nothing can run there."""

    kind: ClassVar[str] = "forecast"

    model: str
    machine: str
    basis: Basis
    planned: bool = False
    goal: str | None = None
    scaling: Literal["weak", "strong"] = "weak"
    base: Prediction
    predictions: tuple[Prediction, ...] = ()
    refused: Mapping[int, str] = {}
    memory_limit_bytes: float | None = None
    critical_batch: float | None = None
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = {}
