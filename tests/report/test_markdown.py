"""The Markdown report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from ddaudit.report import render
from ddaudit.report.templating import fence
from tests.report import records

ALL = ["healthy", "failed", "not_a_number", "interrupted", "empty", "audit", "hostile"]


def tokens(text: str) -> list[object]:
    parsed = MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(text)
    return [child for token in parsed for child in (token, *(token.children or ()))]


@pytest.mark.parametrize("name", ALL)
def test_no_link_image_or_html_comes_from_the_record(name: str) -> None:
    found = tokens(render(getattr(records, name)(), "md"))
    kinds = {t.type for t in found}
    assert not kinds & {"link_open", "image", "em_open", "s_open", "code_inline", "blockquote_open", "hr"}
    html = {t.content.strip() for t in found if t.type in ("html_block", "html_inline")}
    assert all(re.fullmatch(r"<details><summary>[\d a-z]+</summary>|</details>", piece) for piece in html), html


@pytest.mark.parametrize("name", ALL)
def test_tables_have_as_many_cells_in_each_row_as_heads(name: str) -> None:
    rows: list[int] = []
    for token in tokens(render(getattr(records, name)(), "md")):
        if token.type == "tr_open":
            rows.append(0)
        elif token.type in ("th_open", "td_open"):
            rows[-1] += 1
    assert rows and all(row > 1 for row in rows)
    lines = re.findall(r"^\|.*$", render(getattr(records, name)(), "md"), re.M)
    assert len(lines) - sum(bool(re.fullmatch(r"[|-]+", line)) for line in lines) == len(rows)


def test_headings_are_ours_alone() -> None:
    headings = re.findall(r"^#+ (.*)$", render(records.hostile(), "md"), re.M)
    sections = [
        "Did not pass",
        "What proves it",
        "Path taken",
        "Seven questions",
        "Ready to scale?",
        "Steps",
        "Not measured",
        "Passed",
        "Environment",
    ]
    assert [h for h in headings if not re.match(r"[✖‼▲⊘] (FAIL|ERROR|WARN|WAIVED) ", h)] == [
        *sections,
        "How to repeat this",
    ]


def test_the_first_lines_are_those_of_the_terminal() -> None:
    lines = render(records.failed(), "md", run_dir=Path("/runs/1129-1402")).splitlines()
    assert lines[0] == "**✖ FAIL** scale-out  2 ranks on node05 (cpu)  in 21.5 s  run 1129-1402"
    assert lines[2] == "- **Cause** averaged gradients against one device"
    assert "- **Report** /runs/1129-1402/report.html" in lines


def test_commands_are_in_a_fence_that_they_cannot_close() -> None:
    assert fence(["echo ```", "```"]) == "````\necho ```\n```\n````"
    assert "```\ngrep -n no_sync train.py\n```" in render(records.failed(), "md")


def test_nan_and_infinity_are_words() -> None:
    assert "measured NaN nat/token, limit Infinity nat/token" in render(records.not_a_number(), "md")
