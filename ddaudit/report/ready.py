"""The page "Ready to scale?": what each parallelism showed here, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ddaudit.findings import Finding, Status, Verdict
from ddaudit.record import Record, StepRecord
from ddaudit.report.model import Mark, Matrix, Row, mark
from ddaudit.report.numbers import quantity
from ddaudit.report.safe import visible
from ddaudit.report.scene import capacity, parallelism, world_size

__all__ = ["EQUALITY", "matrix"]

#: The check that holds a parallelism against one device.
EQUALITY = "parallel.equals-single"

#: Summary keys of a step that become columns when any step has them: key -> (head, unit).
MEASURES: dict[str, tuple[str, str]] = {
    "tokens_per_s": ("tokens/s", "1"),
    "mfu": ("MFU", "%"),
    "exposed_comm": ("exposed communication", "%"),
    "peak_bytes": ("peak memory", "byte"),
    "headroom_bytes": ("memory headroom", "byte"),
    "save_s": ("save", "s"),
    "load_s": ("load", "s"),
    "restart_s": ("start to first step", "s"),
}


def matrix(record: Record, problems: Sequence[Row]) -> Matrix | None:
    """One row per step that trained; None when fewer than one multi-rank parallelism was tried."""
    trained = [(name, step) for step in record.steps if (name := parallelism(record, step))]
    if not any((world_size(step) or 1) > 1 for _, step in trained):
        return None
    known = {step.id: _measures(record, step) for _, step in trained}
    measures = [key for key in MEASURES if any(table.get(key) is not None for table in known.values())]
    columns = ("step", "ranks", "runs", "equals one device", *(MEASURES[key][0] for key in measures))
    rows = tuple((name, _cells(record, name, step, [known[step.id].get(k) for k in measures], measures))
                 for name, step in trained)  # fmt: skip
    return Matrix(columns, rows, _advice(record, problems, [name for name, _ in trained]))


def _cells(
    record: Record, name: str, step: StepRecord, values: Sequence[Any], measures: Sequence[str]
) -> tuple[str | Mark, ...]:
    ranks = world_size(step)
    mine = [f for f in record.findings if f.step == step.id and f.check == EQUALITY]
    numbers = tuple(_shown(value, MEASURES[key][1]) for key, value in zip(measures, values, strict=True))
    return (visible(step.id, 80), str(ranks or "–"), mark(step.state), _equality(name, mine), *numbers)


def _shown(value: Any, unit: str) -> str:
    whole = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return f"{value:.0%}" if unit == "%" and whole else quantity(value, unit)


def _measures(record: Record, step: StepRecord) -> dict[str, Any]:
    """The step's numbers by the keys of :data:`MEASURES`: those of its summary, and what its evidence tells."""
    found: dict[str, Any] = {}
    if isinstance(books := step.exhibits.get("ledger"), Mapping):
        whole, lines = books.get("step_s"), books.get("lines", {})
        waits = [lines.get(name, 0.0) for name in ("communication", "peer wait", "stage wait")]
        found["exposed_comm"] = sum(waits) / whole if whole and isinstance(whole, float) else None
    if isinstance(memory := step.exhibits.get("memory"), Mapping):
        found["peak_bytes"] = memory["peak_bytes"]
        limit = capacity(record, memory["kind"])
        found["headroom_bytes"] = None if limit is None else limit - memory["peak_bytes"]
    written = step.evidence.get("training", {}).get("checkpoints", ())
    for action, key in (("save", "save_s"), ("load", "load_s")):
        found[key] = max(
            (c["seconds"] for c in written if c.get("action") == action and c.get("seconds")), default=None
        )
    started = [r.get("first_step_s") for r in step.evidence.get("launch-ledger", {}).get("ranks", ())]
    found["restart_s"] = max((s for s in started if isinstance(s, int | float)), default=None)
    found["mfu"] = _mfu(record, step)
    return found | {key: value for key, value in step.summary.items() if key in MEASURES}


def _mfu(record: Record, step: StepRecord) -> float | None:
    """Model FLOPs by the formula 6 P + 12 L h s a token (no causal discount, no recompute) over what the step's ranks
    could do at the best matrix product that the run measured in the step's own precision; None without one."""
    job = step.evidence.get("training", {}).get("job", {})
    costs = [s.evidence.get("compute-costs", {}) for s in record.steps]
    rates = [
        rate.get("flops_per_s")
        for table in costs
        if table.get("dtype") == job.get("dtype")
        for rate in table.get("matmuls", ())
    ]
    peak = max((r for r in rates if isinstance(r, int | float) and r > 0), default=None)
    done, ranks = step.summary.get("tokens_per_s"), world_size(step)
    flops = job.get("flops_per_token")
    if peak is None or not ranks or not isinstance(done, int | float) or not isinstance(flops, int | float):
        return None
    return float(done * flops / (ranks * peak))


def _equality(name: str, findings: Sequence[Finding]) -> str | Mark:
    if not findings:
        return "is the reference" if name == "single" else "not asked"
    worst = max(findings, key=lambda f: f.status.rank)
    found = mark(worst.status)
    numbers = f" {quantity(worst.measured, worst.unit)}" if worst.measured is not None else ""
    return Mark(f"{found.word}{numbers}", found.glyph, found.kind)


def _advice(record: Record, problems: Sequence[Row], tried: Sequence[str]) -> str:
    """One line; a clean run says what it covered, and never more."""
    reasons = list(dict.fromkeys(r.id for r in problems if r.mark.word in (Status.FAIL, Status.WARN)))
    listed = ", ".join(reasons[:4]) + (" …" if len(reasons) > 4 else "")
    names = list(dict.fromkeys(tried))
    covered = " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
    if record.verdict is Verdict.FAIL:
        return f"do not scale out: mend {listed} first" if listed else "do not scale out"
    if record.verdict is Verdict.WARN:
        return f"scale out with these conditions: {listed}"
    if record.verdict is Verdict.PASS:
        return f"scale out, as far as {covered} at this size can tell; see Not measured"
    return "not known: something required was not measured"
