"""Conditions of steps: the grammar, and what a run says about a condition."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddaudit.engine.facts import collect
from ddaudit.runbook.when import FACTS, WhenError, bind, parse


def evaluate(text: str, facts: dict[str, Any]) -> bool:
    return parse(text).decide(facts)[0]


FACTS_HERE: dict[str, Any] = {"gpus": 2, "cpus": 8, "slurm": False, "device": "cuda", "memory_bytes": 2**34}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("gpus >= 2", True),
        ("gpus > 2", False),
        ("gpus >= 2 and slurm", False),
        ("gpus >= 2 and not slurm", True),
        ("slurm or device == 'cuda'", True),
        ('device != "cuda"', False),
        ("not (gpus == 0 or slurm)", True),
        ("not gpus == 0", True),
        ("slurm or gpus == 2 and cpus == 8", True),
        ("(slurm or gpus == 2) and cpus == 9", False),
        ("memory_bytes >= 1.5", True),
        ("gpus", True),
        ("slurm == false", True),
        ("true", True),
        ("-1 < gpus", True),
    ],
)
def test_conditions_hold_as_written(text: str, holds: bool) -> None:
    assert evaluate(text, FACTS_HERE) is holds


def test_the_reason_shows_the_values() -> None:
    holds, why = parse("gpus >= 4 and not slurm").decide(FACTS_HERE)
    assert not holds and why == "gpus >= 4 and not slurm is false (gpus = 2, slurm = false)"


def test_an_unknown_fact_makes_a_condition_false_and_says_so() -> None:
    holds, why = parse("kubernetes").decide(FACTS_HERE)
    assert not holds and "kubernetes is unknown here" in why


def test_parameters_are_written_in_as_constants() -> None:
    text = bind("$ranks <= gpus and device == $kind and $deep", {"ranks": 2, "kind": "cuda", "deep": True})
    assert text == "2 <= gpus and device == 'cuda' and true" and evaluate(text, FACTS_HERE)


def test_a_text_parameter_cannot_add_to_a_condition() -> None:
    text = bind("device == $kind", {"kind": "x' or true or 'x"})
    assert not evaluate(text, FACTS_HERE)


@given(st.text(alphabet="gpus<>=!()'\" andortruenot$0.5_-\n;", max_size=60))
def test_any_text_is_either_read_or_refused(text: str) -> None:
    try:
        assert isinstance(parse(text).decide(dict.fromkeys(FACTS, 1))[0], bool)
    except WhenError as error:
        assert str(error)


def test_the_engine_knows_every_fact_that_a_condition_may_ask() -> None:
    known = {**collect("cpu", "", []), "ranks": 1}
    assert set(FACTS) <= set(known)
    kinds = {"number": (int, float), "text": str, "flag": bool}
    assert [name for name, (kind, _) in FACTS.items() if not isinstance(known[name], kinds[kind])] == []
