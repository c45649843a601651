"""JUnit (the xunit2 dialect of Jenkins' schema): suite = runbook, case = step x check.

What is red here is what decides the exit code: a FAIL below ``--fail-on`` is a passing case whose output tells it. A
run in which nothing was judged has one case in error, since an empty suite counts as green.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from ddaudit.findings import Finding, Severity, Status, Verdict
from ddaudit.record import Record, StepRecord
from ddaudit.report.groups import place
from ddaudit.report.numbers import number, quantity
from ddaudit.report.options import Options
from ddaudit.report.safe import visible

__all__ = ["render_junit"]

MAX_TOLD = 50


def render_junit(record: Record, options: Options) -> str:
    """The XML document; every string is printable, so no character is illegal in XML 1.0."""
    cases = [*_cases(record), *_steps_without_findings(record), *_whole_run(record)]
    counts = {kind: str(sum(case.find(kind) is not None for case in cases)) for kind in ("error", "failure", "skipped")}
    totals = {"tests": str(len(cases)), "failures": counts["failure"], "errors": counts["error"]}
    name = visible(record.plan.runbook if record.plan else record.command, 120)
    took = {"time": _seconds(record.seconds)}
    root = ET.Element("testsuites", {"name": "ddaudit", **totals, **took})
    suite = ET.SubElement(root, "testsuite", {"name": name, **totals, "skipped": counts["skipped"], **took})
    if stamp := _timestamp(record.created):
        suite.set("timestamp", stamp)
    properties = ET.SubElement(suite, "properties")
    for key, value in _properties(record):
        ET.SubElement(properties, "property", {"name": key, "value": value})
    suite.extend(cases)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _seconds(seconds: float | None) -> str:
    return f"{seconds:.3f}" if seconds is not None and 0 <= seconds < 1e9 else "0"


def _timestamp(created: float) -> str:
    try:
        return datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return ""


def _properties(record: Record) -> Iterator[tuple[str, str]]:
    """Run identity, then every measured number with its unit."""
    yield "run_id", visible(record.run_id, 120)
    yield "verdict", str(record.verdict)
    for finding in record.findings:
        if finding.measured is not None:
            parts = (finding.step, finding.check, finding.id if finding.id != finding.check else "", place([finding]))
            key = " / ".join(visible(p, 120) for p in parts if p)
            unit = "" if finding.unit in (None, "1") else f" {visible(finding.unit, 40)}"
            yield key, number(finding.measured) + unit


def _cases(record: Record) -> Iterator[ET.Element]:
    found: dict[tuple[str, str], list[Finding]] = {}
    for finding in record.findings:
        found.setdefault((finding.step or "", finding.check or finding.id), []).append(finding)
    seconds = {s.id: s.seconds for s in record.steps}
    for (step, check), findings in found.items():
        # The first case of a step carries its time, so that the suite's cases add up.
        case = _case(step or record.command, check, seconds.pop(step, None))
        _outcome(case, findings, record.fail_on)
        yield case


def _case(name: str, classname: str, seconds: float | None) -> ET.Element:
    shown = {"name": visible(name, 120), "classname": visible(classname, 120), "time": _seconds(seconds)}
    return ET.Element("testcase", shown)


def _outcome(case: ET.Element, findings: Sequence[Finding], fail_on: Severity) -> None:
    failed = [f for f in findings if f.status is Status.FAIL and f.severity.rank >= fail_on.rank]
    errors = [f for f in findings if f.status is Status.ERROR]
    silent = [f for f in findings if f.status in (Status.SKIP, Status.WAIVED)]
    told = [f for f in findings if f.status is not Status.PASS]
    if failed:
        ET.SubElement(case, "failure", _said(failed)).text = _lines(failed)
    elif errors:
        ET.SubElement(case, "error", _said(errors)).text = _lines(errors)
    elif silent and len(silent) == len(findings):
        ET.SubElement(case, "skipped", _said(silent))
    elif told:
        ET.SubElement(case, "system-out").text = _lines(told)


def _said(findings: Sequence[Finding]) -> dict[str, str]:
    worst = max(findings, key=lambda f: (f.status.rank, f.severity.rank))
    return {"type": visible(worst.id or worst.check, 120), "message": visible(worst.text, 500)}


def _lines(findings: Sequence[Finding]) -> str:
    lines = [line for f in findings[:MAX_TOLD] for line in _told(f)]
    rest = len(findings) - MAX_TOLD
    return "\n".join([*lines, *([f"and {rest} more"] if rest > 0 else [])])


def _told(finding: Finding) -> Iterator[str]:
    yield f"{finding.status} {visible(finding.id or finding.check, 120)} ({finding.severity}): {visible(finding.text)}"
    if where := place([finding]):
        yield f"  where: {where}"
    if finding.measured is not None:
        source = f" ({visible(finding.limit_source, 300)})" if finding.limit_source else ""
        limit = f", limit {quantity(finding.limit, finding.unit)}{source}" if finding.limit is not None else ""
        yield f"  measured {quantity(finding.measured, finding.unit)}{limit}"
    if finding.remedy:
        yield f"  do: {visible(finding.remedy.text)}"
        yield from (f"    {visible(c)}" for c in finding.remedy.commands)


def _steps_without_findings(record: Record) -> Iterator[ET.Element]:
    """A step that did not come to its end and that no finding speaks of."""
    spoken = {f.step for f in record.findings}
    for step in record.steps:
        if step.state != "done" and step.id not in spoken:
            case = _case(step.id, "step", step.seconds)
            kind = "skipped" if step.state == "skipped" else "error"
            ET.SubElement(case, kind, {"type": step.state, "message": _reason(step)})
            yield case


def _reason(step: StepRecord) -> str:
    return visible(step.reason or f"the step is {step.state}", 500)


def _whole_run(record: Record) -> Iterator[ET.Element]:
    """What no case of a step can carry: a run that judged nothing, broke or was interrupted."""
    if not record.findings:
        message = "nothing was judged"
    elif record.verdict in (Verdict.INTERRUPTED, Verdict.INTERNAL, Verdict.USAGE):
        message = f"the run ended {record.verdict}"
    elif record.verdict is Verdict.INCONCLUSIVE and not any(f.status is Status.ERROR for f in record.findings):
        message = "something required was not measured"
    else:
        return
    case = _case("run", "ddaudit", record.seconds)
    ET.SubElement(case, "error", {"type": str(record.verdict), "message": message})
    yield case
