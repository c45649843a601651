"""Baselines: what a set of known-good runs measured, and which difference of a new run is more than their noise.

Learning is robust: median and 1.4826 times the median absolute deviation, which estimates the standard deviation of
normal noise, after values further than five of those from the median are removed (Leys et al. 2013, J. Exp. Soc.
Psychol. 49:764). A new value is a regression when it is worse than the median by more than three such deviations,
widened for short histories, and by more than three percent: below that nobody acts.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddaudit.engine.measured import Measured, device_type, measures_of
from ddaudit.errors import UsageProblem
from ddaudit.findings import Finding, Remedy, Severity, Status, draft
from ddaudit.record import Record, write_atomically

__all__ = ["LEAST_RUNS", "Baseline", "Known", "compare", "judge_baseline", "learn", "load_baseline", "save_baseline"]

SCHEMA = "ddaudit-baseline/1"
LEAST_RUNS = 3
LEAST_SHARE = 0.03
DEVIATIONS = 3.0
OUTLIER = 5.0
MAD_TO_SIGMA = 1.4826
MAX_BYTES = 16 << 20


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Known(_Strict):
    """What is known of one metric on one device type. ``spread`` is a robust standard deviation in its unit."""

    unit: str
    better: Literal["higher", "lower", "same"]
    median: float
    spread: float = Field(ge=0)
    count: int = Field(ge=1)
    removed: int = 0
    work: str = ""

    @property
    def tolerance(self) -> float:
        """Difference from the median that is still noise. A deviation estimated from n values is itself uncertain by
        about 1 / sqrt(2 n), and a median by 1.25 / sqrt(n): short histories get wider limits."""
        widened = DEVIATIONS * self.spread * (1 + 1 / math.sqrt(2 * self.count)) * math.sqrt(1 + 1.57 / self.count)
        return max(LEAST_SHARE * abs(self.median), widened)

    @property
    def limit(self) -> float:
        """The worst value that is still noise (of a two-sided metric: the upper one)."""
        return self.median - self.tolerance if self.better == "higher" else self.median + self.tolerance

    def worse(self, value: float) -> bool:
        """True for a value that is worse than noise. NaN always is."""
        if not math.isfinite(value):
            return True
        if self.better == "same":
            return abs(value - self.median) > self.tolerance
        return value < self.limit if self.better == "higher" else value > self.limit


class Baseline(_Strict):
    """A portable file. ``devices`` maps a device type to its metrics by ``step.metric``."""

    schema_: Literal["ddaudit-baseline/1"] = Field("ddaudit-baseline/1", alias="schema")
    name: str
    created: float
    runs: tuple[str, ...]
    versions: Mapping[str, str] = Field(default_factory=dict)
    devices: Mapping[str, Mapping[str, Known]]


def learn(name: str, records: Sequence[Record], created: float) -> Baseline:
    """Learns from runs that were good.

    Raises:
        UsageProblem: fewer than three runs, one that failed, never ended or is given twice, or no common metric.
    """
    if len(records) < LEAST_RUNS:
        raise UsageProblem(f"{len(records)} run(s)", expected=f"at least {LEAST_RUNS}, to tell noise from change")
    if bad := next((r for r in records if not r.complete or r.exit_code != 0), None):
        fix = "leave it out, or waive what is known"
        raise UsageProblem(f"run {bad.run_id} ended {bad.verdict}, which is no baseline", fix=fix)
    if len({r.run_id for r in records}) < len(records):
        raise UsageProblem("a run is given twice", fix="repeats must be runs of their own, or noise reads as none")
    values: dict[str, dict[str, list[Measured]]] = {}
    for record in records:
        for key, measured in measures_of(record).items():
            values.setdefault(device_type(record), {}).setdefault(key, []).append(measured)
    devices = {
        device: {key: known(found) for key, found in metrics.items() if _alike(found)}
        for device, metrics in values.items()
    }
    if not any(devices.values()):
        raise UsageProblem("no metric was measured in three runs of one device type")
    packages = records[-1].facts.get("packages", {})
    versions = {k: str(v) for k, v in packages.items()} if isinstance(packages, Mapping) else {}
    runs = tuple(r.run_id for r in records)
    return Baseline(name=name, created=created, runs=runs, versions=versions, devices=devices)


def _alike(found: Sequence[Measured]) -> bool:
    return len(found) >= LEAST_RUNS and len({m.work for m in found}) == 1


def known(found: Sequence[Measured]) -> Known:
    """Median and spread of one metric, outliers removed (never more than half of the values)."""
    values = [m.value for m in found]
    middle = statistics.median(values)
    deviation = MAD_TO_SIGMA * statistics.median([abs(v - middle) for v in values])
    kept = [v for v in values if deviation == 0 or abs(v - middle) <= OUTLIER * deviation]
    middle = statistics.median(kept)
    spread = MAD_TO_SIGMA * statistics.median([abs(v - middle) for v in kept])
    return Known(
        unit=found[0].unit,
        better=found[0].better,
        median=middle,
        spread=spread,
        count=len(kept),
        removed=len(values) - len(kept),
        work=found[0].work,
    )


class Compared(_Strict):
    """One metric of a run beside its baseline."""

    metric: str
    unit: str
    value: float
    baseline: float
    limit: float
    change: float
    """Relative to the baseline's median."""
    worse: bool
    better: bool
    """Better than noise explains."""


