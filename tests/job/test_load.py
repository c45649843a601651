"""Reading job.toml: what is accepted, and the one line that each mistake gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddaudit.errors import Exit, UsageProblem
from ddaudit.job import EXAMPLE, load_job, parse_job


def refused(text: str, overrides: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageProblem) as caught:
        parse_job(text, "job.toml", overrides)
    assert caught.value.exit is Exit.USAGE
    message = str(caught.value)
    assert "\n" not in message
    return message


#: What is wrong -> the file, and what the line must say.
BAD = {
    "wrong type": ('lr = "3e-4"', ["job.toml:1: lr is '3e-4'", "expected a number"]),
    "a float count": ("\nmicro_batch = 8.0", ["job.toml:2: micro_batch is 8.0", "whole number"]),
    "a bool count": ("micro_batch = true", ["micro_batch is True", "whole number"]),
    "a date": ("lr = 2026-01-01", ["job.toml:1: lr is", "expected a number"]),
    "not a number": ("lr = nan", ["lr is nan", "finite number"]),
    "negative size": ("seq_len = -2048", ["job.toml:1: seq_len is -2048", "greater than or equal to 1"]),
    "zero ranks": ("[layout]\ntp = 0", ["job.toml:2: layout.tp is 0", "greater than or equal to 1"]),
    "negative warm-up": ("warmup_steps = -1", ["warmup_steps is -1"]),
    "absurd ranks": ("[layout]\ndp = 99999999999", ["job.toml:2: layout.dp is 99999999999", "less than or equal"]),
    "beyond 64 bits": (f"steps = 0x{'f' * 9000}", ["job.toml:1: steps is out of range", "2^63"]),
    "thousands of digits": (f"steps = {'9' * 5000}", ["wrong TOML: a number is too long"]),
    "misspelt key": ("lrr = 1", ["job.toml:1: unknown key 'lrr'", "did you mean 'lr'?"]),
    "misspelt nested key": ("[layout]\nshardedd = 2", ["job.toml:2: unknown key 'layout.shardedd'", "'sharded'?"]),
    "misspelt baseline key": ("[baseline]\nwarmup_step = 2", ["2: unknown key 'baseline.warmup_step'", "warmup_steps"]),
    "key in the wrong table": ("[baseline]\ngoal = 'capacity'", ["job.toml:2: unknown key 'baseline.goal'"]),
    "twice the same key": ("seq_len = 1\nlr = 1\n\nlr = 2", ["job.toml:4: lr is set twice", "the first is line 2"]),
    "twice the same table": ("[layout]\ndp = 1\n[layout]\ntp = 2\n", ["job.toml:3: layout is set twice", "line 1"]),
    "unknown goal": ("goal = 'faster'", ["job.toml:1: goal is 'faster'", "'wall-clock'"]),
    "unknown precision": ("precision = 'int4'", ["precision is 'int4'", "'bf16-mixed'"]),
    "both of a pair": ("epochs = 1\nsteps = 9", ["epochs and steps are both set", "one of them"]),
    "both warm-ups": ("[baseline]\nwarmup_steps = 1\nwarmup_tokens = 9", ["job.toml:1: baseline: warmup_steps and"]),
    "a stage of nothing": ("[layout]\ndp = 8\nzero_stage = 1", ["layout: zero_stage = 1 shards nothing"]),
    "a table for a number": ("[lr]\npeak = 1", ["job.toml:1: lr is {'peak': 1}", "a number"]),
    "a list of tables": ("[[layout]]\ndp = 1", ["layout is [{'dp': 1}]", "a table"]),
    "no TOML": ("lr = ", ["job.toml:1: wrong TOML: Invalid value"]),
    "TOML wrong in line 3": ("lr = 1\n\nseq_len 3", ["job.toml:3: wrong TOML"]),
    "deep tables": (f"[{'.'.join('a' * 3000)}]", ["nested too deeply"]),
    "deep values": (f"lr = {'[' * 40}{']' * 40}", ["lr is nested too deeply"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_line_with_place_key_and_what_was_expected(case: str):
    text, parts = BAD[case]
    message = refused(text)
    assert [part for part in parts if part not in message] == [], message
    assert len(message) < 600


def test_the_first_of_several_mistakes_is_told_and_the_rest_counted():
    assert "job.toml:1: lr is -1" in (message := refused("lr = -1\nseq_len = 0\nzz = 1"))
    assert "2 more mistake(s)" in message


def test_the_example_is_valid_and_every_key_has_its_line():
    loaded = parse_job(EXAMPLE, "folder/job.toml")
    assert loaded.file == "job.toml"
    lines = EXAMPLE.split("\n")
    for key, line in loaded.lines.items():
        assert key.rpartition(".")[2] in lines[line - 1], key
    assert lines[loaded.lines["lr"] - 1].startswith("lr           = 6e-4")
    assert lines[loaded.lines["baseline.lr"] - 1].startswith("lr           = 3e-4")


def test_an_override_wins_over_the_file_and_has_no_line():
    loaded = parse_job(EXAMPLE, "job.toml", {"layout.tp": "2", "optimizer": "sgd", "lr": 0.1, "drop_last": "false"})
    assert (loaded.job.layout.tp, loaded.job.optimizer, loaded.job.lr, loaded.job.drop_last) == (2, "sgd", 0.1, False)
    assert loaded.job.layout.sharded == 8
    assert "lr" not in loaded.lines and "baseline.lr" in loaded.lines


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("layout.tp", "two", "flag layout.tp: layout.tp is 'two'"),
        ("lrr", "1", "flag lrr: unknown key 'lrr'"),
        ("lr.peak", "1", "lr is no table"),
        (".".join("a" * 5000), "1", "a.a.a is nested too deeply"),
        ("steps", "0x" + "f" * 9000, "flag steps: steps is out of range"),
        ("lr", "[" * 5000, "lr is '[["),
    ],
)
def test_a_wrong_override_names_the_flag(key: str, value: str, part: str):
    message = refused(EXAMPLE, {key: value})
    assert part in message and len(message) < 600


def test_a_path_that_is_no_job_file_is_told_apart(tmp_path: Path):
    def told(path: Path) -> str:
        with pytest.raises(UsageProblem) as caught:
            load_job(path)
        return str(caught.value)

    assert "no such file" in told(tmp_path / "none.toml") and "ddaudit new job" in told(tmp_path / "none.toml")
    assert "is no plain file" in told(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is no plain file" in told(tmp_path / "pipe")
    (tmp_path / "big").write_bytes(b"#" * (1 << 20))
    assert "too large" in told(tmp_path / "big")
    (tmp_path / "latin").write_bytes(b"lr = 1\nname = '\xe9'\n")
    assert f"{tmp_path / 'latin'}:2: is not UTF-8" in told(tmp_path / "latin")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("abl r=.[]{}\"'#\n0-9_,\x00é")), max_size=60))
def test_no_text_raises_anything_but_a_problem_of_one_line(text: str):
    try:
        parse_job(text, "job.toml")
    except UsageProblem as problem:
        assert str(problem).startswith("job.toml")
