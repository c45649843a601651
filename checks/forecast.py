"""Will more devices help? Judged where a job is planned; the reference model's forecast is told, not judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ddaudit.api import (
    EXAMPLE_JOB,
    Finding,
    ForecastFacts,
    Limit,
    Limits,
    Plant,
    Prediction,
    Remedy,
    Status,
    check,
    ok,
    skip,
    warn,
)

GIB = 1 << 30


class ForecastLimits(Limits):
    """Limits on what a planned job would get from more devices."""

    family = "forecast"

    efficiency: Limit = Limit(
        warn_below=0.5,
        source="default: below half of the ideal, an added device costs more than twice what it brings",
    )
    memory_share: Limit = Limit(
        warn_above=0.92, source="default: fragmentation and communicators take up to a tenth of a device"
    )
    critical_share: Limit = Limit(
        warn_above=1.0,
        source="McCandlish et al. 2018: above the critical batch, more samples per update save few updates",
    )


def _planned(folder: Path, planted: bool) -> Mapping[str, Any]:
    path = folder / "job.toml"
    path.write_text(EXAMPLE_JOB, encoding="utf-8")
    return {"job": str(path)}


def _plant(name: str, expect: str, planted: Mapping[str, Any]) -> Plant:
    """A forecast of the example job on a description: nothing is launched. ``planted`` is laid over."""
    params = {"to": [16, 64], "hardware": "h100-ndr", "measured": False, "critical_batch": 1e6}
    return Plant(name, expect, probe="forecast", params=params, planted=planted, build=_planned, types="job")


def _worst(facts: ForecastFacts, value: dict[int, float], *, low: bool) -> Prediction:
    return (min if low else max)(facts.predictions, key=lambda p: value[p.devices])


NOTHING = "not measured: no size that was asked for can run"


@check(
    "forecast.speedup",
    asks="Will more devices help the planned job, and what becomes the limit?",
    plant=_plant(
        "tensor parallelism across nodes",
        "forecast.helps-little",
        {"parallel": "tensor", "set": {"model.heads": 64, "layout.sharded": 1}},
    ),
)
def speedup(facts: ForecastFacts, limits: ForecastLimits) -> Iterator[Finding]:
    """Holds the share of the ideal speedup at the largest size against a limit, where a job is planned and its upper
    bound is below it: a doubt is no verdict. For the reference model the forecast is told only.
    """
    if not facts.predictions:
        yield skip(f"{NOTHING}{_reasons(facts)}")
        return
    one = _worst(facts, {p.devices: p.efficiency for p in facts.predictions}, low=True)
    ratio = one.devices / facts.base.devices
    best, limit = one.speedup.high / ratio, limits.efficiency
    kept = {"measured": best, "unit": "of the ideal, at best", "limit": limit.bound(best), "limit_source": limit.source}
    told = "; ".join(_told(facts, p) for p in facts.predictions if p.devices != facts.base.devices) or _told(facts, one)
    if not facts.planned or ratio <= 1 or limit.judge(best) is Status.PASS:
        what = "" if facts.planned else f" (the {facts.model}, not yours)"
        yield ok(f"{told}{what}", **(kept if facts.planned and ratio > 1 else {}))
        return
    remedy = Remedy(
        text="Let the forecast rank other layouts, and grow the axis whose communication stays inside a node.",
        commands=(f"ddaudit forecast --job job.toml --hardware FILE --to {one.devices} --parallel auto",),
    )
    yield warn("forecast.helps-little", told, remedy=remedy, **kept)


def _told(facts: ForecastFacts, one: Prediction) -> str:
    low, high = one.speedup.low, one.speedup.high
    return f"{facts.base.devices} -> {one.devices} devices: {one.verdict}, {low:.2f}x to {high:.2f}x; {one.reason}"


def _reasons(facts: ForecastFacts) -> str:
    said = "; ".join(f"{n}: {reason}" for n, reason in sorted(facts.refused.items())[:3])
    return f" ({said})" if said else ""


@check(
    "forecast.memory",
    asks="Does every rank of the forecast layout fit its device, activations included?",
    plant=_plant("micro-batches of 64 samples", "forecast.does-not-fit", {"set": {"micro_batch": 64}}),
)
def memory(facts: ForecastFacts, limits: ForecastLimits) -> Iterator[Finding]:
    """States, gathered units, activations, logits and reserve of the fullest rank over the device's memory (Rajbhandari
    et al. 2020; Korthikanti et al. 2022). ``job.memory`` counts states alone and needs no batch.
    """
    capacity = facts.memory_limit_bytes
    if not facts.planned or capacity is None or not facts.predictions:
        yield skip("not measured: needs a job file, a device's memory, and a size that can run")
        return
    shares = {p.devices: p.memory_bytes / capacity for p in facts.predictions}
    one = _worst(facts, shares, low=False)
    share, limit = shares[one.devices], limits.memory_share
    kept = {"measured": share, "unit": "of the device", "limit": limit.bound(share), "limit_source": limit.source}
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in one.memory.items() if size >= GIB / 20)
    text = f"{one.memory_bytes / GIB:.1f} GiB of {capacity / GIB:.0f} on {one.devices} devices, {one.layout}: {parts}"
    if limit.judge(share) is Status.PASS:
        yield ok(text, **kept)
        return
    remedy = Remedy(text="Cut the micro-batch, recompute activations, or raise sharded, tp or pp.")
    yield warn("forecast.does-not-fit", text, remedy=remedy, **kept)


@check(
    "forecast.critical-batch",
    asks="Does the batch at the forecast size still save updates?",
    plant=_plant("64 devices far above a critical batch of 1,500", "forecast.batch-beyond-noise", {
        "critical_batch": 1500.0}),
)  # fmt: skip
def critical_batch(facts: ForecastFacts, limits: ForecastLimits) -> Iterator[Finding]:
    """B_eff over the critical batch: at B = B_crit an update needs twice the samples of a small batch, and beyond it
    devices buy time at a falling rate.
    """
    if facts.critical_batch is None or not facts.planned or not facts.predictions:
        yield skip("not measured: needs a job file and a critical batch (gradient norms before and after averaging)")
        return
    one = max(facts.predictions, key=lambda p: p.global_batch)
    share, limit = one.global_batch / facts.critical_batch, limits.critical_share
    kept = {"measured": share, "unit": "x critical batch", "limit": limit.bound(share), "limit_source": limit.source}
    text = f"B_eff {one.global_batch} on {one.devices} devices, critical batch {facts.critical_batch:,.0f}"
    if one.time_to_loss_ratio is not None:
        spent = one.time_to_loss_ratio * one.devices / facts.base.devices
        text += f"; the same loss takes {one.time_to_loss_ratio:.3g}x the time and {spent:.3g}x the device hours"
    if limit.judge(share) is Status.PASS:
        yield ok(text, **kept)
        return
    remedy = Remedy(text="Keep the batch (--scaling strong) or give the devices to an axis that does not raise it.")
    yield warn("forecast.batch-beyond-noise", text, remedy=remedy, **kept)
