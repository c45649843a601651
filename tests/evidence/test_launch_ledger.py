"""Where the time before the first step went, read from event files."""

from __future__ import annotations

from typing import Any

import pytest

from ddaudit.evidence import LaunchLedger, Stream


def rank(number: int, started: float, *events: dict[str, Any]) -> Stream:
    first = {"event": "start", "t": started, "rank": number, "host": "node1"}
    return Stream(f"node1-{number}", [first, *events])


def launcher(ended: float, seconds: float, **facts: Any) -> Stream:
    evidence = {"event": "evidence", "t": ended, "kind": "launch", "facts": {"seconds": seconds, **facts}}
    return Stream("launcher", [evidence])


PHASES = [
    {"event": "phase", "t": 101.0, "name": "import", "seconds": 0.5},
    {"event": "phase", "t": 101.2, "name": "rendezvous", "seconds": 0.2},
    {"event": "phase", "t": 101.3, "name": "first-collective", "seconds": 0.1},
    {"event": "step", "t": 102.5, "step": 0},
    {"event": "step", "t": 103.5, "step": 1},
]


def test_times_count_from_the_request_and_phases_have_their_own_length() -> None:
    found = LaunchLedger.assemble([rank(1, 100.25, *PHASES), rank(0, 100.5), launcher(110.0, 10.0, server_s=2.5)])
    assert found is not None and found.server_s == 2.5
    idle, busy = found.ranks
    assert (idle.rank, idle.spawn_s, idle.import_s, idle.first_step_s) == (0, 0.5, None, None)
    assert (busy.rank, busy.spawn_s, busy.import_s, busy.rendezvous_s) == (1, 0.25, 0.5, 0.2)
    assert busy.first_collective_s == 0.1 and busy.first_step_s == pytest.approx(2.5)


def test_without_the_launchers_record_nothing_is_counted_from_it() -> None:
    found = LaunchLedger.assemble([rank(0, 100.25, *PHASES)])
    assert found is not None
    assert (found.ranks[0].spawn_s, found.ranks[0].first_step_s, found.ranks[0].import_s) == (None, None, 0.5)


def test_no_rank_no_ledger() -> None:
    assert LaunchLedger.assemble([launcher(1.0, 1.0)]) is None
