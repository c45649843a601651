"""From a page to a plan: order, values, selection."""

from __future__ import annotations

from typing import Any

import pytest

from ddaudit.errors import UsageProblem
from ddaudit.packs import Packs
from ddaudit.runbook import Plan, Runbook, make_plan, parse_runbook
from ddaudit.runbook.graph import find_cycle, longest, topological


def book(*steps: str, header: str = "") -> Runbook:
    fences = "".join(
        f"\n## S\n\n```toml step {s.partition(chr(10))[0]}\n{s.partition(chr(10))[2]}\n```\n" for s in steps
    )
    page, problems = parse_runbook(f'# T\n\n```toml runbook\nid = "book"\n{header}\n```\n{fences}', "/x/book.md")
    assert page is not None and problems == []
    return page


def toy(id: str, more: str = "") -> str:
    return f'{id}\nprobe = "toy"\nchecks = ["toy.value"]\n{more}'


def plan(page: Runbook, loaded: Packs, params: dict[str, Any] | None = None, **options: Any) -> Plan:
    return make_plan(page, loaded, params, run_id="r", **options)


def ids(found: Plan) -> list[str]:
    return [step.id for step in found.steps]


def test_a_sweep_is_ordered_by_need_and_otherwise_as_on_the_page(loaded: Packs) -> None:
    page = book(toy("a", 'needs = ["d"]'), toy("b"), toy("c", 'needs = ["a"]'), toy("d"), toy("e"))
    assert ids(plan(page, loaded)) == ["b", "d", "a", "c", "e"]


def test_values_are_filled_in_and_typed(loaded: Packs) -> None:
    step = 'nproc = "$n"\nwith = { steps = "$n", note = "n=$n" }\nwhen = "gpus >= $n"\n'
    step += 'limits.toy.v = { fail_above = "$n" }'
    page = book(toy("a", step), header='params.n = { type = "int", default = 2 }')
    planned = plan(page, loaded, {"n": "4"}).steps[0]
    assert (planned.nproc, dict(planned.params), planned.when) == (4, {"steps": 4, "note": "n=4"}, "gpus >= 4")
    assert planned.limits["toy.v"] == {"fail_above": 4, "source": "book.md:16"} and planned.source == "book.md:10"


def test_globs_become_ids_of_checks_that_the_probe_can_feed(loaded: Packs) -> None:
    page = book('a\nprobe = "toy"\nchecks = ["toy.*", "measures.*"]')
    assert plan(page, loaded).steps[0].checks == ("measures.within-limits", "toy.value")


def test_only_brings_along_what_is_needed(loaded: Packs) -> None:
    page = book(toy("a"), toy("b", 'needs = ["a"]'), toy("c"))
    assert ids(plan(page, loaded, only=["b"])) == ["a", "b"]
    assert ids(plan(page, loaded, skip=["c"])) == ["a", "b"]
    assert ids(plan(page, loaded, only=["?"], skip=["b"])) == ["a", "c"]


def test_a_skipped_need_is_refused_and_not_forgotten(loaded: Packs) -> None:
    page = book(toy("a"), toy("b", 'needs = ["a"]'))
    with pytest.raises(UsageProblem, match="add --skip b"):
        plan(page, loaded, skip=["a"])
    assert ids(plan(page, loaded, skip=["b"])) == ["a"]


def test_a_triage_starts_where_it_is_told_and_bridges_what_is_left_out(loaded: Packs) -> None:
    page = book(
        toy("a", 'on = { fail = "c", pass = "stop" }'),
        toy("b"),
        toy("c"),
        header='mode = "triage"\nstart = "a"',
    )
    assert plan(page, loaded).start == "a" and plan(page, loaded, start="b").start == "b"
    shorter = plan(page, loaded, skip=["c"])
    assert (shorter.step("a").on.fail, shorter.step("a").on.passed) == ("next", "stop")
    assert plan(page, loaded, skip=["a"]).start == "b"
    with pytest.raises(UsageProblem, match="has no such step"):
        plan(page, loaded, start="x")


def test_a_parameter_without_default_must_be_given(loaded: Packs) -> None:
    page = book(toy("a", 'with = { note = "$where" }'), header='params.where = { help = "a host" }')
    with pytest.raises(UsageProblem, match="needs parameter 'where'; fix: add -P where=VALUE"):
        plan(page, loaded)
    assert plan(page, loaded, {"where": "n1"}).steps[0].params["note"] == "n1"


def test_a_plan_survives_json(loaded: Packs) -> None:
    made = plan(book(toy("a", "on.fail = 'stop'")), loaded, device="cuda", seed=7)
    assert Plan.model_validate(made.model_dump(mode="json", by_alias=True)) == made


def test_order_and_cycles_of_graphs() -> None:
    assert topological({"a": ["c"], "b": [], "c": ["b"]}) == ["b", "c", "a"]
    assert find_cycle({"a": ["b"], "b": ["c"], "c": []}) is None
    assert find_cycle({"a": ["b", "d"], "b": [], "d": ["e"], "e": ["d"]}) == ["d", "e", "d"]
    assert longest({"a": ["b", "c"], "b": [], "c": ["b"]}, "a", {"a": 1, "b": 10, "c": 100}.__getitem__) == 111
