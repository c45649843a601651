"""The tournament: everybody meets everybody, the guilty one is found, and nobody is accused by one bad day."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tournament import Fleet, Score, play
from ddaudit.evidence.tournament import Pair, confirm, confirmation_rounds, coverage, rounds, suspect


def costs(members: int, slow: Mapping[Pair, float] | None = None, bad: int | None = None) -> dict[Pair, float]:
    found = {(a, b): 10.0 if bad in (a, b) else 1.0 for a in range(members) for b in range(a + 1, members)}
    return {**found, **(slow or {})}


@given(st.integers(2, 40))
def test_everybody_meets_everybody_once_in_as_few_rounds_as_can_be(members: int):
    played = list(rounds(members))
    assert len(played) == members - 1 + members % 2
    met = [pair for pairs in played for pair in pairs]
    assert coverage(members, met) == (len(met), len(met))
    assert all(len({m for pair in pairs for m in pair}) == 2 * len(pairs) for pairs in played)


@pytest.mark.parametrize("members", [3, 4, 5, 8])
def test_a_member_that_is_slow_with_everybody_is_found_wherever_it_sits(members: int):
    for bad in range(members):
        assert suspect(costs(members, bad=bad), factor=3).members == (bad,)


@pytest.mark.parametrize("members", [3, 4, 8])
def test_a_slow_link_does_not_make_its_ends_suspects(members: int):
    for link in costs(members):
        found = suspect(costs(members, {link: 10.0}), factor=3)
        assert (found.members, found.links) == ((), (link,))


def test_a_bad_link_beside_a_bad_member_is_found_too():
    found = suspect(costs(8, {(1, 2): 10.0}, bad=5), factor=3)
    assert (found.members, found.links) == ((5,), ((1, 2),))


def test_a_healthy_fleet_has_no_suspects_and_no_further_rounds():
    found = suspect(costs(8), factor=3)
    assert (found.members, found.links) == ((), ()) and confirmation_rounds(found, 8) == []


def test_two_members_alone_cannot_outvote_each_other():
    assert suspect({(0, 1): 10.0}, factor=3).links == ()


def test_nobody_is_accused_who_is_quick_when_tried_again():
    first = costs(4, bad=2)
    found = suspect(first, factor=3)
    again = {pair: [1.0, 10.0] for met in confirmation_rounds(found, 4) for pair in met}
    accused = confirm(found, first, again, factor=3)
    assert accused.members == {} and accused.cleared == (2,)


def test_nobody_is_accused_who_was_not_tried_again():
    first = costs(4, bad=2)
    assert confirm(suspect(first, factor=3), first, {}, factor=3).members == {}


def test_a_link_is_accused_only_while_its_ends_are_quick_with_others():
    first = costs(4, {(0, 1): 10.0})
    found = suspect(first, factor=3)
    pairs = {pair for met in confirmation_rounds(found, 4) for pair in met}
    quick = {pair: [10.0 if pair == (0, 1) else 1.0] for pair in pairs}
    assert confirm(found, first, quick, factor=3).links == {(0, 1): 1.0}
    assert confirm(found, first, {pair: [10.0] for pair in pairs}, factor=3).links == {}


def test_meetings_that_confirm_never_ask_a_member_to_be_in_two_places():
    found = suspect(costs(9, {(0, 1): 10.0, (1, 2): 10.0, (3, 4): 10.0}), factor=3)
    for pairs in confirmation_rounds(found, 9):
        assert len({m for pair in pairs for m in pair}) == 2 * len(pairs)


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 24), st.integers(0, 10_000))
def test_simulated_fleets_with_noise_and_bursts_are_judged_rightly(members: int, seed: int):
    score = Score()
    play(Fleet.made(members, random.Random(seed)), members, score)
    assert score.right == score.accused, "somebody was accused wrongly"
