"""What processes that died had not sent: it is put where it belongs, once, and nothing of a living one is touched."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddaudit.launch.home import Home
from ddaudit.launch.shipping import Keeper, Shipper
from ddaudit.launch.spool import Spool, lock, recover, tidy


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    made = tmp_path / "run"
    (made / "events").mkdir(parents=True)
    yield made.resolve()


def line(**fields: Any) -> str:
    return json.dumps({"event": "measure", "t": 1.0, **fields}) + "\n"


def written(run: Path, *lines: str, sent: int, torn: str = "", log: str = "") -> Spool:
    """A spool of node1 whose rank 1 wrote these lines in step ``s``; the first ``sent`` of them came to the run."""
    spool = Spool.make("agent")
    spool.belong(run)
    events, logs = spool.root / "events" / "s", spool.root / "logs" / "s"
    events.mkdir(parents=True)
    logs.mkdir(parents=True)
    (events / "node1-1.jsonl").write_text("".join(lines[:sent]))
    (logs / "node1-1.log").write_text(log[: len(log) // 2])
    keeper = Keeper(run)
    Shipper(spool.root, "s", lambda message, piece: keeper.keep("node1", message, piece)).ship()
    (events / "node1-1.jsonl").write_text("".join(lines) + torn)
    (logs / "node1-1.log").write_text(log)
    return spool


def node_file(run: Path, folder: str = "s") -> list[Any]:
    lines = (run / "events" / folder / "node1.node.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_what_was_not_sent_is_added_once_and_the_folder_goes(run: Path):
    written(run, *(line(value=n) for n in range(5)), sent=2, torn='{"event": "mea', log="hello\n").close()
    recover(run, locked=True)
    assert [(owner, event["value"]) for owner, event in node_file(run)] == [("1", n) for n in range(5)]
    assert (run / "logs" / "s" / "node1-1.log").read_text() == "hello\n"
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
    recover(run, locked=True)
    assert len(node_file(run)) == 5


def test_a_line_that_the_conductor_was_killed_in_is_written_again_whole(run: Path):
    spool = written(run, line(value=0), line(value=1), sent=1)
    path = run / "events" / "s" / "node1.node.jsonl"
    path.write_text(path.read_text() + '["1", {"event": "meas')
    spool.close()
    recover(run, locked=True)
    whole = [text for text in path.read_text().splitlines() if text.endswith("]")]
    assert [json.loads(text)[1]["value"] for text in whole] == [0, 1]


def test_a_try_that_was_set_aside_gets_its_own_lines_and_the_new_one_none(run: Path):
    spool = written(run, line(value=0), line(value=1), sent=1)
    (run / "events" / "s").rename(run / "events" / "s.broken1")
    (run / "logs" / "s").rename(run / "logs" / "s.broken1") if (run / "logs" / "s").exists() else None
    other = written(run, line(value=7), sent=1)
    spool.close()
    recover(run, locked=False)
    assert [event["value"] for _, event in node_file(run, "s.broken1")] == [0, 1]
    assert [event["value"] for _, event in node_file(run)] == [7]
    assert other.path.is_dir() and not spool.path.is_dir()


def test_without_the_lock_nothing_is_added_to_a_step_that_may_run(run: Path):
    spool = written(run, line(value=0), line(value=1), sent=1)
    spool.close()
    recover(run, locked=False)
    assert len(node_file(run)) == 1 and spool.path.is_dir()


def test_a_try_of_which_nothing_came_gets_a_folder_beside_the_step_that_may_run(run: Path):
    spools = [written(run, line(value=n), sent=0) for n in (0, 1)]
    for spool in spools:
        spool.close()
    recover(run, locked=False)
    found = {p.name for p in (run / "events").iterdir()}
    assert found == {"s.left1", "s.left2"} and not any(spool.path.is_dir() for spool in spools)
    assert {node_file(run, name)[0][1]["value"] for name in found} == {0, 1}


def test_a_living_process_keeps_its_folder(run: Path):
    spool = written(run, line(value=0), sent=0)
    recover(run, locked=True)
    tidy()
    assert spool.mine and spool.path.is_dir() and not (run / "events" / "s").exists()


def test_another_run_at_the_same_place_gets_nothing(run: Path):
    spool = written(run, line(value=0), line(value=1), sent=0)
    spool.close()
    run.rename(run.with_name("old"))
    (run / "events").mkdir(parents=True)
    recover(run, locked=True)
    assert list((run / "events").iterdir()) == [] and spool.path.is_dir()


def test_tidying_removes_what_is_empty_or_has_all_arrived_and_nothing_else(run: Path):
    empty, arrived = Spool.make("agent"), written(run, line(value=0), sent=1)
    missing = written(run.with_name("other"), line(value=1), sent=0)
    for spool in (empty, arrived, missing):
        spool.close()
    tidy()
    assert [spool.path.is_dir() for spool in (empty, arrived, missing)] == [False, False, True]


def test_an_agent_hands_over_when_nobody_holds_the_run_and_keeps_all_when_somebody_does(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ddaudit.launch.spool.TURN_S", 0.0)
    spool = written(run, line(value=0), line(value=1), sent=1)
    held = lock(run)
    assert not spool.hand_over(run) and spool.path.is_dir() and len(node_file(run)) == 1
    import os

    os.close(held)
    assert spool.hand_over(run) and not spool.path.is_dir() and len(node_file(run)) == 2


def test_a_conductor_that_cannot_write_leaves_its_ranks_events_to_the_run_that_goes_on(run: Path):
    def full(message: Any, piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    home = Home(run, full)
    order = home.orders([{"folder": "s", "host": "node0"}])[0]
    (Path(order["home"]) / "events" / "s").mkdir(parents=True)
    (Path(order["home"]) / "events" / "s" / "node0-0.jsonl").write_text(line(value=3))
    with pytest.raises(OSError, match="No space"):
        home.ship()
    home.close()
    recover(run, locked=True)
    assert json.loads((run / "events" / "s" / "node0.node.jsonl").read_text())[1]["value"] == 3
