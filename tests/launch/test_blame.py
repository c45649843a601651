"""Who is accused, from what was seen: surest rule first, and nobody where nothing tells the ranks apart."""

from __future__ import annotations

from typing import Any

import pytest

from ddaudit.launch.blame import Seen, blame

PEER = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711"
WAITED = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
ALL_PHASES = ("load", "import", "rendezvous", "first-collective", "probe")


def group(enqueued: int, completed: int | None = None, op: str = "gloo:all_reduce") -> dict[str, Any]:
    return {"enqueued": enqueued, "completed": enqueued if completed is None else completed, "op": op, "sizes": [[4]]}


def waiting(rank: int, **fields: Any) -> Seen:
    fields = {"state": "sleeping", "phases": ALL_PHASES, "answered": True, **fields}
    return Seen(rank=rank, **fields)


def failed(rank: int, at: float, error: str = PEER, kind: str = "RuntimeError", **fields: Any) -> Seen:
    fields = {"state": "exited", "exit_code": 65, "phases": ALL_PHASES, **fields}
    return Seen(rank=rank, failed_at=at, error_type=kind, error=error, **fields)


def killed(rank: int, at: float, signal: str = "SIGKILL") -> Seen:
    return Seen(rank=rank, state="killed", failed_at=at, signal=signal, phases=ALL_PHASES)


def test_a_dead_rank_is_accused_even_when_its_peers_error_was_seen_first() -> None:
    assert list(blame([failed(0, 1.0), killed(1, 1.2), failed(2, 1.1)])) == [1]


def test_the_earliest_own_error_wins_over_a_later_different_one() -> None:
    ranks = [failed(0, 2.0, "list index out of range", "IndexError"), failed(1, 1.0, "no such file", "OSError")]
    assert list(blame(ranks)) == [1]


def test_the_same_bug_in_all_ranks_accuses_all_and_says_so() -> None:
    ranks = [failed(r, 1.0 + r, f"bad value in rank {r}", "ValueError") for r in range(3)]
    verdict = blame(ranks)
    assert sorted(verdict) == [0, 1, 2]
    assert "so did 2 more" in verdict[0]


def test_a_stopped_rank_is_accused_and_not_the_one_that_gave_up_waiting() -> None:
    assert list(blame([failed(0, 8.0, WAITED), waiting(1, state="stopped", answered=False)])) == [1]


def test_the_rank_with_fewer_collectives_is_accused() -> None:
    ranks = [waiting(r, groups={"0": group(12, 11)}) for r in range(3)]
    ranks.append(waiting(3, groups={"0": group(11)}))
    verdict = blame(ranks)
    assert list(verdict) == [3]
    assert "collective 11" in verdict[3] and "collective 12" in verdict[3]


def test_a_rank_that_finished_early_is_accused_by_its_position() -> None:
    ranks = [waiting(0, groups={"0": group(21, 20)}), waiting(1, state="done", finished=True, groups={"0": group(20)})]
    assert list(blame(ranks)) == [1]


def test_in_a_chain_of_waiting_the_idle_end_is_accused() -> None:
    """Rank 0 waits for 1 in group a, 1 waits for 2 in group b, 2 computes."""
    ranks = [
        waiting(0, groups={"a": group(5, 4)}),
        waiting(1, groups={"a": group(4), "b": group(9, 8)}),
        waiting(2, groups={"b": group(8)}),
    ]
    assert list(blame(ranks)) == [2]


def test_a_rank_still_loading_is_accused_while_peers_meet() -> None:
    ranks = [waiting(0, phases=("load", "import", "rendezvous")), waiting(1, phases=("load",))]
    verdict = blame(ranks)
    assert list(verdict) == [1] and "load" in verdict[1]


def test_a_rank_that_cannot_answer_is_accused_when_positions_are_equal() -> None:
    assert list(blame([waiting(0), waiting(1, answered=False)])) == [1]


def test_a_rank_outside_collectives_is_accused_by_its_stack() -> None:
    inside = '  File "x/torch/distributed/distributed_c10d.py", line 3090 in all_reduce'
    assert list(blame([waiting(0, main_stack=inside), waiting(1, main_stack='  File "io.py", line 2 in read')])) == [1]


@pytest.mark.parametrize(("state", "word"), [("disk", "uninterruptible"), ("on-cpu", "computing")])
def test_states_decide_where_nothing_else_does(state: str, word: str) -> None:
    verdict = blame([waiting(0), waiting(1, state=state)])
    assert list(verdict) == [1] and word in verdict[1]


def test_a_single_rank_that_does_not_end_is_the_one() -> None:
    assert list(blame([waiting(0)])) == [0]


def test_nobody_is_accused_when_all_wait_alike_or_lost_each_other_alike() -> None:
    assert blame([waiting(r, groups={"0": group(7, 6)}) for r in range(4)]) == {}
    assert blame([failed(0, 1.0, groups={"0": group(7, 6)}), failed(1, 1.0, groups={"0": group(7, 6)})]) == {}


def test_nobody_is_accused_when_all_is_well() -> None:
    assert blame([Seen(rank=r, state="done", finished=True, groups={"0": group(5 + r)}) for r in range(2)]) == {}


def test_the_ranks_of_a_lost_host_are_the_culprits_and_their_peers_are_not() -> None:
    lost = {"lost": "it closed the connection", "error": "it closed the connection", "failed_at": 10.0}
    ranks = [
        Seen(0, "exited", failed_at=10.1, error_type="RuntimeError", error="Connection closed by peer", host="a"),
        Seen(1, "host-lost", host="b", **lost),
        Seen(2, "host-lost", host="b", **lost),
    ]
    assert set(blame(ranks)) == {1, 2}


def test_an_error_before_the_loss_of_its_host_is_the_cause() -> None:
    ranks = [
        Seen(0, "exited", failed_at=9.0, error_type="ValueError", error="bad", host="a"),
        Seen(1, "host-lost", failed_at=10.0, lost="it closed the connection", host="b"),
    ]
    assert set(blame(ranks)) == {0}
