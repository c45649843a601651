"""JUnit, as CI servers read it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from ddaudit.findings import Severity, Status
from ddaudit.record import Record
from ddaudit.report import render
from tests.report import records

ALL = ["healthy", "failed", "not_a_number", "interrupted", "empty", "audit", "hostile"]
#: Attributes and children that the xunit2 schema (junit-10.xsd of Jenkins' xUnit plugin) knows.
ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
    "system-out": set(),
}


def suite(record: Record) -> ET.Element:
    found = ET.fromstring(render(record, "junit")).find("testsuite")
    assert found is not None
    return found


@pytest.mark.parametrize("name", ALL)
def test_the_document_keeps_to_the_schema_and_its_counts_are_right(name: str) -> None:
    root = ET.fromstring(render(getattr(records, name)(), "junit"))
    for element in root.iter():
        assert set(element.attrib) <= ATTRIBUTES[element.tag], element.tag
    found = suite(getattr(records, name)())
    cases = found.findall("testcase")
    assert int(found.get("tests", "")) == len(cases) > 0
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(found.get(attribute, "")) == sum(c.find(tag) is not None for c in cases)
    assert all(float(c.get("time", "")) >= 0 for c in cases)


def test_the_suite_is_the_runbook_and_a_case_is_a_step_and_check() -> None:
    found = suite(records.failed())
    assert found.get("name") == "scale-out"
    case = next(c for c in found.findall("testcase") if c.get("classname") == "sync.frequency")
    assert case.get("name") == "data"
    failure = case.find("failure")
    assert failure is not None and failure.get("type") == "sync.missing-on-step"
    assert "rank 7 on node05" in (failure.text or "") and "grep -n no_sync train.py" in (failure.text or "")


def test_measures_are_properties_of_the_suite() -> None:
    values = {p.get("name"): p.get("value") for p in suite(records.healthy()).iter("property")}
    assert values["data / parallel.equals-single"] == "3.25e-16"
    assert values["single / loss.descends"] == "3.1 nat/token"


def test_skips_and_errors_are_not_passes() -> None:
    cases = {c.get("classname"): [child.tag for child in c] for c in suite(records.failed()).findall("testcase")}
    assert cases["gpu.ecc"] == ["error"] and cases["collectives.bandwidth"] == ["skipped"]
    assert cases["bottleneck.input-bound"] == ["system-out"] and cases["loss.descends"] == []


def test_a_failure_below_the_threshold_is_told_but_not_red() -> None:
    minor = records.finding(Status.FAIL, severity=Severity.MINOR)
    case = suite(records.record([minor])).find("testcase")
    assert case is not None and [child.tag for child in case] == ["system-out"]
    red = suite(records.record([minor], fail_on=Severity.MINOR)).find("testcase")
    assert red is not None and [child.tag for child in red] == ["failure"]


def test_a_run_that_judged_nothing_is_red() -> None:
    error = suite(records.empty()).find("testcase/error")
    assert error is not None and error.get("message") == "nothing was judged"


def test_an_interrupted_run_is_red_and_names_the_step() -> None:
    found = {c.get("name"): c.find("error") for c in suite(records.interrupted()).findall("testcase")}
    step, run = found["data"], found["run"]
    assert step is not None and step.get("message") == "Ctrl-C after 3 s"
    assert run is not None and run.get("type") == "INTERRUPTED"


def test_case_times_add_up_to_the_steps() -> None:
    times = [float(c.get("time", "")) for c in suite(records.failed()).findall("testcase")]
    assert sum(times) == pytest.approx(10.25)
