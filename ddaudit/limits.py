"""Limits as data: numbers a finding is held against, each with the reason it has that value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ddaudit.findings import Status

__all__ = ["Limit", "Limits", "MeasureLimits", "share_of"]


_SHARE = re.compile(r"\s*(\d{1,4}(?:\.\d{1,6})?)\s*%\s*of\s+(baseline|peak)\s*")


def share_of(bound: object) -> tuple[float, str] | None:
    """``"95 % of baseline"`` -> ``(0.95, "baseline")``; None for anything else."""
    match = _SHARE.fullmatch(bound) if isinstance(bound, str) else None
    return (float(match[1]) / 100, match[2]) if match else None


class Limit(BaseModel):
    """Bounds on one metric. At least one bound is set; ``fail`` outranks ``warn``. NaN breaks every bound."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warn_above: float | None = None
    warn_below: float | None = None
    fail_above: float | None = None
    fail_below: float | None = None
    source: str = "default"

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if all(b is None for b in (self.warn_above, self.warn_below, self.fail_above, self.fail_below)):
            raise ValueError("sets no bound; use warn_above, warn_below, fail_above or fail_below")
        return self

    def judge(self, value: float) -> Status:
        """Returns FAIL, WARN or PASS for a measured value in the metric's own unit."""
        if _outside(value, self.fail_below, self.fail_above):
            return Status.FAIL
        return Status.WARN if _outside(value, self.warn_below, self.warn_above) else Status.PASS

    def bound(self, value: float) -> float | None:
        """The bound that ``value`` broke, or the nearest one it kept, for printing beside the number."""
        for low, high in ((self.fail_below, self.fail_above), (self.warn_below, self.warn_above)):
            if low is not None and not value >= low:
                return low
            if high is not None and not value <= high:
                return high
        kept = [b for b in (self.warn_above, self.fail_above, self.warn_below, self.fail_below) if b is not None]
        return min(kept, key=lambda b: abs(b - value))


def _outside(value: float, low: float | None, high: float | None) -> bool:
    # `not >=` instead of `<`: a NaN must count as outside.
    return (low is not None and not value >= low) or (high is not None and not value <= high)


class Limits(BaseModel):
    """Base of a family's limits: fields of type :class:`Limit`, named by metric.

    A runbook overrides a field as ``limits.<family>.<metric> = { fail_above = 1e-10 }``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: ClassVar[str] = ""
    free: ClassVar[bool] = False
    """True where the runbook, not the check, knows the metrics' names (:class:`MeasureLimits`)."""

    @classmethod
    def metrics(cls) -> dict[str, Limit]:
        """``family.metric`` -> default limit, for lint and for the catalogue."""
        return {f"{cls.family}.{name}": field.default for name, field in cls.model_fields.items()}

    @classmethod
    def build(cls, overrides: dict[str, Any], source: str) -> Self:
        """Defaults with the runbook's overrides; ``source`` (file:line) becomes those limits' source."""
        mine = {k.partition(".")[2]: v for k, v in overrides.items() if k.partition(".")[0] == cls.family}
        return cls(**{k: Limit(**{"source": source, **v}) for k, v in mine.items() if k in cls.model_fields})


class MeasureLimits(Limits):
    """Limits on measures that a runbook names: ``limits.bus_gbps = { fail_below = 320 }``.

    :meth:`build` takes every limit of the step that is not some family's own metric.
    """

    free: ClassVar[bool] = True

    by_name: Mapping[str, Limit] = Field(default_factory=dict)

    @classmethod
    def metrics(cls) -> dict[str, Limit]:
        """None by itself: the step's probe declares the names."""
        return {}

    @classmethod
    def build(cls, overrides: dict[str, Any], source: str) -> Self:
        """All limits but those of known families; ``source`` (file:line) is kept where a limit has its own."""
        families = {name for family in Limits.__subclasses__() for name in family.metrics()}
        mine = {
            name: Limit(**{"source": source, **bounds}) for name, bounds in overrides.items() if name not in families
        }
        return cls(by_name=mine)
