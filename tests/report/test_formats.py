"""The table of formats, the files in a run folder, and what importing a report costs."""

from __future__ import annotations

import dataclasses
import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddaudit.record import Record
from ddaudit.report import FORMATS, model, render, write_reports
from tests.report import records
from tests.report.exhibited import priced


def test_reports_are_written_under_their_names_without_leftovers(tmp_path: Path) -> None:
    written = write_reports(records.failed(), tmp_path, formats=FORMATS)
    assert {p.name for p in written} == {format.file for format in FORMATS.values()}
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in written}
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == render(records.failed(), "md", run_dir=tmp_path)


@pytest.mark.parametrize("format", list(FORMATS))
@pytest.mark.parametrize("name", ["not_a_number", "hostile", "empty", "interrupted"])
def test_every_format_renders_every_record_as_utf8_and_the_same_twice(format: str, name: str) -> None:
    record = getattr(records, name)()
    text = render(record, format)
    assert text.encode("utf-8") and text == render(record, format)


@pytest.mark.parametrize("format", list(FORMATS))
def test_no_control_or_bidi_character_reaches_a_file(format: str) -> None:
    text = render(records.hostile(), format, verbosity=1)
    assert {c for c in text if not c.isprintable()} <= {"\n"}


@pytest.mark.parametrize("format", list(FORMATS))
def test_a_megabyte_in_one_string_is_cut_everywhere_but_in_data(format: str) -> None:
    long = records.finding(records.Status.FAIL, text="A" * 1_000_000, step="B" * 1_000_000)
    size = len(render(records.record([long]), format))
    assert size < (2_200_000 if format == "json" else 120_000)


def loaded(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_reports_loads_no_renderer() -> None:
    assert not loaded("import ddaudit.report") & {"jinja2", "rich", "torch", "h5py", "matplotlib", "numpy"}


def test_rendering_loads_no_torch_h5py_matplotlib_or_engine() -> None:
    code = (
        "from ddaudit.record import Record\nfrom ddaudit.report import FORMATS, render\n"
        "r = Record(ddaudit_version='1', command='run', run_id='x', created=0.0)\n"
        "for f in FORMATS: assert render(r, f)"
    )
    modules = loaded(code)
    assert not modules & {"torch", "h5py", "matplotlib", "numpy", "ddaudit.engine"}
    assert {"jinja2", "rich"} <= modules


def test_the_documentation_names_every_format_and_every_field_of_the_view() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
    for format in FORMATS.values():
        assert f"| `{format.name}` | `{format.file}` | {format.about} |" in page
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", page))))
    for part in (model.View, model.Row, model.AnswerView, model.StepView, model.Matrix, model.Missing, model.Mark,
                 model.IncidentView, model.ProofLine, model.Node):  # fmt: skip
        assert {field.name for field in dataclasses.fields(part)} <= words, part


@pytest.mark.parametrize("face", ["text", "html", "md"])
def test_every_report_says_what_measuring_cost_with_its_interval_or_that_nobody_measured_it(face: str) -> None:
    def told(record: Record) -> str:
        return re.sub(r"[\s\\]+", " ", html.unescape(render(record, face, width=400)))

    counted = "at most 0.40% of the ranks' CPU time"
    compared = told(priced(0.002, 0.008, 0.014))
    assert counted in compared and "steps of data are 0.8% shorter (95 %: 0.2% to 1.4%)" in compared
    assert counted in told(priced()) and "A/B against steps without timers was not measured" in told(priced())
    assert "not measured: no step recorded its timers" in told(records.healthy())
    assert "Cost of measuring" not in told(records.audit())
