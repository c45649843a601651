"""``$param`` and ``$step.metric``: values only, typed, escaped, never evaluated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddaudit.errors import UsageProblem
from ddaudit.runbook import resolve, resolve_text
from ddaudit.runbook.model import Param
from ddaudit.runbook.params import convert
from ddaudit.runbook.values import fill, finish, references

PARAMS = {"n": 4, "name": "node$1", "deep": True}


def test_a_value_that_is_one_reference_keeps_its_type() -> None:
    assert finish({"a": "$n", "b": ["$deep", "${n}"]}, PARAMS) == {"a": 4, "b": [True, 4]}


def test_a_reference_inside_text_becomes_text() -> None:
    assert finish("x${n}y $n.", PARAMS) == "x4y 4."


def test_keys_are_left_alone() -> None:
    assert finish({"$n": "$n"}, PARAMS) == {"$n": 4}


def test_what_a_metric_must_fill_waits_for_the_step() -> None:
    planned = fill({"a": "$one.gbps", "b": "at $one.node, $n ranks", "c": "$$HOME"}, PARAMS)
    assert planned == {"a": "$one.gbps", "b": "at $one.node, 4 ranks", "c": "$$HOME"}
    metrics = {"one": {"gbps": 3.5, "node": "n7", "deep.er": 1}}
    assert resolve(planned, metrics) == {"a": 3.5, "b": "at n7, 4 ranks", "c": "$HOME"}
    assert resolve("$one.deep.er", metrics) == 1


def test_a_dollar_in_a_parameter_is_not_a_reference_later() -> None:
    assert resolve(fill("$name", PARAMS), {}) == "node$1"
    assert resolve(fill("at $name", {"name": "$one.gbps"}), {"one": {"gbps": 3}}) == "at $one.gbps"


def test_a_metric_that_was_not_measured_stops_the_step() -> None:
    for metrics in ({}, {"one": {}}, {"one": {"gbps": None}}):
        with pytest.raises(UsageProblem, match=r"\$one.gbps was not measured"):
            resolve({"a": "$one.gbps"}, metrics)


def test_text_for_people_keeps_what_it_does_not_know() -> None:
    text = fill("On $one.node: echo $HOME $$n; see $n, $two.x", PARAMS)
    shown = resolve_text(text, {"one": {"node": "n7"}, "two": {}})
    assert shown == "On n7: echo $HOME $n; see 4, <two.x: not measured>"


def test_references_are_found_however_deep() -> None:
    assert list(references({"a": ["$x", {"b": "$$y ${one.z-1}"}], "c": 3})) == ["x", "one.z-1"]


@given(st.text(alphabet="$${}abn.-_ ", max_size=40))
def test_escaped_text_comes_back_as_it_was(text: str) -> None:
    assert resolve(text.replace("$", "$$"), {}) == text


@pytest.mark.parametrize(
    ("kind", "given_value", "expected"),
    [
        ("int", "3", 3),
        ("float", "1e-3", 1e-3),
        ("bool", "no", False),
        ("bool", True, True),
        ("str", 3, "3"),
        ("str", " x ", " x "),
    ],
)
def test_parameters_become_their_type(kind: str, given_value: object, expected: object) -> None:
    assert convert(Param.model_validate({"type": kind}), given_value) == expected


def test_nan_keeps_no_bound() -> None:
    with pytest.raises(ValueError, match="below the minimum"):
        convert(Param(type="float", min=0), "nan")
