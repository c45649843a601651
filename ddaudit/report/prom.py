"""Prometheus text exposition for node_exporter's textfile collector: five gauges whose names never change.

No host, rank or run id becomes a label: those would make a new series for each run. Alert on the age of
``ddaudit_run_timestamp_seconds`` too, so that a run which stopped happening is noticed.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ddaudit.findings import Finding, Status
from ddaudit.record import Record
from ddaudit.report.options import Options
from ddaudit.report.safe import visible

__all__ = ["CODES", "GAUGES", "MAX_SERIES", "render_prom"]

#: Value of ``ddaudit_check_status``.
CODES = {Status.PASS: 0, Status.WARN: 1, Status.FAIL: 2, Status.ERROR: 3, Status.SKIP: 4, Status.WAIVED: 5}
#: The gauges and what they mean. Every sample is labelled with its runbook, so that several files can lie side by side.
GAUGES = {
    "ddaudit_run_timestamp_seconds": "When the run began, Unix time.",
    "ddaudit_run_exit_code": "Exit code of the run: 0 pass, 1 fail, 2 usage, 3 inconclusive, 4 internal.",
    "ddaudit_findings": "Findings of the run by status and severity.",
    "ddaudit_check_status": "Worst status of a check: 0 pass, 1 warn, 2 fail, 3 error, 4 skip, 5 waived.",
    "ddaudit_measure": "What a check measured: least, median and greatest over the run.",
}
MAX_SERIES = 500
"""Measures beyond are left out; their number is told in a comment."""


def render_prom(record: Record, options: Options) -> str:
    """The whole file. Labels are escaped; of a check asked in several steps the worst status counts."""
    lines: list[str] = []
    book = {"runbook": record.plan.runbook if record.plan else record.command}
    measures = list(_measures(record.findings))
    for name, samples in (
        ("ddaudit_run_timestamp_seconds", [({}, record.created)]),
        ("ddaudit_run_exit_code", [({}, float(record.exit_code))]),
        ("ddaudit_findings", list(_counts(record.findings))),
        ("ddaudit_check_status", list(_checks(record.findings))),
        ("ddaudit_measure", measures[:MAX_SERIES]),
    ):
        lines += [f"# HELP {name} {GAUGES[name]}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(book | labels)} {_number(value)}" for labels, value in samples]
    if len(measures) > MAX_SERIES:
        lines.append(f"# {len(measures) - MAX_SERIES} measures are left out")
    return "\n".join(lines) + "\n"


def _counts(findings: Sequence[Finding]) -> Iterator[tuple[dict[str, str], float]]:
    counted = Counter((f.status, f.severity) for f in findings)
    for (status, severity), count in sorted(counted.items()):
        yield {"status": status, "severity": severity}, float(count)


def _checks(findings: Sequence[Finding]) -> Iterator[tuple[dict[str, str], float]]:
    worst: dict[str, Status] = {}
    for finding in findings:
        worst[finding.check] = max(worst.get(finding.check, finding.status), finding.status, key=lambda s: s.rank)
    for check, status in sorted(worst.items()):
        yield {"check": check}, float(CODES[status])


def _measures(findings: Sequence[Finding]) -> Iterator[tuple[dict[str, str], float]]:
    values: dict[tuple[str, str, str], list[float]] = {}
    for f in findings:
        if isinstance(f.measured, int | float) and not isinstance(f.measured, bool):
            values.setdefault((f.check, f.id or f.check, f.unit or "1"), []).append(float(f.measured))
    for (check, metric, unit), numbers in sorted(values.items()):
        for stat, value in (("min", min(numbers)), ("median", statistics.median(numbers)), ("max", max(numbers))):
            yield {"check": check, "metric": metric, "unit": unit, "stat": stat}, value


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return visible(value, 200).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.10g}"
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
