"""Pictures: one sentence and one table each, text as text, the page's colours, and nothing from a record but words."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from ddaudit.jsonio import dumps
from ddaudit.packs import builtin
from ddaudit.record import Record
from ddaudit.report import gallery, render
from ddaudit.report.gallery import areas
from ddaudit.report.pictures import COLOURS, Picture
from tests.report import records
from tests.report.exhibited import checkpointed, drawn, scaled_out
from tests.report.page import Page

TAGS = {"svg", "title", "desc", "g", "defs", "path", "use", "text"}


@pytest.fixture(scope="module")
def pictures() -> dict[str, Picture]:
    return by_id(drawn(records.failed(), slow=3))


def by_id(record: Record) -> dict[str, Picture]:
    return {p.id: p for area in areas(record) for p in area.pictures}


def test_a_run_with_everything_has_every_picture_in_its_area(pictures: dict[str, Picture]) -> None:
    assert {p.id: p.area for p in pictures.values()} == {
        "loss": "loss",
        "ledger": "compute",
        "heat": "compute",
        "spread-steps": "compute",
        "bandwidth": "communication",
        "spread-input": "input",
        "memory": "memory",
        "launch": "scheduler",
        "coverage": "checkpoint",
    }


def test_sentences_state_what_the_numbers_say(pictures: dict[str, Picture]) -> None:
    found = {id: p.finding for id, p in pictures.items()}
    assert "Communication takes 23% of a typical step" in found["ledger"]
    assert "Rank 3 node00 takes 1.9" in found["heat"] and "times the median" in found["heat"]
    assert "from 3.4 to 1.31" in found["loss"]
    assert "all-reduce reaches" in found["bandwidth"] and "GB/s at 16 MiB" in found["bandwidth"]
    assert "2.794 GiB" in found["memory"] and "5% of the 59.6 GiB" in found["memory"]
    assert "1 of 2 parts have gaps; the first is optimizer" in found["coverage"]


def test_bandwidth_is_held_against_the_baseline_where_the_run_was_compared() -> None:
    record = drawn(records.failed(), slow=3)
    step = next(s.id for s in record.steps if "collectives" in s.evidence)
    row = {"metric": f"{step}.all_reduce_busbw_gbps", "unit": "GB/s", "baseline": 99.0, "limit": 95.5}
    picture = by_id(record.model_copy(update={"extra": {"compared": [row, "damage"]}}))["bandwidth"]
    assert picture.finding.endswith("a bar its limit: all-reduce below its limit.")
    assert [r[:2] for r in picture.rows[-2:]] == [("baseline", "99 GB/s"), ("limit", "95.5 GB/s")]
    plain = by_id(record)["bandwidth"]
    assert "baseline" not in plain.finding and len(plain.rows) == len(picture.rows) - 2


def test_every_picture_has_a_table_and_says_its_sentence_to_screen_readers(pictures: dict[str, Picture]) -> None:
    for picture in pictures.values():
        assert picture.rows and all(len(row) == len(picture.heads) for row in picture.rows), picture.id
        page = Page(picture.drawing)
        assert page.all("svg")[0]["aria-labelledby"] == f"{picture.id}-title {picture.id}-finding"
        assert page.text("desc") == picture.finding and page.text("title") == picture.title


def test_svg_is_plain_text_and_shapes_in_the_colours_of_the_page(pictures: dict[str, Picture]) -> None:
    names = set(re.findall(r"--([\w-]+):", (builtin() / "templates" / "report.css.j2").read_text(encoding="utf-8")))
    for picture in pictures.values():
        page = Page(picture.drawing)
        assert page.misnested == [] and {tag for tag, _ in page.elements} <= TAGS
        assert len(page.all("text")) > 3  # text, not outlines of letters
        for _, attributes in page.elements:
            assert not {"style", "onload", "xlink:href"} & set(attributes)
            assert attributes.get("href", "#").startswith("#")
        assert not re.search(r"#[0-9a-f]{6}", picture.drawing), "a colour that no theme changes"
        assert set(re.findall(r"var\(--([\w-]+)\)", picture.drawing)) <= names
        ids = [a["id"] for _, a in page.elements if "id" in a]
        assert {a["href"][1:] for a in page.all("use")} <= set(ids)
    assert {f"c-{name}" for name in COLOURS} - names == {"c-ink", "c-quiet", "c-line", "c-page"}


def test_the_same_numbers_give_the_same_drawing(pictures: dict[str, Picture]) -> None:
    assert by_id(drawn(records.failed(), slow=3))["heat"] == pictures["heat"]


def test_a_page_with_all_pictures_has_unique_ids_and_links_to_every_area() -> None:
    page = Page(render(drawn(records.failed()), "html"))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids)) and page.misnested == []
    links = {a["href"] for a in page.all("a")}
    assert {"#area-loss", "#area-compute", "#area-communication", "#area-memory", "#area-checkpoint"} <= links


def test_a_name_that_is_markup_or_mathematics_is_shown_as_it_is() -> None:
    base = drawn(records.healthy(), ranks=2)
    evil = "$x^2$<script>\u202e"
    tables = dict(base.steps[1].exhibits)
    tables["step-times"] = {**tables["step-times"], "rows": [evil, evil]}
    steps = (base.steps[0], base.steps[1].model_copy(update={"id": evil, "exhibits": tables}))
    page = Page(render(base.model_copy(update={"steps": steps}), "html"))
    assert page.all("script") == [{"type": "application/json", "id": "record"}] and page.misnested == []
    assert "$x^2" in page.text("text") and "\u202e" not in page.text("text")


def nothing_known(value: Any) -> Any:
    """The same tables with NaN for every number but counts."""
    if isinstance(value, float):
        return math.nan
    if isinstance(value, dict):
        return {k: nothing_known(v) for k, v in value.items()}
    return [nothing_known(v) for v in value] if isinstance(value, list) else value


def test_numbers_that_are_not_known_cost_a_picture_and_never_the_page(caplog: pytest.LogCaptureFixture) -> None:
    base = drawn(records.failed(), ranks=2)
    steps = [s.model_copy(update={"exhibits": nothing_known(dict(s.exhibits))}) for s in base.steps]
    page = Page(render(base.model_copy(update={"steps": tuple(steps)}), "html"))
    assert page.misnested == [] and page.text("h1")


def test_a_module_that_breaks_costs_its_pictures_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gallery, "DRAWERS", ("ddaudit.report.no_such:draw", *gallery.DRAWERS))
    assert "loss" in by_id(drawn(records.healthy(), ranks=2))
    assert "no_such" in caplog.text


def test_checkpoint_gaps_are_marked_by_a_word_and_an_outline() -> None:
    picture = by_id(checkpointed())["coverage"]
    assert picture.drawing.count(">gap<") == 30 and "30 of 30 parts have gaps" in picture.finding


@pytest.mark.parametrize(("ranks", "limit"), [(8, 400_000), (1024, 2_000_000)])
def test_a_page_of_a_whole_scale_out_with_a_finding_a_rank_keeps_to_its_weight(ranks: int, limit: int) -> None:
    record = scaled_out(ranks)
    assert len(record.findings) > 200 + ranks and len(dumps(record.findings[0].model_dump())) > 500  # as real ones are
    html = render(record, "html")
    assert 200_000 < len(html.encode()) < limit
    data = json.loads(Page(html).text("script"))
    again = Record.model_validate(data)
    assert again.findings == record.findings and again.plan is not None and record.plan is not None
    assert [s.params for s in again.plan.steps] == [s.params for s in record.plan.steps]
    assert [s.summary for s in again.steps] == [s.summary for s in record.steps]


def test_a_picture_belongs_to_an_area_and_has_an_id_that_html_takes(pictures: dict[str, Picture]) -> None:
    for wrong in ({"area": "somewhere"}, {"id": "a b"}, {"id": "a<b"}):
        with pytest.raises(AssertionError):
            replace(pictures["loss"], **wrong)
