"""One event file a host in the run folder, whatever the number of its ranks: written in pieces, read as streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddaudit.evidence.events import EventWriter, read_streams
from ddaudit.launch.shipping import Keeper, Shipper
from ddaudit.launch.trail import Trail
from ddaudit.launch.wire import Lost
from ddaudit.worker import Order


def piece(path: str, offset: int) -> dict[str, object]:
    return {"path": f"events/s/{path}", "offset": offset}


def test_two_hosts_of_three_ranks_leave_two_event_files_and_six_streams(tmp_path: Path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    keeper = Keeper(run_dir)
    for host, ranks in (("n1", (0, 1, 2)), ("n2", (3, 4, 5))):
        writers = {r: EventWriter(tmp_path / host / "events" / "s" / f"{host}-{r}.jsonl") for r in ranks}
        shipper = Shipper(tmp_path / host, "s", lambda message, data, host=host: keeper.keep(host, message, data))
        for step in range(3):
            for rank, writer in writers.items():
                writer.emit("step", step=step, of=rank)
            shipper.ship()
        for writer in writers.values():
            writer.close()
    assert sorted(p.name for p in (run_dir / "events" / "s").iterdir()) == ["n1.node.jsonl", "n2.node.jsonl"]
    streams = read_streams(run_dir / "events" / "s")
    assert [s.name for s in streams] == ["n1-0", "n1-1", "n1-2", "n2-3", "n2-4", "n2-5"]
    assert [[(e["step"], e["of"]) for e in s.events] for s in streams] == [[(n, r) for n in range(3)] for r in range(6)]


def test_a_line_cut_between_pieces_is_written_whole_and_one_that_never_ends_is_left_out(tmp_path: Path):
    keeper = Keeper(tmp_path)
    text = b'{"event": "a", "t": 1}\n{"event": "b", "t": 2}\n{"event": "kil'
    for offset in range(0, len(text), 5):
        keeper.keep("n1", piece("n1-0.jsonl", offset), text[offset : offset + 5])
        keeper.keep("n1", piece("n1-1.jsonl", offset), text[offset : offset + 5])
    streams = read_streams(tmp_path / "events" / "s")
    assert [[e["event"] for e in s.events] for s in streams] == [["a", "b"], ["a", "b"]]
    assert [s.damaged_lines for s in streams] == [0, 0]


def test_damage_costs_its_own_line_and_is_counted_where_it_belongs(tmp_path: Path):
    path = tmp_path / "n1.node.jsonl"
    path.write_text('["0", {"event": "a"}]\n["1", {"event": ]\n["1", {"event": "b"}]\n["0", {"eve')
    assert [(s.name, len(s.events), s.damaged_lines) for s in read_streams(tmp_path)] == [
        ("n1-0", 1, 1),
        ("n1-1", 1, 1),
    ]


def test_a_line_without_end_costs_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ddaudit.launch.shipping.MAX_LINE_BYTES", 100)
    keeper = Keeper(tmp_path)
    with pytest.raises(Lost, match="more than 100 bytes"):
        keeper.keep("n1", piece("n1-0.jsonl", 0), b"x" * 101)


def test_a_host_called_like_the_launchers_file_does_not_meet_it(tmp_path: Path):
    Keeper(tmp_path).keep("launcher", piece("launcher-0.jsonl", 0), b'{"event": "a", "t": 1}\n')
    assert not (tmp_path / "events" / "s" / "launcher.jsonl").exists()


def test_a_launcher_follows_each_rank_through_the_file_of_its_host(tmp_path: Path):
    orders = [Order.model_construct(run_dir=tmp_path, home=None, folder="s", host="n1", rank=r) for r in range(2)]
    trails, keeper = Trail.of_hosts(orders), Keeper(tmp_path)
    lines = [b'{"event": "enter", "t": 1, "name": "load"}\n', b'{"event": "step", "t": 2, "step": 7}\n']
    for rank, line in enumerate(lines):
        keeper.keep("n1", piece(f"n1-{rank}.jsonl", 0), line)
    for trail in trails.values():
        trail.read()
    assert (trails[0].phases, trails[0].last_step) == (["load"], None)
    assert (trails[1].phases, trails[1].last_step) == ([], 7)
