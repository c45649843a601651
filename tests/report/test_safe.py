"""Text from anywhere is inert in every format, and the view holds nothing else."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ddaudit.report.safe import json_text, markdown, to_ascii, visible
from ddaudit.report.view import build_view
from tests.report import records


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from strings(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from strings(item)


def test_visible_text_is_one_printable_line_of_bounded_length() -> None:
    shown = visible(records.HOSTILE)
    assert shown.isprintable()
    assert "\\x1b" in shown and "\\u202e" in shown and "\\ud800" in shown and "⏎" in shown


def test_a_megabyte_line_is_cut_and_the_rest_is_counted() -> None:
    shown = visible("x" * 1_048_576)
    assert shown.endswith("… (1,046,576 more characters)")
    assert len(shown) < 2100


@pytest.mark.parametrize("text", ["plain words", "naïve Größe 漢字", ""])
def test_harmless_text_is_left_as_it_is(text: str) -> None:
    assert visible(text) == text


@given(st.text(alphabet=st.characters(), max_size=300), st.integers(1, 300))
def test_any_text_becomes_one_printable_line_that_stays_as_it_is_when_shown_again(text: str, limit: int) -> None:
    shown = visible(text, limit)
    assert shown.isprintable()
    assert visible(shown, len(shown) + 1) == shown.strip()


@given(
    st.text(alphabet=st.characters(), max_size=100) | st.text(alphabet="#*_-+=~`<>&;!|[]()0129.: \\\nab", max_size=40)
)
def test_any_markdown_escaped_text_shows_as_itself_and_makes_no_markup(text: str) -> None:
    line = visible(text)
    tokens = MarkdownIt("commonmark").enable("strikethrough").enable("table").parse(markdown(line))
    assert [token.type for token in tokens] in ([], ["paragraph_open", "inline", "paragraph_close"])
    assert {child.type for token in tokens for child in token.children or ()} <= {"text", "text_special"}
    assert "".join(child.content for token in tokens for child in token.children or ()) == line


@given(st.text(alphabet=st.characters(), max_size=100))
def test_any_json_text_keeps_its_value_and_closes_no_script(text: str) -> None:
    dumped = json_text(json.dumps({"k": text}, ensure_ascii=False), html=True)
    assert json.loads(dumped) == {"k": text}
    assert "<" not in dumped and dumped.isprintable()


def test_every_string_of_the_view_of_a_hostile_record_is_printable() -> None:
    found = list(strings(build_view(records.hostile())))
    assert len(found) > 100
    assert [s for s in found if not s.isprintable()] == []


def test_every_string_of_the_view_of_a_megabyte_record_is_short() -> None:
    found = list(strings(build_view(records.hostile("A" * 1_000_000))))
    assert max(map(len, found)) < 3000


def test_json_escapes_controls_and_keeps_the_value() -> None:
    text = json_text(json.dumps({"k": records.HOSTILE}, ensure_ascii=False), html=True)
    assert json.loads(text) == {"k": records.HOSTILE}
    assert not set(text) & set("<>&\x1b\x9b\u202e\u2066\u200b\ud800\x7f")
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs") for c in text)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b *c* `d`", "a\\|b \\*c\\* \\`d\\`"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("- item", "\\- item"),
        ("12. item", "12\\. item"),
        ("see https://x.test @all", "see https:\\/\\/x.test \\@all"),
    ],
)
def test_markdown_meaning_is_taken_away(text: str, escaped: str) -> None:
    assert markdown(text) == escaped


def test_ascii_words_replace_the_glyphs() -> None:
    assert to_ascii("✔ ▲ ✖ ‼ ◌ ⊘") == "[ok] [warn] [FAIL] [ERR] [skip] [waived]"
    assert to_ascii("漢").isascii()
