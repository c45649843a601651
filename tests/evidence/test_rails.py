"""Rails: a slow rail, port, node or link is told from the other three, and a quick one is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tournament import RailFleet, Score, play_rails
from ddaudit.evidence.rails import Costs, RailAccused, confirm_rails, repeat_rounds, suspect_rails
from ddaudit.evidence.tournament import Pair

Slow = Callable[[int, Pair], bool]


def judged(members: int, rails: int, slow: Slow, later: Slow | None = None) -> RailAccused:
    """Who is accused where ``slow(rail, pair)`` meetings take ten times as long, ``later`` the repeated ones."""
    pairs = [(a, b) for a in range(members) for b in range(a + 1, members)]
    costs: Costs = {rail: {p: 10.0 if slow(rail, p) else 1.0 for p in pairs} for rail in range(rails)}
    found = suspect_rails(costs, factor=3)
    again: dict[int, dict[Pair, list[float]]] = {rail: {} for rail in range(rails)}
    for met in repeat_rounds(found, members):
        for rail, pair in ((rail, pair) for rail, pairs in met.items() for pair in pairs):
            again[rail].setdefault(pair, []).append(10.0 if (later or slow)(rail, pair) else 1.0)
    return confirm_rails(found, costs, again, factor=3)


@pytest.mark.parametrize("members", [3, 4, 9])
@pytest.mark.parametrize("rails", [2, 4, 8])
def test_a_slow_rail_is_named_and_its_ports_and_links_are_not(members: int, rails: int):
    for bad in range(rails):
        assert judged(members, rails, lambda rail, pair, bad=bad: rail == bad) == RailAccused(rails={bad: 1.0})


@pytest.mark.parametrize("members", [3, 4, 9])
def test_a_node_that_is_slow_on_every_rail_is_a_bad_node_and_no_rail(members: int):
    assert judged(members, 4, lambda rail, pair: 1 in pair) == RailAccused(nodes={1: 1.0})


@pytest.mark.parametrize("members", [3, 4, 9])
def test_a_node_that_is_slow_on_one_rail_has_a_bad_port(members: int):
    assert judged(members, 4, lambda rail, pair: rail == 2 and 1 in pair) == RailAccused(ports={(1, 2): 1.0})


@pytest.mark.parametrize("members", [3, 4, 9])
def test_one_slow_pair_on_one_rail_is_a_bad_link(members: int):
    found = judged(members, 4, lambda rail, pair: (rail, pair) == (3, (0, 2)))
    assert found == RailAccused(links={(3, (0, 2)): 1.0})


def test_a_bad_rail_hides_neither_a_bad_node_nor_a_bad_port():
    found = judged(8, 4, lambda rail, pair: rail == 0 or 5 in pair or (rail == 2 and 6 in pair))
    assert set(found.rails) == {0} and set(found.nodes) == {5} and set(found.ports) == {(6, 2)} and not found.links


def test_a_rail_that_is_quick_when_tried_again_is_not_accused():
    assert judged(4, 2, lambda rail, pair: rail == 1, later=lambda rail, pair: False) == RailAccused()


def test_a_rail_is_not_accused_where_the_other_rail_became_slow_too():
    assert judged(4, 2, lambda rail, pair: rail == 1, later=lambda rail, pair: True) == RailAccused()


def test_without_a_quick_half_there_is_no_yardstick_and_nobody_is_accused():
    assert judged(4, 1, lambda rail, pair: True) == RailAccused()
    assert judged(4, 3, lambda rail, pair: rail < 2).rails == {}


def test_a_rail_whose_swap_did_not_take_place_is_not_accused():
    pairs: list[Pair] = [(0, 1), (0, 2), (1, 2)]
    costs: Costs = {0: dict.fromkeys(pairs, 1.0), 1: dict.fromkeys(pairs, 10.0)}
    found = suspect_rails(costs, factor=3)
    assert found.rails == (1,) and confirm_rails(found, costs, {}, factor=3) == RailAccused()


def test_no_meetings_suspect_nobody():
    assert suspect_rails({}, factor=3).rails == () and repeat_rounds(suspect_rails({0: {}}, factor=3), 4) == []


def test_a_bad_rail_is_named_where_chance_left_every_member_with_one_slow_meeting():
    def slow(rail: int, pair: Pair) -> bool:
        return rail == 1 or (pair[1] == pair[0] + 1 and pair[0] % 2 == 0)

    assert set(judged(8, 4, slow, later=lambda rail, pair: rail == 1).rails) == {1}


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 16), st.integers(2, 8), st.integers(0, 10_000))
def test_simulated_fleets_of_rails_with_noise_and_bursts_are_judged_rightly(members: int, rails: int, seed: int):
    score = Score()
    play_rails(RailFleet.made_of(members, rails, random.Random(seed)), members, score)
    assert score.right == score.accused, "something was accused wrongly"
