"""Limits that name a reference, ``"95 % of baseline"`` or ``"70 % of peak"``, as numbers once the step has measured.

The reference of ``baseline`` is the metric ``step.measure`` of the file given with ``--baseline``; that of ``peak`` is
the measure ``<name>_peak``, which a probe records beside ``<name>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddaudit.engine.baselines import Baseline
from ddaudit.evidence.base import Evidence
from ddaudit.evidence.measures import Measures
from ddaudit.findings import Finding, Status, draft
from ddaudit.limits import share_of
from ddaudit.runbook.model import PlannedStep

__all__ = ["settled"]


def settled(
    step: PlannedStep, evidence: Mapping[str, Evidence], baseline: Baseline | None, device: str
) -> tuple[PlannedStep, list[Finding]]:
    """The step with numbers for limits, and a SKIP for each limit whose reference is not known: it is not judged."""
    limits: dict[str, dict[str, Any]] = {}
    skipped: list[Finding] = []
    for name, bounds in step.limits.items():
        found, missing = _settle(step.id, name, bounds, evidence, baseline, device)
        if missing:
            text = f"{name} is not judged: {missing}"
            skip = draft(Status.SKIP, "limits.no-reference", text, step=step.id, severity=step.severity)
            skipped.append(skip.model_copy(update={"check": "limits"}))
        else:
            limits[name] = found
    return (step.model_copy(update={"limits": limits}), skipped) if limits != step.limits else (step, skipped)


def _settle(
    step: str,
    name: str,
    bounds: Mapping[str, Any],
    evidence: Mapping[str, Evidence],
    baseline: Baseline | None,
    device: str,
) -> tuple[dict[str, Any], str]:
    found = dict(bounds)
    for key, bound in bounds.items():
        if key == "source" or (relative := share_of(bound)) is None:
            continue
        share, kind = relative
        reference = _baseline(f"{step}.{name}", baseline, device) if kind == "baseline" else _peak(name, evidence)
        if reference is None:
            at = f"metric {step}.{name} of {device} in the file of --baseline"
            return {}, f"its limit {bound!r} needs the {at if kind == 'baseline' else f'measure {name}_peak'}"
        found[key] = share * reference
        found["source"] = f"{bound} = {reference:.4g}, {bounds.get('source', 'runbook')}"
    return found, ""


def _baseline(key: str, baseline: Baseline | None, device: str) -> float | None:
    if baseline is None:
        return None
    others = [name for name in baseline.devices if not name.startswith("cpu")]
    if device == "cuda" and len(others) == 1:  # which GPUs these are, a later step reads
        device = others[0]
    known = baseline.devices.get(device, {}).get(key)
    return known.median if known else None


def _peak(name: str, evidence: Mapping[str, Evidence]) -> float | None:
    measures = evidence.get(Measures.kind)
    values = measures.named(f"{name}_peak") if isinstance(measures, Measures) else []
    numbers = [m.value for m in values if isinstance(m.value, int | float)]
    return float(min(numbers)) if numbers else None
