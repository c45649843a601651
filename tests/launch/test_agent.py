"""What an agent does when its conductor is there no more, as far as one process can tell."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from ddaudit import __version__
from ddaudit.errors import LaunchProblem
from ddaudit.launch import agent as agents
from ddaudit.launch.agent import Agent
from ddaudit.launch.fleet import Fleet
from ddaudit.launch.place import Place
from ddaudit.launch.wire import Channel, Lost


def test_an_agent_leaves_a_conductor_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agents, "SILENCE_S", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        channel = Channel(socket.create_connection(listener.getsockname()))
        place = Place(2, 1, 1, "127.0.0.1", listener.getsockname()[1], "flags")
        agent = Agent(place, key="k", gpus=0, join_timeout_s=1.0)
        agent._channel = channel
        with pytest.raises(Lost, match="nothing was heard"):
            agent._turn()
        channel.close()


def test_an_agent_that_speaks_to_a_conductor_which_has_ended_the_run_is_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        channel = Channel(socket.create_connection(listener.getsockname()))
        conductor = Channel(listener.accept()[0])
        agent = Agent(Place(2, 1, 1, "127.0.0.1", 1, "flags"), key="k", gpus=0, join_timeout_s=1.0)
        monkeypatch.setattr(agent, "_join", lambda: channel)

        def speak() -> None:
            conductor.send({"op": "end", "whole": True})
            conductor.close()
            while True:
                agent._say({"event": "pong", "sent": 0.0, "t": 0.0})

        monkeypatch.setattr(agent, "_turn", speak)
        assert agent.serve() == 0
        channel.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tells", [False, True], ids=["hears", "tells"])
def test_a_conductor_that_wakes_up_does_not_take_a_host_that_left_it_for_lost(tells: bool):
    fleet = Fleet(Place(2, 0, 1, "127.0.0.1", 0, "flags"), key="k", host="node0")
    channel = Channel(socket.create_connection(fleet.address))
    channel.send({"event": "hello", "key": "k", "version": __version__, "node": 1, "host": "node1", "gpus": 0})
    while 1 not in fleet.nodes:
        fleet.receive(1.0)
    fleet.nodes[1].begin([1])
    channel.send({"event": "left", "why": "nothing was heard of it for 600 s"})
    channel.close()
    with pytest.raises(LaunchProblem, match="node1 left this run, which was stopped or stuck: nothing was heard"):
        while fleet.nodes[1].lost is None:
            if tells:  # the first word to who has hung up is sent, a later one is not
                fleet._tell(fleet.nodes[1], {"op": "ping", "sent": 0.0})
            else:
                fleet.receive(1.0)
        fleet.receive(0.0)
    fleet.end()
