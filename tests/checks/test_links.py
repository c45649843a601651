"""Judging links between hosts: a host is slow when it is slow again later, not when its core was busy for a moment, and
a link that loses packets is named although its large messages are quick."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import pytest

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


def worked(*sets_of_rank_2: list[float], busy: list[float] = USUAL) -> list[Finding]:
    """What is said of three hosts, of which the last one's sets of passes are given; ``busy`` are the first one's."""
    streams = []
    for rank in range(3):
        sets = sets_of_rank_2 if rank == 2 else [USUAL if rank else busy] * len(sets_of_rank_2)
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


def test_one_disturbed_pass_of_the_others_does_not_hide_a_slow_host() -> None:
    (found,) = worked([0.30, 0.31, 0.30], [0.29, 0.30, 0.31], busy=[0.2, 0.011, 0.25])
    assert found.id == "net.slow-host"


Pair = tuple[int, int]
QUICK_S, SENT = 0.002, 8700
LOSSY = {(0, 1): 0.08}
EVERY = list(permutations(range(3), 2))


def met(
    lost: Mapping[Pair, float | None],
    *,
    hosts: int = 3,
    again: Mapping[Pair, float | None] | None = None,
    seconds: Mapping[Pair, float] | None = None,
    needless: float = 0.0,
    work: Mapping[int, float] | None = None,
) -> list[Finding]:
    """What is said of hosts of which each sent to each: ``lost`` by (source, target) is the share sent again, None
    where nothing was counted. Everybody meets three times more; then ``again`` is lost instead."""
    streams = []
    for rank in range(hosts):
        events = [
            {"event": "start", "t": 0.0, "rank": rank, "host": f"node{rank}", "pid": 1},
            HEAD | {"members": [*range(hosts)]},
        ]
        once = [t * (work or {}).get(rank, 1.0) for t in USUAL]
        events += [{"event": "work", "t": 1.0, "rank": rank, "seconds": once}] * 2
        for turn in range(4):
            shares = {**lost, **(again or {})} if turn else lost
            for peer in (p for p in range(hosts) if p != rank):
                share = shares.get((rank, peer), 0.0)
                resent = None if share is None else round(share * SENT)
                counts = (
                    None if resent is None else {"sent": SENT, "resent": resent, "needless": round(needless * resent)}
                )
                took = (seconds or {}).get((rank, peer), QUICK_S)
                told = {"source": rank, "target": peer, "again": turn > 0, "latency_s": 1e-4, "segments": counts}
                events.append({"event": "meeting", "t": 2.0, "meeting": {**told, "seconds": {"4194304": [took] * 3}}})
        streams.append(Stream(f"node{rank}-{rank}", events))
    trials = LinkTrials.assemble(streams)
    assert trials is not None
    return judge(CHECKS["net.isolation"], {"links": trials}, step=STEP)


def named(found: list[Finding]) -> list[tuple[str, str | None]]:
    return [(f.id, f.where.key) for f in found if f.bad]


@pytest.mark.parametrize("lost", [LOSSY, {(1, 0): 0.05}, {(0, 1): 0.1, (1, 0): 0.06}], ids=["there", "back", "both"])
def test_a_link_that_loses_packets_is_named_though_its_messages_are_quick(lost: Mapping[Pair, float]) -> None:
    found = met(lost)
    assert named(found) == [("net.bad-link", "node0-node1")]
    assert found[0].measured == pytest.approx(max(lost.values()), rel=0.01) and found[0].limit == 0.01
    assert found[0].unit == "of the TCP segments" and "spared with others" in found[0].text


def test_a_host_that_loses_packets_with_everybody_has_a_bad_port() -> None:
    lost = {(peer, 2): 0.07 for peer in range(4)}
    assert named(met(lost, hosts=4)) == [("net.bad-port", "host node2")]


@pytest.mark.parametrize("share", [0.0, 0.0003, 0.005])
def test_what_sound_networks_lose_accuses_nobody(share: float) -> None:
    everywhere = dict.fromkeys(EVERY, share)
    found = met(everywhere | {(0, 1): share * 1.5})
    assert named(found) == [] and "of TCP segments lost: no host" in found[0].text


def test_a_fleet_in_which_all_lose_alike_accuses_no_link() -> None:
    everywhere = dict.fromkeys(EVERY, 0.03)
    assert named(met(everywhere)) == []


def test_one_bad_moment_accuses_no_link() -> None:
    assert named(met(LOSSY, again={(0, 1): 0.0})) == []


def test_what_was_late_and_not_lost_accuses_no_link() -> None:
    assert named(met(LOSSY, needless=0.95)) == []


def test_without_counts_times_alone_are_judged_and_the_lack_is_told() -> None:
    nothing = dict.fromkeys(EVERY)
    found = met(nothing)
    assert named(found) == [] and "losses not counted" in found[0].text
    slow = dict.fromkeys([(0, 1), (1, 0)], 0.5)
    assert named(met(nothing, seconds=slow)) == [("net.bad-link", "node0-node1")]


def test_a_capped_port_that_drops_what_its_queue_cannot_hold_is_accused_once_and_no_link_of_it() -> None:
    capped = dict.fromkeys(((0, 1), (0, 2)), 0.34)
    assert named(met({(0, 1): 0.02}, seconds=capped)) == [("net.bad-port", "host node0")]


def test_a_host_that_works_slowly_is_not_said_to_have_a_bad_network() -> None:
    slow = dict.fromkeys(((0, 1), (1, 0), (0, 2), (2, 0)), 0.34)
    assert named(met({(0, 1): 0.02}, seconds=slow, work={0: 6.0})) == [("net.slow-host", "host node0")]
    (found,) = met({}, seconds=slow, work={0: 2.0})
    assert found.status.value == "SKIP" and "not proven" in found.text and "node0 worked more slowly" in found.text
