"""Numbers that tables and references use: of several ranks the slowest counts."""

from __future__ import annotations

import pytest

from ddaudit.api import CollectivePoint, CollectiveSweep, LaunchLedger, RankStart, Spread
from ddaudit.engine.summary import summarise


def test_a_start_is_as_long_as_that_of_the_slowest_rank() -> None:
    ranks = (
        RankStart(rank=0, host="here", spawn_s=0.1, rendezvous_s=0.4),
        RankStart(rank=1, host="here", spawn_s=0.3, rendezvous_s=0.2),
    )
    assert summarise({"launch-ledger": LaunchLedger(ranks=ranks)}) == {
        "launch_spawn_s": 0.3,
        "launch_rendezvous_s": 0.4,
    }


def test_a_bandwidth_is_that_of_the_largest_message_in_the_slowest_group() -> None:
    def point(group: tuple[int, ...], size: int, seconds: float) -> CollectivePoint:
        return CollectivePoint(op="all-reduce", group=group, bytes=size, passes=(Spread.of([seconds]),))

    points = (point((0, 1), 1 << 10, 1.0), point((0, 1), 10**9, 1.0), point((2, 3), 10**9, 2.0))
    sweep = CollectiveSweep(backend="gloo", world_size=4, points=points)
    # nccl-tests: busbw = algbw * 2 (n - 1) / n, which is algbw itself for two ranks
    assert summarise({"collectives": sweep})["all_reduce_busbw_gbps"] == pytest.approx(0.5)
