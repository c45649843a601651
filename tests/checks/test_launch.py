"""Judging what became of ranks: the guilty one by name, the others left alone."""

from __future__ import annotations

from typing import Any

import pytest

from ddaudit import packs
from ddaudit.engine.judge import judge
from ddaudit.evidence.launch import LaunchFacts, RankOutcome
from ddaudit.findings import Finding, Severity, Status
from ddaudit.runbook.model import PlannedStep

SPEC = packs.load(entries=False, environment=False).registry.checks["launch.ranks"]
STEP = PlannedStep(id="data", title="t", source="book.md:3", runbook="book")


def rank(number: int, state: str = "done", **fields: Any) -> RankOutcome:
    return RankOutcome(rank=number, host="node1", pid=100 + number, state=state, **fields)


def ask(*ranks: RankOutcome, **fields: Any) -> list[Finding]:
    given = {"timeout_s": 60.0, "seconds": 4.2, "folder": "data", "world_size": len(ranks), **fields}
    return judge(SPEC, {"launch": LaunchFacts(host="node1", ranks=ranks, **given)}, step=STEP)


LOST = rank(1, "killed", signal="SIGKILL", culprit=True, why="it was ended by SIGKILL before any peer failed by itself")
TAKEN_ALONG = rank(0, "exited", exit_code=65, error="RuntimeError: Connection closed by peer", collective_seq=14)
HUNG = rank(
    1,
    "sleeping",
    killed_by_us=True,
    culprit=True,
    why="it stood at collective 13 of group 0 while peers waited for it in collective 14",
    collective_seq=13,
    collective_op="gloo:all_reduce",
    stuck_at="train.py:88 in load",
)


def test_ranks_that_all_ended_pass_with_count_and_seconds() -> None:
    (finding,) = ask(rank(0), rank(1))
    assert (finding.status, finding.id, finding.measured, finding.limit) == (Status.PASS, "launch.ranks", 2, 2)
    assert "2 rank(s) on node1" in finding.text and "4.2 s" in finding.text


def test_only_the_rank_that_failed_by_itself_is_accused() -> None:
    (finding,) = ask(TAKEN_ALONG, LOST)
    assert (finding.status, finding.id, finding.severity) == (Status.FAIL, "launch.rank-lost", Severity.CRITICAL)
    assert (finding.where.rank, finding.where.host) == (1, "node1")
    for told in ("pid 101", "SIGKILL", "rank 0 14", "not reported"):
        assert told in finding.text
    assert finding.evidence == "logs/data/node1-1.log"


def test_memory_is_blamed_only_when_the_kernel_counted_a_kill() -> None:
    (with_kill,), (without,) = ask(TAKEN_ALONG, LOST, oom_kills=1), ask(TAKEN_ALONG, LOST, oom_kills=0)
    assert with_kill.remedy and "for memory" in with_kill.remedy.text
    assert without.remedy and "Nobody here sent SIGKILL" in without.remedy.text


@pytest.mark.parametrize(
    ("state", "word"),
    [("sleeping", "sleeping"), ("on-cpu", "computing"), ("disk", "(D)"), ("stopped", "(T)"), ("done", "through with")],
)
def test_a_hung_rank_is_named_with_state_place_and_position(state: str, word: str) -> None:
    (finding,) = ask(rank(0, "sleeping", collective_seq=14), HUNG.model_copy(update={"state": state}), timed_out=True)
    assert (finding.id, finding.where.rank) == ("launch.rank-hung", 1)
    for told in (word, "deadline of 60 s", "train.py:88 in load", "13 (gloo:all_reduce)", "rank 0 14"):
        assert told in finding.text
    assert finding.evidence == "logs/data/node1-1.stack"


def test_a_bug_that_all_ranks_share_is_told_once() -> None:
    same = {"exit_code": 65, "culprit": True, "error": "ValueError: bad\nmore", "why": "it raised ValueError"}
    (finding,) = ask(*(rank(n, "exited", **same) for n in range(4)))
    assert finding.measured == 4 and "ranks 0, 1, 2, 3" in finding.text and "more" not in finding.text


def test_ranks_that_nothing_tells_apart_are_reported_without_accusing_one() -> None:
    (hung,) = ask(rank(0, "sleeping", stuck_at="a.py:1 in f"), rank(1, "sleeping"), timed_out=True)
    (lost,) = ask(TAKEN_ALONG, rank(1, "exited", exit_code=65, error="RuntimeError: Connection reset by peer"))
    assert (hung.id, hung.where.rank) == ("launch.rank-hung", None) and "a.py:1 in f" in hung.text
    assert (lost.id, lost.where.rank) == ("launch.rank-lost", None) and "Connection" in lost.text
    assert hung.where.host == "node1"


def test_ranks_of_two_hosts_that_wait_alike_accuse_neither_host() -> None:
    there = rank(1, "sleeping").model_copy(update={"host": "node2"})
    (hung,) = ask(rank(0, "sleeping"), there, timed_out=True)
    assert hung.where.host is None and "2 hosts, or the network between two of them, is not proven" in hung.text


def test_a_users_mistake_is_an_error_and_an_interrupt_a_skip_neither_a_fault() -> None:
    mistake = rank(0, "exited", exit_code=66, culprit=True, problem=True, error="book.md:7: parameter 'x'", why="w")
    (error,) = ask(mistake)
    assert (error.status, error.id, error.text) == (Status.ERROR, "launch.problem", "book.md:7: parameter 'x'")
    (skipped,) = ask(rank(0, "sleeping", killed_by_us=True), interrupted=True)
    assert skipped.status is Status.SKIP


def test_slow_ranks_are_no_fault_of_theirs() -> None:
    slow = [rank(n, "on-cpu", last_step=39 + n, killed_by_us=True) for n in range(2)]
    (finding,) = ask(*slow, timed_out=True, progressing=True, seconds=60.0)
    assert (finding.status, finding.id, finding.where.rank) == (Status.ERROR, "launch.too-slow", None)
    assert "39 to 40" in finding.text and finding.limit == 60.0


def test_a_rank_that_never_came_to_its_end_is_no_pass_even_without_culprit() -> None:
    (finding,) = ask(rank(0), rank(1, "never-started"))
    assert finding.status is Status.FAIL


def test_a_lost_host_is_told_once_with_all_its_ranks() -> None:
    lost = {"culprit": True, "why": "it was lost with its host", "error": "nothing was heard of it for 15 s"}
    members = (rank(0), *(rank(n, "host-lost", **lost).model_copy(update={"host": "node2"}) for n in (1, 2)))
    facts = LaunchFacts(world_size=3, host="node1", folder="data", timeout_s=60.0, seconds=20.0, ranks=members)
    (finding,) = judge(SPEC, {"launch": facts}, step=STEP)
    assert (finding.id, finding.status, finding.where.host) == ("launch.host-lost", Status.FAIL, "node2")
    assert finding.measured == 2 and "rank 1, 2" in finding.text and facts.lost_hosts == ("node2",)
