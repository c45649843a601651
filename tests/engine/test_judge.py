"""The engine owns everything around a check: missing evidence, exceptions, nonsense, silence, endless work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ddaudit.api import Finding, Limit, Limits, Measures, Remedy, Severity, Status, check, ok, warn
from ddaudit.engine.judge import judge
from ddaudit.evidence import Measure
from ddaudit.registry import CheckSpec
from ddaudit.runbook.model import PlannedStep

STEP = PlannedStep(id="s", title="S", source="book.md:3", runbook="book", severity=Severity.CRITICAL)
EVIDENCE = {"measures": Measures(values=(Measure(name="x", value=1.0),))}


def spec_of(function: Callable[..., Any]) -> CheckSpec:
    return check("t.check", asks="?", question="loss")(function).spec


def test_a_finding_gets_what_the_engine_knows():
    def says(values: Measures) -> Iterator[Finding]:
        yield ok("fine", measured=1)

    (finding,) = judge(spec_of(says), EVIDENCE, step=STEP)
    assert (finding.check, finding.id, finding.step) == ("t.check", "t.check", "s")
    assert (finding.question, finding.severity, finding.evidence) == ("loss", Severity.CRITICAL, "events/s/")


def test_a_severity_that_the_check_sets_outranks_the_steps():
    def says(values: Measures) -> Iterator[Finding]:
        yield warn("t.minor", "meh", severity=Severity.MINOR)

    assert judge(spec_of(says), EVIDENCE, step=STEP)[0].severity is Severity.MINOR


def test_a_bad_finding_without_a_remedy_gets_the_steps():
    def says(values: Measures) -> Iterator[Finding]:
        yield warn("t.meh", "meh")
        yield warn("t.own", "meh", remedy=Remedy(text="its own"))
        yield ok("fine")

    step = STEP.model_copy(update={"remedy": "Look at\nthe fan:\n\n    sensors -A\n    dmesg | tail\n"})
    meh, own, fine = judge(spec_of(says), EVIDENCE, step=step)
    assert meh.remedy == Remedy(text="Look at the fan:", commands=("sensors -A", "dmesg | tail"))
    assert own.remedy == Remedy(text="its own") and fine.remedy is None


def test_missing_evidence_is_a_skip_that_says_what_is_missing():
    def says(values: Measures) -> Iterator[Finding]:
        yield ok("never")

    (finding,) = judge(spec_of(says), {}, step=STEP)
    assert finding.status is Status.SKIP
    assert "measures" in finding.text


def test_optional_evidence_may_be_missing():
    def says(values: Measures | None) -> Iterator[Finding]:
        yield ok(f"got {values}")

    assert judge(spec_of(says), {}, step=STEP)[0].text == "got None"


def test_the_reference_comes_from_the_other_step():
    def says(values: Measures, reference: Measures) -> Iterator[Finding]:
        yield ok(f"{values.values[0].value} against {reference.values[0].value}")

    other = {"measures": Measures(values=(Measure(name="x", value=2.0),))}
    assert judge(spec_of(says), EVIDENCE, step=STEP, reference=other)[0].text == "1.0 against 2.0"
    assert judge(spec_of(says), EVIDENCE, step=STEP)[0].status is Status.SKIP


def test_an_exception_is_an_error_with_its_place_and_keeps_earlier_findings():
    def says(values: Measures) -> Iterator[Finding]:
        yield ok("first")
        raise KeyError("gone")

    first, second = judge(spec_of(says), EVIDENCE, step=STEP)
    assert first.status is Status.PASS
    assert second.status is Status.ERROR
    assert "KeyError" in second.text and "test_judge.py" in second.text


def test_nonsense_silence_and_endless_work_are_errors():
    def nonsense(values: Measures) -> Iterator[Any]:
        yield "fine"

    def silent(values: Measures) -> Iterator[Finding]:
        return
        yield

    def endless(values: Measures) -> Iterator[Finding]:
        while True:
            pass
        yield ok("never")

    for function, word in ((nonsense, "str"), (silent, "said nothing"), (endless, "did not end")):
        (finding,) = judge(spec_of(function), EVIDENCE, step=STEP, timeout_s=0.2)
        assert finding.status is Status.ERROR
        assert word in finding.text


def test_a_runbooks_limit_replaces_the_default_and_names_its_line():
    class L(Limits):
        family = "t"
        x: Limit = Limit(fail_above=10.0, source="default")

    def says(values: Measures, limits: L) -> Iterator[Finding]:
        yield ok("x", limit=limits.x.fail_above, limit_source=limits.x.source)

    # Hints of a local class are looked up in the function's globals.
    says.__annotations__["limits"] = L
    spec = spec_of(says)
    assert judge(spec, EVIDENCE, step=STEP)[0].limit == 10.0
    strict = STEP.model_copy(update={"limits": {"t.x": {"fail_above": 2.0}}})
    finding = judge(spec, EVIDENCE, step=strict)[0]
    assert (finding.limit, finding.limit_source) == (2.0, "book.md:3")
