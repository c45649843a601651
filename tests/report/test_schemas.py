"""Formats are held against the schemas and rules of those who read them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddaudit.findings import Severity, Status
from ddaudit.record import Record
from ddaudit.report import render
from ddaudit.report.github import MAX_ANNOTATIONS, MAX_BYTES, workflow_commands
from ddaudit.report.incident import MAX_CHARACTERS, MAX_LINES
from ddaudit.report.prom import GAUGES, MAX_SERIES
from tests.report import exhibited, records

ROOT = Path(__file__).parents[2]
ALL = ["healthy", "failed", "not_a_number", "interrupted", "empty", "audit", "hostile"]


def every() -> list[Record]:
    return [
        *(getattr(records, name)() for name in ALL),
        exhibited.triaged(),
        exhibited.walked(),
        exhibited.checkpointed(),
    ]


def test_junit_is_xunit2() -> None:
    xmlschema = pytest.importorskip("xmlschema")
    schema = xmlschema.XMLSchema(str(Path(__file__).parent / "xunit2.xsd"))
    for record in every():
        schema.validate(render(record, "junit"))
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        schema.validate(render(records.failed(), "junit").replace("<testcase", "<case").replace("</testcase", "</case"))


def test_json_is_what_the_published_schema_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    for record in every():
        data = json.loads(render(record, "json"))
        assert [e.message for e in validator.iter_errors(data)] == []
    assert list(validator.iter_errors({**data, "verdict": "FINE"}))


#: One sample of the text exposition format: a name, labels whose values escape quotes and backslashes, a float.
SAMPLE = re.compile(
    r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (NaN|[+-]Inf|-?\d+(?:\.\d+)?(?:e[+-]\d+)?)'
)


@pytest.mark.parametrize("name", ALL)
def test_prom_keeps_to_the_text_format_with_five_gauges_and_no_series_twice(name: str) -> None:
    lines = render(getattr(records, name)(), "prom").splitlines()
    seen: list[str] = []
    for line in lines:
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP ddaudit_\w+ .+|TYPE ddaudit_\w+ gauge|\d+ measures are left out)", line)
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert not {"host", "rank", "run"} & set(re.findall(r'(\w+)="', match[2]))
        seen.append(line.rpartition(" ")[0])
    assert len(seen) == len(set(seen)) and {s.partition("{")[0] for s in seen} <= set(GAUGES)
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == list(GAUGES)


def samples(record: Record) -> Mapping[str, float]:
    pairs = (line.rpartition(" ") for line in render(record, "prom").splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_prom_tells_the_verdict_the_counts_and_the_numbers() -> None:
    told = samples(records.failed())
    book = 'runbook="scale-out"'
    assert told[f"ddaudit_run_exit_code{{{book}}}"] == 1
    assert told[f'ddaudit_findings{{{book},status="FAIL",severity="major"}}'] == 8
    assert told[f'ddaudit_check_status{{{book},check="sync.frequency"}}'] == 2
    labels = f'{book},check="sync.frequency",metric="sync.missing-on-step",unit="round"'
    assert [told[f'ddaudit_measure{{{labels},stat="{s}"}}'] for s in ("min", "median", "max")] == [0, 0.5, 1]


def test_prom_has_a_limit_on_series_and_says_what_it_leaves_out() -> None:
    many = [records.finding(Status.PASS, f"measure-{i}", measured=i) for i in range(MAX_SERIES)]
    text = render(records.record(many), "prom")
    assert text.count("\nddaudit_measure{") == MAX_SERIES and f"# {2 * MAX_SERIES} measures are left out" in text


def crowd(count: int) -> Record:
    bad = [
        records.finding(Status.FAIL, f"fault.{i}", text=f"fault {i}: 50% of\nit", severity=Severity.MAJOR)
        for i in range(count)
    ]
    return records.record(bad)


@pytest.mark.parametrize("name", [*ALL, "long"])
def test_github_gets_a_summary_that_fits_and_closes_what_it_opens(name: str) -> None:
    record = crowd(900) if name == "long" else getattr(records, name)()
    text = render(record, "github")
    assert len(text.encode()) <= MAX_BYTES
    assert text.count("\n```") % 2 == 0 and text.count("<details>") == text.count("</details>")
    assert ("Cut at 60,000 bytes" in text) is (name == "long")


def test_github_gets_at_most_ten_annotations_worst_first_and_none_breaks_its_line() -> None:
    lines = workflow_commands(crowd(25))
    assert len(lines) == MAX_ANNOTATIONS and lines[-1].startswith("::notice title=ddaudit::and 16 more")
    assert lines[0] == "::error title=ddaudit fault.0::fault 0: 50%25 of ⏎ it"
    levels = [line.split(" ")[0] for line in workflow_commands(records.failed())]
    assert levels == sorted(levels) and "::warning" in levels
    hostile = workflow_commands(records.hostile())
    assert hostile and all(line.isprintable() and line.startswith("::error title=ddaudit ") for line in hostile)
    assert workflow_commands(records.healthy()) == []


@pytest.mark.parametrize("name", [*ALL, "triaged"])
def test_an_incident_post_is_short_has_no_table_and_nothing_a_chat_acts_on(name: str) -> None:
    record = exhibited.triaged() if name == "triaged" else getattr(records, name)()
    text = render(record, "incident", run_dir=Path("/runs/1129-1402"))
    lines = text.rstrip("\n").split("\n")
    assert len(lines) <= MAX_LINES and len(text) <= MAX_CHARACTERS + 100
    prose = [line for line in lines if line.startswith("**")]
    assert prose[0].startswith("**") and not any(c in line for line in prose for c in "|<>@`[]")
    assert "://" not in "".join(prose) and text.count("```") in (0, 2)


def test_an_incident_post_says_cause_who_and_what_to_type() -> None:
    text = render(exhibited.triaged(), "incident")
    assert "A GPU dropped off PCIe" in text and "node07" in text
    assert "```\nscontrol update nodename=node07 state=drain reason=ddaudit\n```" in text
