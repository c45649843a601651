"""What parts of a step cost by themselves: arithmetic against the formula, memory against the count, input headroom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddaudit.api import (
    ComputeCosts,
    Finding,
    Limit,
    Limits,
    LoaderCosts,
    MemoryCosts,
    Plant,
    Remedy,
    Severity,
    Where,
    check,
    ok,
    warn,
)


class CostLimits(Limits):
    """Limits on what parts of a step cost alone."""

    family = "costs"

    flops_ratio: Limit = Limit(
        warn_above=1.1,
        warn_below=0.9,
        source="default: 6 P + 12 L h s leaves out less than a tenth of a transformer's matrix products",
    )
    state_ratio: Limit = Limit(
        warn_above=1.05,
        warn_below=0.95,
        source="default: parameters, gradients and AdamW's state are counted exactly, but for scalars",
    )
    input_headroom: Limit = Limit(
        warn_below=1.0, source="physical: a loader that delivers less than a step needs starves it"
    )


def _kept(value: float, limit: Limit, unit: str) -> dict[str, Any]:
    return {"measured": value, "unit": unit, "limit": limit.bound(value), "limit_source": limit.source}


@check(
    "compute.flops",
    question="bottleneck",
    asks="Does a step do the arithmetic that the formula predicts, and at which share of the rate measured here?",
    plant=Plant(
        "every forward pass is run twice",
        "perf.extra-flops",
        probe="compute",
        params={"preset": "tiny", "repeats": 2},
        planted={"recompute": True},
    ),
)
def flops(costs: ComputeCosts, limits: CostLimits) -> Iterator[Finding]:
    """Compares counted with formula FLOPs. MFU here is the formula's FLOPs (no causal discount, no recompute) over the
    time they took, against the best rate of a matrix product measured on the same device, not a vendor's peak."""
    ratio, limit = costs.counted_flops / costs.formula_flops, limits.flops_ratio
    best = max(costs.matmuls, key=lambda rate: rate.flops_per_s)
    text = (
        f"a pass over {costs.tokens} tokens counts {ratio:.2f} of 6 P + 12 L h s (no causal discount, no recompute);"
        f" MFU {costs.utilisation:.0%} of the {best.flops_per_s / 1e9:.1f} GFLOP/s that a {costs.dtype} product"
        f" [{best.m}, {best.k}] x [{best.k}, {best.n}] reaches on {costs.device}"
    )
    kept = {"where": Where(host=costs.host, device=costs.device), **_kept(ratio, limit, "of the formula")}
    if limit.judge(ratio).value == "PASS":
        yield ok(text, **kept)
        return
    remedy = Remedy(text="Look for passes that run twice, recomputed activations, or layers that the formula lacks.")
    yield warn("perf.extra-flops", text, remedy=remedy, **kept)


@check(
    "memory.states",
    question="bottleneck",
    asks="Do parameters, gradients and optimizer state take what their count predicts, and does one sample more fit?",
    plant=Plant(
        "the optimizer keeps one more copy of the parameters",
        "mem.state-larger",
        probe="memory",
        params={"preset": "tiny", "repeats": 1},
        planted={"copies": 1},
    ),
)
def states(costs: MemoryCosts, limits: CostLimits) -> Iterator[Finding]:
    """States: weights, gradients and two moments of the same width (16 bytes a parameter in fp32). Activations grow
    linearly with the micro-batch, so two sizes say what one sample more takes."""
    ratio, limit = costs.state_bytes / costs.predicted_state_bytes, limits.state_ratio
    fits = int(costs.available_bytes / costs.bytes_per_sample) if costs.bytes_per_sample > 0 else 0
    trades = ", ".join(_trade(costs, t.recompute) for t in costs.trades if t.recompute != "none")
    text = (
        f"parameters {_mb(costs.parameter_bytes)}, gradients {_mb(costs.gradient_bytes)}, optimizer"
        f" {_mb(costs.optimizer_bytes)}: {ratio:.3f} of the prediction; activations {_mb(costs.bytes_per_sample)} a"
        f" sample, so one more fits {'(' + format(fits, ',') + ' would)' if fits else 'not'}; other"
        f" {'not measured' if costs.other_bytes is None else _mb(costs.other_bytes)}; recomputing: {trades}"
    )
    kept = {"where": Where(host=costs.host, device=costs.device), **_kept(ratio, limit, "of the prediction")}
    if limit.judge(ratio).value == "PASS":
        yield ok(text, **kept)
        return
    remedy = Remedy(text="List the optimizer's state by key: a copy of the weights (EMA, master weights) is no moment.")
    yield warn("mem.state-larger", text, remedy=remedy, **kept)


def _trade(costs: MemoryCosts, kind: str) -> str:
    plain, other = (next(t for t in costs.trades if t.recompute == name) for name in ("none", kind))
    saved, paid = plain.activation_bytes - other.activation_bytes, other.seconds - plain.seconds
    return f"{kind} saves {_mb(saved)} for {paid * 1e3:+.1f} ms"


def _mb(size: float) -> str:
    return f"{size / 1e6:.2f} MB"


@check(
    "input.headroom",
    question="bottleneck",
    asks="Can the loader alone deliver what a step needs, and what twice the devices would need?",
    plant=Plant(
        "every sample takes 40 ms longer",
        "perf.input-bound",
        probe="loader",
        params={"updates": 4, "global_batch": 8},
        planted={"sample_ms": 40.0},
    ),
)
def headroom(costs: LoaderCosts, limits: CostLimits) -> Iterator[Finding]:
    """Headroom is how often the loader could fill a step's need. Below 1 it starves the step; below 2 it is hidden now
    and starves twice the devices on this host."""
    value, limit = costs.headroom, limits.input_headroom
    workers = f"{costs.workers} workers" if costs.workers else "the rank itself (num_workers = 0)"
    text = (
        f"{workers} deliver(s) a step's batches in {costs.warm_s * 1e3:.1f} ms ({costs.cold_s * 1e3:.1f} ms cold), and"
        f" the step takes {costs.step_s * 1e3:.1f} ms: headroom {value:.1f}"
    )
    kept = {"where": Where(host=costs.host), **_kept(value, limit, "times the need")}
    if limit.judge(value).value != "PASS":
        remedy = Remedy(text="Add workers, make samples cheaper, or bring the data nearer.")
        yield warn("perf.input-bound", text, remedy=remedy, **kept)
    elif value < TWICE:
        yield warn(
            "perf.input-at-edge",
            f"{text}; hidden now, and twice the devices on this host would starve",
            severity=Severity.MINOR,
            remedy=Remedy(text="Raise the loader's capacity before adding devices."),
            **kept,
        )
    else:
        yield ok(text, **kept)


TWICE = 2.0
