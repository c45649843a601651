"""What an agent does when its conductor is there no more, as far as one process can tell."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from ddaudit.launch import agent as agents
from ddaudit.launch.agent import Agent
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
