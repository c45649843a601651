"""The numbers of a record that can be compared between runs, with unit and direction."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from ddaudit.evidence.collectives import CollectiveSweep
from ddaudit.jsonio import dumps
from ddaudit.record import Record, StepRecord

__all__ = ["Better", "Measured", "device_type", "measures_of", "named_device"]

Better = Literal["higher", "lower", "same"]


class Measured(NamedTuple):
    """A value in ``unit``; ``better`` says which direction is good. ``spread`` is the robust relative deviation of the
    samples inside the run, None where it has one value alone."""

    value: float
    unit: str
    better: Better
    spread: float | None = None
    work: str = ""
    """Digest of what was done: numbers of different work (another batch, model or rank count) are never compared."""


#: Numbers of a step's summary that are compared: name -> (unit, better). Others are counts and names.
SUMMARY: dict[str, tuple[str, Better]] = {
    "tokens_per_s": ("token/s", "higher"),
    "step_s": ("s", "lower"),
    "launch_wall_s": ("s", "lower"),
    "last_loss_nats": ("nat/token", "lower"),
    "mfu": ("1", "higher"),
}


def measures_of(record: Record) -> dict[str, Measured]:
    """``step.metric`` -> what was measured. Steps that did not end have none."""
    done = [step for step in record.steps if step.state == "done"]
    return {
        f"{step.id}.{name}": measured._replace(work=_work(step))
        for step in done
        for name, measured in _step(step)
        if _sane(measured.value)
    }


def _work(step: StepRecord) -> str:
    job = step.evidence.get("training", {}).get("job", {})
    told = {key: value for key, value in job.items() if key not in ("seed", "planted")}
    told |= {"world_size": step.summary.get("world_size")}
    return hashlib.sha256(dumps(told).encode()).hexdigest()[:12]


def _sane(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _step(step: StepRecord) -> Iterator[tuple[str, Measured]]:
    for name, (unit, better) in SUMMARY.items():
        value = step.summary.get(name)
        if isinstance(value, int | float) and _sane(value):
            spread = _spread(step) if name in ("tokens_per_s", "step_s") else None
            yield name, Measured(float(value), unit, better, spread)
    memory = step.exhibits.get("memory")
    if isinstance(memory, Mapping) and _sane(memory.get("peak_bytes")):
        yield "peak_bytes", Measured(float(memory["peak_bytes"]), "byte", "lower")
    for item in step.evidence.get("measures", {}).get("values", ()):
        if _sane(item.get("value")):
            yield str(item["name"]), Measured(float(item["value"]), str(item.get("unit") or "1"), _direction(item))
    yield from _collectives(step)


def _direction(item: Mapping[str, Any]) -> Better:
    """Of a runbook's own measure: rates are better higher, times and sizes lower, anything else should stay."""
    unit, name = str(item.get("unit") or ""), str(item["name"])
    if unit.endswith("/s") or name.endswith(("_per_s", "_gbps")):
        return "higher"
    return "lower" if unit in ("s", "byte") or name.endswith(("_s", "_bytes")) else "same"


def _collectives(step: StepRecord) -> Iterator[tuple[str, Measured]]:
    facts = step.evidence.get(CollectiveSweep.kind)
    if not facts:
        return
    try:
        curves = CollectiveSweep.model_validate(facts).curves()
    except ValidationError:  # of another version
        return
    for (op, group), points in curves.items():
        key = f"{op}-{len(group)}"
        yield f"{key}.bus_gbps", Measured(points[-1].busbw_gbps, "GB/s", "higher")
        yield f"{key}.latency_s", Measured(points[0].median_s, "s", "lower")


def _spread(step: StepRecord) -> float | None:
    """Robust relative standard error of the median step time, from the quantiles that the record keeps."""
    table = step.exhibits.get("step-spread")
    times = table.get("step_s") if isinstance(table, Mapping) else None
    if not isinstance(times, list | tuple) or len(times) < 4 or not all(map(_sane, times)):
        return None
    low, middle, high = (times[round(q * (len(times) - 1))] for q in (0.25, 0.5, 0.75))
    steps = step.summary.get("steps")
    count = steps if isinstance(steps, int) and steps > 0 else len(times)
    return float((high - low) / 1.349 / middle * 1.253 / math.sqrt(count)) if middle > 0 else None


def device_type(record: Record) -> str:
    """What ran it, such as ``NVIDIA H200`` or ``cpu x2``: runs on different types are never compared."""
    for step in record.steps:
        names = {d.get("name") for d in step.evidence.get("devices", {}).get("devices", ()) if d.get("name")}
        if names:
            return ", ".join(sorted(map(str, names)))
    return named_device(record.facts)


def named_device(facts: Mapping[str, Any]) -> str:
    """The device type as far as the facts of a run that has just begun know it."""
    device = str(facts.get("device_name") or facts.get("device") or "unknown")
    return f"{device} x{facts.get('cpus', '?')}" if device == "cpu" else device
