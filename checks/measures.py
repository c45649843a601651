"""Measures of any probe against the limits that a runbook sets on them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence

from ddaudit.api import (
    CommandRun,
    Finding,
    Limit,
    Measure,
    MeasureLimits,
    Measures,
    Plant,
    Status,
    check,
    draft,
    fail,
    ok,
    skip,
    warn,
)

#: A program tells by its exit code that it failed; a runbook may set another limit on it.
EXIT_CODE = Limit(fail_above=0, fail_below=0, source="default: a program that succeeds exits with 0")
#: Findings on values of one measure; the rest is counted, not listed.
MAX_LISTED = 20


def _printing(number: str, code: int = 0) -> Mapping[str, object]:
    """Parameters of a program that prints one bandwidth and exits with ``code``."""
    return {
        "argv": [sys.executable, "-c", f"print('busbw {number} GB/s'); raise SystemExit({code})"],
        "capture": {"regex": {"bus_gbps": r"busbw (?P<value>\S+) GB/s"}},
        "units": {"bus_gbps": "GB/s"},
    }


@check(
    "measures.within-limits",
    asks="Are the numbers that the step measured within the limits that the runbook sets?",
    plant=[
        Plant(
            "a program that prints a low bandwidth",
            "measures.out-of-limits",
            probe="command",
            params=_printing("371.5"),
            planted=_printing("4.2"),
            limits={"bus_gbps": {"warn_below": 340, "fail_below": 320}},
        ),
        Plant(
            "a program that exits with 3",
            "measures.out-of-limits",
            probe="command",
            params=_printing("371.5"),
            planted=_printing("371.5", code=3),
        ),
    ],
)
def within_limits(measures: Measures, limits: MeasureLimits, command: CommandRun | None) -> Iterator[Finding]:
    """Holds each measure for which the step sets ``limits.<measure>`` against that limit.

    The exit code of a program is held against 0 unless the step sets ``limits.exit_code``. A measure without a value is
    never a pass: it is skipped when the program is not installed, and an error when the program ran and did not print
    it.
    """
    wanted = dict(limits.by_name)
    if command is not None:
        wanted.setdefault("exit_code", EXIT_CODE)
    if not wanted:
        yield skip("no limit is set on a measure of this step; add limits.<measure> = { fail_above = ... }")
    for name, limit in wanted.items():
        found = measures.named(name)
        numbers = [m for m in found if isinstance(m.value, int | float)]
        if numbers:
            yield from _numbers(name, limit, numbers)
        elif found and isinstance(found[0].value, str):
            text = f"{name} is the word {found[0].value!r}, which no limit can judge"
            yield draft(Status.ERROR, "measures.no-number", text, where=found[0].where)
        else:
            yield _unmeasured(name, limit, command)


def _numbers(name: str, limit: Limit, found: Sequence[Measure]) -> Iterator[Finding]:
    """One finding for each value outside; one for all values when none is."""
    judged = [(m, limit.judge(float(m.value or 0)), float(m.value or 0)) for m in found]
    bad = [(m, status, value) for m, status, value in judged if status is not Status.PASS]
    for m, status, value in bad[:MAX_LISTED]:
        bound = limit.bound(value)
        side = "below" if bound is not None and value < bound else "above"
        text = f"{name} is {_with_unit(value, m.unit)}, {side} {_with_unit(bound, m.unit)}"
        if math.isnan(value):
            text = f"{name} is NaN, which no bound admits"
        write = fail if status is Status.FAIL else warn
        yield write("measures.out-of-limits", text, where=m.where, **_judged(limit, value, m))
    if bad:
        return
    values = [value for _, _, value in judged]
    # Of several good values, show the one closest to its bound.
    m, _, value = min(judged, key=lambda item: abs(item[2] - (limit.bound(item[2]) or 0.0)))
    spread = f" ({len(values)} values from {min(values):g} to {max(values):g})" if len(values) > 1 else ""
    yield ok(f"{name} is {_with_unit(value, m.unit)}{spread}", where=m.where, **_judged(limit, value, m))


def _judged(limit: Limit, value: float, measure: Measure) -> dict[str, object]:
    bound, source = limit.bound(value), limit.source
    return {"measured": value, "unit": measure.unit, "limit": bound, "limit_source": source}


def _with_unit(value: float | None, unit: str | None) -> str:
    number = "no bound" if value is None else f"{value:g}"
    return f"{number} {unit}" if unit else number


def _unmeasured(name: str, limit: Limit, command: CommandRun | None) -> Finding:
    if command is None:
        return skip(f"the step recorded no measure {name!r}", limit_source=limit.source)
    reason = command.absent.get(name, "the program's output does not hold it")
    if command.not_started:
        return skip(f"{name} was not measured: {reason}", limit_source=limit.source)
    return draft(Status.ERROR, "measures.not-captured", f"{name} was not measured: {reason}", limit_source=limit.source)
