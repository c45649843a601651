"""Pages run for real: a triage that walks its edges, hands a measured number on, and shows the remedy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ddaudit.cli.main import main

PYTHON = json.dumps(sys.executable)
TRIAGE = f"""\
# Which link is slow?

```toml runbook
id     = "links"
mode   = "triage"
params.floor = {{ type = "float", default = 300 }}
```

## Measure

```toml step measure
probe    = "command"
checks   = ["measures.within-limits"]
limits.bus_gbps = {{ fail_below = "$floor" }}
on       = {{ pass = "stop", fail = "look" }}
remedy   = "Reseat the cable:\\n\\n    ibstat\\n"
[with]
argv = [{PYTHON}, "-c", "print('slowest port 7 at 12.5')"]
capture.regex = {{ bus_gbps = 'at (?P<value>\\S+)', port = 'port (?P<value>\\S+)' }}
```

## Never here

```toml step never
manual = "Is it raining?"
on = {{ pass = "look" }}
```

## Look closer

```toml step look
probe  = "command"
checks = ["measures.within-limits"]
limits.seen = {{ fail_above = "$floor" }}
on     = {{ pass = "missing", fail = "missing" }}
[with]
argv = [{PYTHON}, "-c", "import sys; print('seen', sys.argv[1], '$$HOME')", "$measure.port"]
capture.regex = {{ seen = 'seen (?P<value>\\S+)' }}
```

## A tool that is not installed

```toml step missing
probe  = "command"
with   = {{ argv = ["no-such-vendor-tool"] }}
checks = ["measures.within-limits"]
```
"""


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """Exit code and record of one walk through the page."""
    folder = tmp_path_factory.mktemp("links")
    (folder / "links.md").write_text(TRIAGE)
    code = main(
        ["run", str(folder / "links.md"), "--out", str(folder / "runs"), "--device", "cpu", "--no-progress", "-q"]
    )
    (record,) = folder.glob("runs/*/record.json")
    return code, json.loads(record.read_text())


def found(walked: tuple[int, dict[str, Any]], step: str) -> list[dict[str, Any]]:
    return [finding for finding in walked[1]["findings"] if finding["step"] == step]


def test_the_walk_follows_the_outcomes(walked: tuple[int, dict[str, Any]]) -> None:
    code, record = walked
    assert code == 1 and [step["id"] for step in record["steps"]] == ["measure", "look", "missing"]


def test_a_limit_of_the_page_is_named_by_its_line(walked: tuple[int, dict[str, Any]]) -> None:
    bad = next(f for f in found(walked, "measure") if f["status"] == "FAIL")
    line = next(n for n, text in enumerate(TRIAGE.splitlines(), 1) if "limits.bus_gbps" in text)
    assert (bad["measured"], bad["limit"], bad["limit_source"]) == (12.5, 300, f"links.md:{line}")
    assert bad["remedy"] == {"text": "Reseat the cable:", "commands": ["ibstat"]}


def test_a_measured_number_reaches_the_next_step(walked: tuple[int, dict[str, Any]]) -> None:
    seen = next(f for f in found(walked, "look") if "seen" in f["text"])
    assert seen["status"] == "PASS" and seen["measured"] == 7


def test_a_missing_program_is_not_measured(walked: tuple[int, dict[str, Any]]) -> None:
    (finding,) = found(walked, "missing")
    assert finding["status"] == "SKIP" and "'no-such-vendor-tool' is not on PATH" in finding["text"]


def test_a_condition_that_does_not_hold_skips_the_step_with_the_numbers(tmp_path: Path) -> None:
    page = f'# T\n\n```toml runbook\nid = "t"\n```\n\n```toml step a\nprobe = "command"\nwith.argv = [{PYTHON}, "-V"]\n'
    (tmp_path / "t.md").write_text(page + 'checks = ["measures.*"]\nwhen = "cpus >= 100000"\n```\n')
    arguments = ["run", str(tmp_path / "t.md"), "--out", str(tmp_path / "r"), "--device", "cpu", "--no-progress", "-q"]
    assert main(arguments) == 3
    (record,) = tmp_path.glob("r/*/record.json")
    (finding,) = json.loads(record.read_text())["findings"]
    assert finding["status"] == "SKIP" and "cpus >= 100000 is false (cpus = " in finding["text"]