def compare(records: Sequence[Record], baseline: Baseline) -> Iterator[Compared]:
    """Every metric that both know; of several records the median speaks, as repeats of one measurement."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        for key, measured in measures_of(record).items():
            values.setdefault((device_type(record), key, measured.work), []).append(measured.value)
    for (device, key, work), found in values.items():
        was = baseline.devices.get(device, {}).get(key)
        if was is not None and was.work == work:
            value = statistics.median(found)
            mirrored = 2 * was.median - value
            yield Compared(
                metric=key,
                unit=was.unit,
                value=value,
                baseline=was.median,
                limit=was.limit,
                change=(value - was.median) / abs(was.median) if was.median else 0.0,
                worse=was.worse(value),
                better=was.better != "same" and was.worse(mirrored),
            )


def judge_baseline(record: Record, baseline: Baseline) -> Iterator[Finding]:
    """Findings of the check ``baseline``: one for each regression, and one for all that holds."""
    rows = list(compare([record], baseline))
    if not rows:
        text = f"not compared: baseline {baseline.name!r} knows no metric of {device_type(record)}"
        yield draft(Status.SKIP, "baseline", text).model_copy(update={"check": "baseline"})
        return
    remedy = Remedy(text="Compare with a run of the baseline: what changed first in the environment or the measures?",
                    commands=(f"ddaudit diff {baseline.runs[-1]} {record.run_id}",))  # fmt: skip
    for row in (r for r in rows if r.worse):
        text = f"{row.metric} is {abs(row.change):.0%} worse than baseline {baseline.name!r}"
        yield _finding(row, baseline, Status.WARN, "baseline.regression", text).model_copy(update={"remedy": remedy})
    held = [r for r in rows if not r.worse]
    if held:
        text = f"{len(held)} of {len(rows)} metrics hold baseline {baseline.name!r} of {len(baseline.runs)} runs"
        yield _finding(max(held, key=lambda r: abs(r.change)), baseline, Status.PASS, "baseline", text)


def _finding(row: Compared, baseline: Baseline, status: Status, id: str, text: str) -> Finding:
    source = f"baseline {baseline.name}: {row.baseline:.4g} over {len(baseline.runs)} runs, and its noise"
    step = row.metric.partition(".")[0]
    fields = {"measured": row.value, "unit": row.unit, "limit": row.limit, "limit_source": source, "step": step}
    return draft(status, id, text, severity=Severity.MAJOR, **fields).model_copy(update={"check": "baseline"})


def save_baseline(baseline: Baseline, path: Path) -> None:
    """Writes the file, atomically."""
    write_atomically(path, json.dumps(baseline.model_dump(by_alias=True, mode="json"), indent=1) + "\n")


def load_baseline(path: Path) -> Baseline:
    """Reads the file.

    Raises:
        UsageProblem: missing, too large, or not a baseline.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageProblem("too large", where=str(path), expected=f"at most {MAX_BYTES} bytes")
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        return Baseline.model_validate(data)
    except OSError as error:
        raise UsageProblem(f"cannot be read ({error.strerror})", where=str(path)) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"])
        raise UsageProblem(f"not a baseline ({place}: {first['msg']})", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"not a baseline ({str(error).splitlines()[0]})", where=str(path)) from None


def names(folder: Path) -> Iterable[Path]:
    """Files of a folder that look like baselines."""
    return sorted(folder.glob("*.baseline.json"))
