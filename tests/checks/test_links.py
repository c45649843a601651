"""Judging links between hosts: a host is slow when it is slow again later, not when its core was busy for a moment."""

from __future__ import annotations

from ddaudit import packs
from ddaudit.engine.judge import judge
from ddaudit.evidence import LinkTrials
from ddaudit.evidence.events import Stream
from ddaudit.findings import Finding
from ddaudit.runbook.model import PlannedStep

CHECKS = packs.load(entries=False, environment=False).registry.checks
STEP = PlannedStep(id="s", title="t", source="book.md:3", runbook="book")
USUAL, SLOW = [0.010, 0.011, 0.010], [0.050, 0.048, 0.047]
HEAD = {"event": "links", "t": 0.0, "members": [0, 1, 2], "budget_s": None, "expected_gbps": None}


def worked(*sets_of_rank_2: list[float]) -> list[Finding]:
    """What is said of three hosts, of which the last one's sets of passes are given."""
    streams = []
    for rank in range(3):
        sets = sets_of_rank_2 if rank == 2 else [USUAL] * len(sets_of_rank_2)
        events = [{"event": "start", "t": 0.0, "rank": rank, "host": f"node{rank}", "pid": 1}, HEAD]
        events += [{"event": "work", "t": 1.0 + i, "rank": rank, "seconds": s} for i, s in enumerate(sets)]
        streams.append(Stream(f"node{rank}-{rank}", events))
    trials = LinkTrials.assemble(streams)
    assert trials is not None and len(trials.work_s[2]) == len(sets_of_rank_2)
    return [f for f in judge(CHECKS["net.isolation"], {"links": trials}, step=STEP) if f.bad]


def test_a_host_that_is_slow_in_every_set_of_passes_is_named() -> None:
    (found,) = worked(SLOW, SLOW, SLOW)
    assert (found.id, found.where.host, found.where.rank) == ("net.slow-host", "node2", 2)
    assert found.measured is not None and 4 < float(found.measured) < 5 and "each of 3 sets of passes" in found.text


def test_a_core_that_was_busy_for_a_moment_accuses_nobody() -> None:
    assert worked(SLOW, USUAL) == []
    assert worked(SLOW, SLOW, [*SLOW[:2], USUAL[2]]) == []
    assert worked(SLOW) == []


def test_the_usual_differences_accuse_nobody() -> None:
    assert worked(USUAL, USUAL) == []
