"""What changed between two runs: measures beyond their noise, the environment, the outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from ddaudit.engine.baselines import LEAST_SHARE, Baseline
from ddaudit.engine.measured import Measured, device_type, measures_of
from ddaudit.findings import Finding, Status
from ddaudit.record import Record

__all__ = ["Change", "Difference", "diff_runs"]

#: What a metric may change by where neither a baseline nor the run itself tells its noise.
ASSUMED_SHARE = 0.10
DEVIATIONS = 3.0
#: Facts that differ from run to run and say nothing.
IDLE_FACTS = ("argv", "evidence_sha256", "load_before", "environment.PWD", "run")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Change(_Frozen):
    """One measure that changed by more than ``noise`` (relative), and where that number comes from."""

    metric: str
    unit: str
    a: float
    b: float
    change: float
    noise: float
    noise_source: str
    worse: bool


class Difference(_Frozen):
    """Everything that changed. ``outcomes`` are (step, check, place, status in a, status in b)."""

    comparable: bool
    reason: str
    measures: tuple[Change, ...]
    within_noise: int
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    environment: tuple[tuple[str, str, str], ...]
    outcomes: tuple[tuple[str, str, str, str, str], ...]

    @property
    def worse(self) -> bool:
        """True when a measure or an outcome of b is worse."""
        turned = any(Status(b).rank > Status(a).rank for _, _, _, a, b in self.outcomes if a != "-" and b != "-")
        fresh = any(a == "-" and b in (Status.FAIL, Status.WARN, Status.ERROR) for _, _, _, a, b in self.outcomes)
        return turned or fresh or any(c.worse for c in self.measures)


def diff_runs(a: Record, b: Record, baseline: Baseline | None = None) -> Difference:
    """Compares run ``b`` with run ``a``. Noise is that of ``baseline``, else the runs' own, else a tenth."""
    one, other = measures_of(a), measures_of(b)
    common = [key for key in one if key in other and one[key].work == other[key].work]
    changed = sorted({key.partition(".")[0] for key in one if key in other and one[key].work != other[key].work})
    changes = [_change(key, one[key], other[key], baseline, device_type(b)) for key in common]
    types = device_type(a), device_type(b)
    reasons = [] if types[0] == types[1] else [f"run on different devices: {types[0]} and {types[1]}"]
    reasons += [f"not compared, since they did different work: {', '.join(changed)}"] if changed else []
    return Difference(
        comparable=bool(common) or bool(a.findings and b.findings),
        reason="; ".join(reasons) or ("" if common else "no metric was measured in both"),
        measures=tuple(sorted((c for c in changes if abs(c.change) > c.noise), key=lambda c: -abs(c.change))),
        within_noise=sum(abs(c.change) <= c.noise for c in changes),
        only_in_a=tuple(k for k in one if k not in other),
        only_in_b=tuple(k for k in other if k not in one),
        environment=tuple(_environment(a.facts, b.facts)),
        outcomes=tuple(_outcomes(a, b)),
    )


def _change(key: str, a: Measured, b: Measured, baseline: Baseline | None, device: str) -> Change:
    share = (b.value - a.value) / abs(a.value) if a.value else float(b.value != a.value)
    noise, source = _noise(key, a, b, baseline, device)
    bad = {"higher": share < 0, "lower": share > 0, "same": True}[a.better]
    worse = bad and abs(share) > noise
    return Change(
        metric=key, unit=a.unit, a=a.value, b=b.value, change=share, noise=noise, noise_source=source, worse=worse
    )


def _noise(key: str, a: Measured, b: Measured, baseline: Baseline | None, device: str) -> tuple[float, str]:
    known = baseline.devices.get(device, {}).get(key) if baseline else None
    if known is not None and known.median and baseline is not None:
        return known.tolerance / abs(known.median) * 2**0.5, f"baseline {baseline.name}"
    if a.spread is not None and b.spread is not None:
        return max(LEAST_SHARE, DEVIATIONS * (a.spread**2 + b.spread**2) ** 0.5), "the steps of both runs"
    return ASSUMED_SHARE, "assumed; give --baseline for a measured one"


def _environment(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    one, other = dict(_flat("", a)), dict(_flat("", b))
    for key in dict.fromkeys([*one, *other]):
        if one.get(key) != other.get(key) and not key.startswith(IDLE_FACTS):
            yield key, one.get(key, "-"), other.get(key, "-")


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), item)
    else:
        yield name, str(value)


def _outcomes(a: Record, b: Record) -> Iterator[tuple[str, str, str, str, str]]:
    """Of each step and check the worst status, where it differs, and the place of the worse one. A pass that only one
    run has is no change."""
    one, other = _worst(a), _worst(b)
    for key in dict.fromkeys([*one, *other]):
        before, after = one.get(key), other.get(key)
        statuses = {f.status if f else None for f in (before, after)}
        if len(statuses) > 1 and not statuses <= {None, Status.PASS, Status.SKIP}:
            told = max((f for f in (before, after) if f), key=lambda f: f.status.rank)
            yield (*key, str(told.where), before.status if before else "-", after.status if after else "-")


def _worst(record: Record) -> dict[tuple[str, str], Finding]:
    found: dict[tuple[str, str], Finding] = {}
    for f in record.findings:
        key = (f.step or "", f.check)
        found[key] = max(found.get(key, f), f, key=lambda f: f.status.rank)
    return found
