"""Frames and files between agents: what is damaged or does not belong costs the connection, never the run folder."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddaudit.launch.shipping import Keeper, Shipper
from ddaudit.launch.wire import HEAD, Channel, Lost


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        raw = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    channel = Channel(accepted)
    yield channel, raw
    channel.close()
    raw.close()


def read(channel: Channel, count: int) -> list[tuple[dict[str, Any], bytes]]:
    found: list[tuple[dict[str, Any], bytes]] = []
    while len(found) < count:
        found += channel.receive()
    return found


def frame(message: Any, payload: bytes = b"") -> bytes:
    text = json.dumps(message).encode()
    return HEAD.pack(len(text), len(payload)) + text + payload


def test_frames_arrive_whole_however_they_were_cut(pair: tuple[Channel, socket.socket]):
    channel, raw = pair
    data = frame({"op": "a"}, b"xyz") + frame({"op": "b"})
    for start in range(0, len(data), 3):
        raw.sendall(data[start : start + 3])
    assert read(channel, 2) == [({"op": "a"}, b"xyz"), ({"op": "b"}, b"")]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", HEAD.pack(4, 0) + b"nope", frame([1])])
def test_another_language_costs_the_connection(pair: tuple[Channel, socket.socket], data: bytes):
    channel, raw = pair
    raw.sendall(data)
    with pytest.raises(Lost, match="protocol"):
        read(channel, 1)


def test_a_peer_that_hangs_up_is_lost(pair: tuple[Channel, socket.socket]):
    channel, raw = pair
    raw.close()
    with pytest.raises(Lost, match="closed"):
        read(channel, 1)


def ship(source: Path, target: Path) -> list[str]:
    """One round of shipping; returns the paths in the order sent."""
    order: list[str] = []
    keeper = Keeper(target)

    def send(message: Any, piece: bytes) -> None:
        order.append(message["path"])
        keeper.keep("n1", message, piece)

    shipper = Shipper(source, "s", send)
    shipper.ship()
    return order


def test_tensor_bytes_travel_before_the_lines_that_point_at_them(tmp_path: Path):
    source, target = tmp_path / "a", tmp_path / "b"
    for part, name in (("events", "n1-0.jsonl"), ("events", "n1-0.bin"), ("logs", "n1-0.log")):
        (source / part / "s").mkdir(parents=True, exist_ok=True)
        (source / part / "s" / name).write_bytes(name.encode() * 1000)
    target.mkdir()
    order = ship(source, target)
    assert order[-1].endswith(".jsonl") and len(order) == 3
    assert (target / "events" / "s" / "n1-0.bin").read_bytes() == b"n1-0.bin" * 1000


@pytest.mark.parametrize(
    "path",
    ["../plan.json", "events/s/../../x-0.log", "/etc/n1-0.log", "events/s/n2-0.jsonl", "plan.json", "events/run.jsonl",
     "events/s/n1-0.sh", None],
)  # fmt: skip
def test_only_files_of_its_own_ranks_are_taken_from_a_host(tmp_path: Path, path: str | None):
    with pytest.raises(Lost, match="not a rank's"):
        Keeper(tmp_path).keep("n1", {"path": path, "offset": 0}, b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_piece_that_does_not_continue_its_file_is_refused(tmp_path: Path):
    keeper = Keeper(tmp_path)
    keeper.keep("n1", {"path": "logs/s/n1-0.log", "offset": 0}, b"abc")
    with pytest.raises(Lost, match="missing"):
        keeper.keep("n1", {"path": "logs/s/n1-0.log", "offset": 7}, b"x")


def test_a_link_in_the_run_folder_is_not_followed(tmp_path: Path):
    outside = tmp_path / "outside"
    (tmp_path / "run" / "logs" / "s").mkdir(parents=True)
    (tmp_path / "run" / "logs" / "s" / "n1-0.log").symlink_to(outside)
    with pytest.raises(OSError):
        Keeper(tmp_path / "run").keep("n1", {"path": "logs/s/n1-0.log", "offset": 0}, b"x")
    assert not outside.exists()


def test_a_run_folder_that_was_removed_does_not_come_back(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        Keeper(tmp_path / "gone").keep("n1", {"path": "logs/s/n1-0.log", "offset": 0}, b"x")
    assert not (tmp_path / "gone").exists()
