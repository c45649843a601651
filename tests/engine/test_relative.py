"""Limits that name a reference: "95 % of baseline", "70 % of peak"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddaudit.engine.baselines import Baseline, Known
from ddaudit.engine.outcome import Outcome, Standards, judge_step
from ddaudit.evidence.measures import Measure, Measures
from ddaudit.findings import Finding, Status
from ddaudit.limits import share_of
from ddaudit.packs import load
from ddaudit.runbook import lint_runbook
from ddaudit.runbook.model import PlannedStep

PACKS = load(entries=False, environment=False)
KNOWN = Known(unit="GB/s", better="higher", median=300.0, spread=3.0, count=10)
BASELINE = Baseline(name="h200", created=0.0, runs=("a",), devices={"NVIDIA H200": {"wire.bus_gbps": KNOWN}})


def judged(
    bound: str, value: float, *, baseline: Baseline | None = BASELINE, device: str = "NVIDIA H200"
) -> list[Finding]:
    measures = (Measure(name="bus_gbps", value=value, unit="GB/s"), Measure(name="bus_gbps_peak", value=400.0))
    step = PlannedStep(
        id="wire", title="Wire", source="book.md:3", runbook="book", checks=("measures.within-limits",),
        limits={"bus_gbps": {"fail_below": bound, "source": "book.md:9"}},
    )  # fmt: skip
    outcome = Outcome(step, "done", evidence={"measures": Measures(values=measures)})
    return list(judge_step(outcome, PACKS.registry, [], Standards(baseline=baseline, device=device)).findings)


@pytest.mark.parametrize(
    ("bound", "value", "status", "limit"),
    [
        ("95 % of baseline", 286.0, Status.PASS, 285.0),
        ("95% of baseline", 284.0, Status.FAIL, 285.0),
        ("70 % of peak", 281.0, Status.PASS, 280.0),
        ("70 % of peak", 279.0, Status.FAIL, 280.0),
    ],
)
def test_a_share_becomes_the_number_that_is_judged_and_printed(
    bound: str, value: float, status: Status, limit: float
) -> None:
    (found,) = judged(bound, value)
    assert (found.status, found.limit) == (status, pytest.approx(limit))
    assert bound in (found.limit_source or "") and "book.md:9" in (found.limit_source or "")


@pytest.mark.parametrize(("baseline", "device"), [(None, "NVIDIA H200"), (BASELINE, "NVIDIA A100")])
def test_without_its_reference_a_limit_is_a_skip_that_says_what_is_needed(
    baseline: Baseline | None, device: str
) -> None:
    found = judged("95 % of baseline", 1.0, baseline=baseline, device=device)
    assert {f.status for f in found} == {Status.SKIP}
    assert any(f.id == "limits.no-reference" and "--baseline" in f.text for f in found)


def test_gpus_whose_name_no_step_read_yet_are_those_of_the_only_gpu_baseline() -> None:
    assert judged("95 % of baseline", 100.0, device="cuda")[0].status is Status.FAIL


@pytest.mark.parametrize(
    "text", ["95", "95 % of the baseline", "of baseline", "-5 % of peak", "95 % of baseline; x", None, 3]
)
def test_anything_else_is_no_share(text: Any) -> None:
    assert share_of(text) is None


PAGE = """# B

```toml runbook
id = "b"
```

## Wire

```toml step wire
probe = "command"
with = { argv = ["true"], capture.regex = { bus_gbps = "(?P<value>x)" } }
checks = ["measures.within-limits"]
limits.bus_gbps = { fail_below = "BOUND" }
timeout = "5s"
```
"""


@pytest.mark.parametrize(("bound", "sound"), [("95 % of baseline", True), ("95 % of basement", False)])
def test_lint_knows_a_share_from_a_mistake(tmp_path: Path, bound: str, sound: bool) -> None:
    (page := tmp_path / "b.md").write_text(PAGE.replace("BOUND", bound))
    assert (lint_runbook(page, PACKS) == []) is sound
