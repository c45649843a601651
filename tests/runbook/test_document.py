"""Reading a page: what is prose, what is a step, and which line is which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddaudit.errors import RunbookProblem
from ddaudit.findings import Severity
from ddaudit.runbook import load_runbook, parse_runbook
from ddaudit.runbook.lines import locate
from ddaudit.runbook.model import parse_duration

PAGE = """\
# Tokens per second dropped

```toml runbook
id     = "slow-step"
mode   = "triage"
budget = "15m"
start  = "spread"
params.nodes = { type = "int", default = 2, min = 1, help = "nodes to borrow" }
```

Start here when throughput fell.

```console
$ this fence is prose
```

Is one node slower?
-------------------

A straggler shows as one row.

```toml step spread
probe    = "train"
with     = { parallel = "data", steps = 30 }
timeout  = "3m"
severity = "critical"
on       = { fail = "look", pass = "stop" }
[limits.parallel]
grad_rel_l2 = { fail_above = 1e-10 }
```

What follows the fence belongs to it too.

## Look closer

```toml step look
manual = "Is the fan spinning?"
on.pass = "stop"
```
"""


def test_a_page_is_read_whole() -> None:
    book, problems = parse_runbook(PAGE, "slow-step.md")
    assert problems == [] and book is not None
    assert (book.id, book.title, book.mode, book.budget, book.start) == (
        "slow-step",
        "Tokens per second dropped",
        "triage",
        900.0,
        "spread",
    )
    assert book.params["nodes"].default == 2 and book.params["nodes"].min == 1
    spread, look = book.steps
    assert (spread.id, spread.title, spread.timeout, spread.severity) == (
        "spread",
        "Is one node slower?",
        180.0,
        Severity.CRITICAL,
    )
    assert (spread.on.fail, spread.on.passed, spread.on.warn) == ("look", "stop", "next")
    assert (look.manual, look.title, look.on.passed) == ("Is the fan spinning?", "Look closer", "stop")


def test_prose_stays_with_its_step() -> None:
    book, _ = parse_runbook(PAGE, "slow-step.md")
    assert book is not None
    assert book.prose == "Start here when throughput fell.\n\n```console\n$ this fence is prose\n```"
    assert book.steps[0].prose == "A straggler shows as one row.\n\nWhat follows the fence belongs to it too."
    assert book.steps[1].prose == ""


def test_lines_of_keys_are_found_in_every_spelling() -> None:
    book, _ = parse_runbook(PAGE, "slow-step.md")
    assert book is not None
    lines = PAGE.splitlines()
    spread = book.step("spread")
    for keys, text in (
        (("timeout",), "timeout  ="),
        (("with", "steps"), "with     ="),
        (("on", "fail"), "on       ="),
        (("limits", "parallel", "grad_rel_l2"), "grad_rel_l2 ="),
        (("limits", "parallel"), "[limits.parallel]"),
    ):
        assert lines[spread.line_of(*keys) - 1].startswith(text), keys
    assert lines[book.line_of("params", "nodes") - 1].startswith("params.nodes")
    assert spread.line_of("absent") == spread.line and lines[spread.line - 1] == "```toml step spread"


def test_a_comment_is_not_mistaken_for_the_key() -> None:
    assert locate("# timeout = 3\ntimeout = 4\n", ["timeout"]) == 2
    assert locate('"odd key" = 1\nx.y = 2\n', ["x", "y"]) == 2
    assert locate("a = 1\n", ["b"]) == 0


def test_windows_line_ends_and_tilde_fences_are_read(tmp_path: Path) -> None:
    text = PAGE.replace("```toml step look", "~~~toml step look").removesuffix("```\n") + "~~~\n"
    path = tmp_path / "slow-step.md"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    book = load_runbook(path)
    assert [step.id for step in book.steps] == ["spread", "look"] and book.steps[1].manual == "Is the fan spinning?"


def test_a_step_in_a_list_keeps_its_lines() -> None:
    text = '# T\n\n```toml runbook\nid = "t"\n```\n\n- do this:\n\n  ```toml step a\n  probe = "x"\n  oops = 1\n  ```\n'
    _, problems = parse_runbook(text, "t.md")
    assert [p.where for p in problems] == ["t.md:11"]


def test_load_raises_the_first_mistake_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "slow-step.md"
    path.write_text(PAGE.replace('"3m"', '"three"').replace('"triage"', '"walk"'))
    with pytest.raises(RunbookProblem, match=r"slow-step\.md:5: mode is 'walk'; expected 'sweep' or 'triage'"):
        load_runbook(path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("2m", 120), ("1.5h", 5400), ("250ms", 0.25), (7, 7), (0.5, 0.5), ("3 m", 180)]
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "3", "3d", "-3s", "1e9h", True, None, [1], "3sm", "nan", float("nan")])
def test_no_durations(text: object) -> None:
    with pytest.raises(ValueError, match=r"no duration|out of range"):
        parse_duration(text)


def test_our_own_runbooks_are_clean() -> None:
    from ddaudit import packs
    from ddaudit.runbook import lint_packs, lint_runbook

    loaded = packs.load(entries=False, environment=False)
    found = [str(p) for path in loaded.runbooks.values() for p in lint_runbook(path, loaded)]
    assert found == [] and [str(p) for p in lint_packs(loaded)] == [] and {"scale-out", "smoke"} <= set(loaded.runbooks)


SHARDS = (
    '"', "$", "{", "[", "]", "=", "```", "\n```toml step x\n", "#", "limits.", "with.", "1e400", "nan", "2026-01-01",
    "[with]\n", "[[with]]\n", "needs = [1]\n", "limits = 3\n", "params = 3\n", 'on = "x"\n', "nproc = 1.5\n",
    "when = 3\n", "\0", "\u202e", "---\n", "> ", "    ",
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(PAGE)), st.integers(0, 20), st.sampled_from(SHARDS)), max_size=4))
def test_a_damaged_page_is_read_or_blamed_by_line(damage: list[tuple[int, int, str]]) -> None:
    text = PAGE
    for place, cut, shard in damage:
        text = text[:place] + shard + text[place + cut :]
    _, problems = parse_runbook(text, "page.md")
    assert [str(p) for p in problems if not re.match(r"page\.md:\d+: ", str(p)) or "\n" in p.what] == []


def test_finding_ids_in_our_runbooks_are_ones_that_checks_report() -> None:
    root = Path(__file__).parents[2]
    sources = "".join(path.read_text() for path in (root / "checks").glob("*.py"))
    families = set(re.findall(r'"([a-z]+)\.[a-z-]+"', sources))
    for page in (root / "runbooks").glob("*.md"):
        named = re.findall(r"`([a-z]+)\.([a-z-]+)`", page.read_text())
        assert [f"{a}.{b}" for a, b in named if a in families and f'"{a}.{b}"' not in sources] == [], page
