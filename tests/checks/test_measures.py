"""Judging measures against limits that the runbook names."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ddaudit import packs
from ddaudit.engine.judge import judge
from ddaudit.evidence import CommandRun, Evidence, Measure, Measures
from ddaudit.findings import Finding, Status
from ddaudit.limits import Limit, Limits, MeasureLimits
from ddaudit.runbook.model import PlannedStep

SPEC = packs.load(entries=False, environment=False).registry.checks["measures.within-limits"]


def ask(limits: dict[str, Any], command: CommandRun | None = None, **values: Any) -> list[Finding]:
    measures = Measures(values=tuple(Measure(name=n, value=v, unit="GB/s") for n, v in values.items()))
    evidence: dict[str, Evidence] = {"measures": measures}
    if command is not None:
        evidence["command"] = command
    step = PlannedStep(id="s", title="s", source="book.md:3", runbook="book", limits=limits)
    return judge(SPEC, evidence, step=step)


def ended(**fields: Any) -> CommandRun:
    return CommandRun(argv=("x",), host="node1", timeout_s=1.0, **fields)


def test_a_number_outside_carries_measured_unit_limit_and_who_set_it() -> None:
    (finding,) = ask({"bw": {"warn_below": 340, "fail_below": 320, "source": "book.md:9"}}, bw=311.5)
    assert (finding.status, finding.id) == (Status.FAIL, "measures.out-of-limits")
    assert (finding.measured, finding.unit, finding.limit) == (311.5, "GB/s", 320)
    assert finding.limit_source == "book.md:9" and "below 320 GB/s" in finding.text


@pytest.mark.parametrize(
    ("value", "status"), [(400, Status.PASS), (340, Status.PASS), (330, Status.WARN), (math.nan, Status.FAIL)]
)
def test_bounds_are_inclusive_and_nan_breaks_them(value: float, status: Status) -> None:
    (finding,) = ask({"bw": {"warn_below": 340, "fail_below": 320}}, bw=value)
    assert finding.status is status


def test_many_values_of_one_measure_pass_as_one_and_fail_one_by_one() -> None:
    def several(*values: float) -> list[Finding]:
        measures = Measures(values=tuple(Measure(name="bw", value=v) for v in values))
        step = PlannedStep(id="s", title="s", source="b:1", runbook="b", limits={"bw": {"fail_below": 10}})
        return judge(SPEC, {"measures": measures}, step=step)

    (good,) = several(11, 50, 30)
    assert good.measured == 11 and "3 values from 11 to 50" in good.text
    assert [f.measured for f in several(11, 5, 3)] == [5, 3]


def test_a_program_that_fails_is_a_failure_unless_the_runbook_says_otherwise() -> None:
    (finding,) = ask({}, ended(exit_code=3), exit_code=3)
    assert finding.status is Status.FAIL and finding.limit_source.startswith("default")
    (allowed,) = ask({"exit_code": {"fail_above": 3}}, ended(exit_code=3), exit_code=3)
    assert allowed.status is Status.PASS


def test_what_was_not_measured_is_never_a_pass() -> None:
    absent = {"bw": "nothing matches", "exit_code": "the program 'x' is not on PATH"}
    missing = ask(
        {"bw": {"fail_below": 1}}, ended(not_started="the program 'x' is not on PATH", absent=absent), bw=None
    )
    assert {f.status for f in missing} == {Status.SKIP}
    unread = ask({"bw": {"fail_below": 1}}, ended(exit_code=0, absent=absent), bw=None, exit_code=0)
    assert [f.status for f in unread] == [Status.ERROR, Status.PASS] and "nothing matches" in unread[0].text
    (word,) = ask({"bw": {"fail_below": 1}}, bw="N/A")
    assert word.status is Status.ERROR and "'N/A'" in word.text
    assert [f.status for f in ask({}, other=3)] == [Status.SKIP]
    assert [f.status for f in ask({"bw": {"fail_below": 1}}, other=3)] == [Status.SKIP]


def test_limits_of_other_families_are_left_to_their_checks() -> None:
    class Mine(Limits):
        family = "mine"
        drift: Limit = Limit(fail_above=1)

    built = MeasureLimits.build({"mine.drift": {"fail_above": 2}, "bw": {"fail_below": 3}}, "book.md:1")
    assert set(built.by_name) == {"bw"} and built.by_name["bw"].source == "book.md:1"
    assert Mine.build({"mine.drift": {"fail_above": 2}}, "x").drift.fail_above == 2
