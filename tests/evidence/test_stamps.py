"""Stamps of collectives become arrays on one clock, and what is malformed is left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ddaudit.evidence.events import Stream
from ddaudit.evidence.stamps import stamp_arrays


def stream(rank: int, *steps: dict[str, Any]) -> Stream:
    return Stream(f"node-{rank}", [{"event": "step", "step": i, "values": {}, **step} for i, step in enumerate(steps)])


def test_ranks_number_their_groups_as_they_meet_them_and_are_brought_together() -> None:
    first = stream(0, {"begin_s": 100.0, "groups": [[0, 1], [0]], "stamps": [[0, 0.5, 0.75], [1, 0.8, 0.9]]})
    second = stream(1, {"begin_s": 100.25, "groups": [[1], [0, 1]], "stamps": [[1, 0.5, 0.5]]})
    groups, arrays = stamp_arrays([first, second], [0])
    assert groups == [[0, 1], [0]]
    assert arrays["stamp_group"].values.tolist() == [[[0, 1]], [[0, -1]]]
    assert arrays["arrived"].values[:, 0, 0].tolist() == [0.5, 0.75]
    assert arrays["left"].values[1, 0, 0] == 0.75
    assert np.isnan(arrays["left"].values[1, 0, 1])


def test_nothing_stamped_gives_no_arrays() -> None:
    assert stamp_arrays([stream(0, {"begin_s": 1.0})], [0]) == ([], {})


def test_malformed_stamps_are_left_out() -> None:
    good = [0, 0.1, 0.2]
    broken = [[7, 0.1, 0.2], [0, "x", 0.2], [0, 0.1], None, [-1, 0.1, 0.2], [True, 0.1, 0.2]]
    event = {"begin_s": 0.0, "groups": [[0, 1]], "stamps": [*broken, good]}
    _, arrays = stamp_arrays([stream(0, event)], [0])
    assert arrays["arrived"].values.tolist() == [[[0.1]]]
    for ruined in ({**event, "begin_s": None}, {**event, "groups": "01"}, {**event, "groups": [["a", {}]]}):
        assert stamp_arrays([stream(0, ruined)], [0]) == ([], {})
