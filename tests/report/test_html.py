"""The HTML page: one file, no script, no network, readable by everyone."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from ddaudit.errors import PackProblem
from ddaudit.findings import Status, Where
from ddaudit.packs import builtin
from ddaudit.record import Record, StepRecord
from ddaudit.report import render
from tests.report import records
from tests.report.page import Page

ALL = ["healthy", "failed", "not_a_number", "interrupted", "empty", "audit", "hostile"]
KNOWN_TAGS = re.compile(
    "html|head|meta|title|link|style|body|a|header|div|h1|h2|h3|span|dl|dt|dd|pre|code|ul|li|nav|main|section|article|p|"
    "details|summary|table|thead|tbody|tr|th|td|br|footer|script|ol|b"
)


def page(record: Record) -> Page:
    return Page(render(record, "html", run_dir=Path("/runs/1129-1402")))


@pytest.mark.parametrize("name", ALL)
def test_tags_nest_and_none_comes_from_the_record(name: str) -> None:
    found = page(getattr(records, name)())
    assert found.misnested == [] and found.open == []
    assert [tag for tag, _ in found.elements if not KNOWN_TAGS.fullmatch(tag)] == []


@pytest.mark.parametrize("name", ALL)
def test_nothing_runs_and_nothing_is_fetched(name: str) -> None:
    found = page(getattr(records, name)())
    assert found.all("script") == [{"type": "application/json", "id": "record"}]
    policies = [m["content"] for m in found.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policies[0].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    for _, attributes in found.elements:
        assert not [a for a in attributes if a.startswith("on") or a in ("src", "srcset", "action", "style")]
        assert attributes.get("href", "#").startswith(("#", "data:,"))
    assert "url(" not in found.text("style") and "@import" not in found.text("style")


@pytest.mark.parametrize("name", ALL)
def test_headings_descend_one_at_a_time_and_tables_name_their_heads(name: str) -> None:
    found = page(getattr(records, name)())
    levels = [int(tag[1]) for tag, _ in found.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(head.get("scope") in ("col", "row") for head in found.all("th"))
    assert found.all("html") == [{"lang": "en"}]


@pytest.mark.parametrize("name", ALL)
def test_links_and_labels_point_at_ids_that_exist_once(name: str) -> None:
    found = page(getattr(records, name)())
    ids = [a["id"] for _, a in found.elements if "id" in a]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for a in found.all("a")] + [a["aria-labelledby"] for a in found.all("section")]
    assert set(targets) <= set(ids)
    assert all(a.get("tabindex") == "0" and a.get("aria-label") for a in found.all("div") if a.get("class") == "scroll")


def test_the_page_says_the_same_first_lines_as_the_terminal() -> None:
    found = page(records.failed())
    told = dict(zip(labels(found, "dt"), labels(found, "dd"), strict=False))
    quiet = render(records.failed(), "text", run_dir=Path("/runs/1129-1402"), verbosity=-1, width=300).splitlines()
    for line in quiet[1:]:
        label, text = line[:8].strip(), line[9:]
        if label:
            assert told[label] == text
    assert quiet[0].split("  ", 1)[1] in found.text("span")


def labels(found: Page, tag: str) -> list[str]:
    return [text.strip() for inside, text in found.texts if inside == tag and text.strip()]


@pytest.mark.parametrize("name", ["healthy", "failed", "interrupted", "empty", "audit", "hostile"])
def test_the_embedded_record_is_the_record(name: str) -> None:
    record = getattr(records, name)()
    data = json.loads(page(record).text("script"), parse_constant=pytest.fail)
    if name == "hostile":  # holds a lone surrogate, which pydantic's own JSON mode refuses
        assert data["findings"][0]["text"] == records.HOSTILE and data["run_id"] == records.HOSTILE
    else:
        assert Record.model_validate(data) == record


def test_the_embedded_record_of_a_nan_run_keeps_its_numbers() -> None:
    data = json.loads(page(records.not_a_number()).text("script"), parse_constant=pytest.fail)
    again = Record.model_validate(data)
    assert repr(again.findings[0].measured) == "nan" and again.findings[0].limit == float("inf")


def test_nan_and_infinity_are_words_on_the_page() -> None:
    text = " ".join(labels(page(records.not_a_number()), "dd"))
    assert "NaN nat/token" in text and "Infinity nat/token" in text


def test_status_is_glyph_and_word_never_colour_alone() -> None:
    html = render(records.failed(), "html")
    for kind, glyph, word in (
        ("bad", "✖", "FAIL"),
        ("warn", "▲", "WARN"),
        ("good", "✔", "PASS"),
        ("none", "◌", "SKIP"),
    ):
        assert f'<span class="mark {kind}"><span aria-hidden="true">{glyph}</span> {word}</span>' in html


def crowd(ranks: int) -> Record:
    """Every one of ``ranks`` ranks misses a synchronisation and is listed in the evidence."""
    places = [{"rank": r, "host": f"node{r // 8:04d}", "device": f"GPU-{r:08d}"} for r in range(ranks)]
    evidence = {"training": {"job": {"parallel": "data", "world_size": ranks}, "ranks": places, "steps": [*range(20)]}}
    bad = [
        records.finding(
            Status.FAIL,
            "sync.missing-on-step",
            check="sync.frequency",
            question="sync",
            text=f"rank {rank} did not synchronise gradients at step 4",
            where=Where(host=f"node{rank // 8:04d}", rank=rank, step=4),
            measured=0,
            limit=1,
        )
        for rank in range(ranks)
    ]
    return records.record(bad, steps=(StepRecord(id="data", title="Data", state="done", evidence=evidence),))


@pytest.mark.parametrize(("ranks", "limit"), [(8, 100_000), (1024, 2_000_000)])
def test_page_weight_stays_in_its_budget(ranks: int, limit: int) -> None:
    assert len(render(crowd(ranks), "html").encode()) < limit


def test_a_record_too_large_for_a_page_is_embedded_without_evidence() -> None:
    record = records.record([records.finding(Status.PASS)])
    heavy = [s.model_copy(update={"evidence": {"training": {"blob": "x" * 1_500_000}}}) for s in record.steps]
    html = render(record.model_copy(update={"steps": tuple(heavy)}), "html")
    assert len(html) < 100_000
    assert "A shortened record is in this page" in html


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_text_colour_has_a_contrast_of_at_least_4_5_in_light_dark_and_print() -> None:
    css = (builtin() / "templates" / "report.css.j2").read_text(encoding="utf-8")
    themes = [dict(re.findall(r"--(\w+):\s*(#[0-9a-f]{6})", block)) for block in re.findall(r":root \{([^}]*)\}", css)]
    assert len(themes) == 3
    for theme in themes:
        for ground in ("page", "panel"):
            for text in ("text", "quiet", "link", "good", "warn", "bad", "none", "waived"):
                low, high = sorted((luminance(theme[ground]), luminance(theme[text])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (theme, ground, text)


def test_a_packs_template_overrides_ours_by_name(tmp_path: Path) -> None:
    (tmp_path / "report.html.j2").write_text("<p>{{ view.verdict.word }} {{ view.run_id }}</p>")
    html = render(records.healthy().model_copy(update={"run_id": "<i>"}), "html", template_folders=[tmp_path])
    assert html == "<p>PASS &lt;i&gt;</p>"


def test_a_template_that_names_an_unknown_field_is_its_authors_problem(tmp_path: Path) -> None:
    (tmp_path / "report.html.j2").write_text("{{ view.no_such_field }}")
    with pytest.raises(PackProblem, match="no_such_field"):
        render(records.healthy(), "html", template_folders=[tmp_path])


def test_a_template_that_does_not_parse_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "report.html.j2").write_text("fine\n{% if %}\n")
    with pytest.raises(PackProblem, match=r"report\.html\.j2:2: template"):
        render(records.healthy(), "html", template_folders=[tmp_path])
