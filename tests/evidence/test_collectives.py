"""The sweep as it is put together from every rank's own events."""

from __future__ import annotations

from typing import Any

from ddaudit.evidence import CollectiveSweep, Stream

HEAD = {"event": "collective-sweep", "t": 0.0, "backend": "gloo", "world_size": 2}


def timed(rank: int, *seconds: float, group: tuple[int, ...] = (0, 1), size: int = 4096) -> dict[str, Any]:
    fields = {"op": "all-reduce", "group": list(group), "bytes": size, "rank": rank, "seconds": list(seconds)}
    return {"event": "collective", "t": 1.0, "checked": 1, **fields}


def stream(rank: int, *events: dict[str, Any]) -> Stream:
    start = {"event": "start", "t": 0.0, "rank": rank, "host": f"node{rank}"}
    return Stream(f"node{rank}-{rank}", [start, HEAD, *events])


def assembled(*streams: Stream) -> CollectiveSweep:
    found = CollectiveSweep.assemble(streams)
    assert found is not None
    return found


def test_a_calls_time_is_its_slowest_ranks() -> None:
    sweep = assembled(stream(0, timed(0, 1, 5, 3)), stream(1, timed(1, 2, 4, 9)))
    (point,) = sweep.points
    (spread,) = point.passes
    assert (spread.low_s, spread.median_s, spread.high_s, spread.repeats) == (2, 5, 9, 3)
    assert sweep.checked == 2


def test_the_quietest_pass_counts() -> None:
    ranks = [stream(r, timed(r, 8, 9, 10), timed(r, 1, 2, 3)) for r in (0, 1)]
    (point,) = assembled(*ranks).points
    assert len(point.passes) == 2 and point.median_s == 2


def test_what_a_rank_did_not_finish_is_no_point() -> None:
    lost = assembled(stream(0, timed(0, 1.0), timed(0, 1.0, size=8192)), stream(1, timed(1, 1.0)))
    assert [p.bytes for p in lost.points] == [4096]


def test_pairs_carry_their_hosts_and_rounds() -> None:
    rounds = [{"event": "pair", "t": 1.0, "ranks": [0, 1], "bytes": 64, "seconds": [s, 2 * s]} for s in (1.0, 3.0)]
    (pair,) = assembled(stream(0, *rounds), stream(1)).pairs
    assert pair.hosts == ("node0", "node1") and [s.low_s for s in pair.passes] == [1.0, 3.0]


def test_streams_of_other_steps_hold_no_sweep() -> None:
    assert CollectiveSweep.assemble([Stream("node0-0", [{"event": "start", "t": 0.0, "rank": 0}])]) is None


def test_a_sweep_survives_the_store() -> None:
    sweep = assembled(stream(0, timed(0, 1, 5, 3)), stream(1, timed(1, 2, 4, 9)))
    assert CollectiveSweep.restore(*sweep.dump()) == sweep
