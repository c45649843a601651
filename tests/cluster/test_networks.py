"""Hosts made of network namespaces: what a link does to messages is measured as it was made, and named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.cluster import fleet, netns

BOOK = """# Links

```toml runbook
id = "links"
params.rate = { type = "float", default = 0.0 }
params.ranks = { type = "int", default = 2 }
```

```toml step links
probe = "links"
with = { sizes = [1048576, 4194304], repeats = 3 }
nproc = "$ranks"
checks = ["net.*"]
timeout = "90s"
```
"""


#: Sends 3 MB to whoever connects, and says what the kernel counted; the other end reads and answers one byte.
SENDER = """
import json, socket, sys
from ddaudit.network import tcp_carrier, tcp_counts
with socket.create_server((sys.argv[1], 29556)) as server:
    print("ready", flush=True)
    with server.accept()[0] as one:
        before = tcp_counts()
        one.sendall(bytes(3 << 20))
        one.recv(1)
        print(json.dumps(tcp_carrier(before, tcp_counts())))
"""
READER = """
import socket, sys
with socket.create_connection((sys.argv[1], 29556)) as one:
    left = 3 << 20
    while left:
        left -= len(one.recv(1 << 20))
    one.sendall(b"x")
"""


@pytest.fixture
def three() -> Iterator[netns.Hosts]:
    if (why := netns.missing()) is not None:
        pytest.skip(why)
    with netns.hosts(3) as made:
        yield made


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "links.md"
    path.write_text(BOOK)
    return path


def trials(answer: dict[str, Any], run_dir: Path) -> Any:
    from ddaudit.evidence import LinkTrials
    from ddaudit.evidence.store import load_events

    return load_events(run_dir, "links", [LinkTrials])["links"]


def test_a_capped_port_is_measured_named_and_the_others_are_left_alone(three: netns.Hosts, book: Path, tmp_path: Path):
    """Then the delayed network of two of them: one run after the other, on the hosts that are there already."""
    three[0].cap(100)
    started = fleet.start(three.members, tmp_path / "capped", str(book))
    _, answer, errors = started.finish()
    found = trials(answer, started.run_dir)
    rates = {(m.source, m.target): m.gbps for m in found.meetings if not m.again}
    assert [rates[0, k] for k in (1, 2)] == pytest.approx([0.1, 0.1], rel=0.15), errors
    accused = [(f["id"], f["where"]["host"]) for f in answer["findings"] if f["status"] == "FAIL"]
    assert accused == [("net.bad-port", "host1")]
    assert "interface eth0" in next(f["text"] for f in answer["findings"] if f["id"] == "net.bad-port")
    assert median(m.lost_share for m in found.meetings) < 0.01, "counted in every meeting, and next to nothing lost"
    assert fleet.left(three.members) == []
    three[0].heal()
    with netns.relay(three.members[:2], 20.0) as (slow, held_s):
        started = fleet.start(slow, tmp_path / "slow", str(book))
        _, answer, errors = started.finish()
        found = trials(answer, started.run_dir)
        latencies = [m.latency_s for m in found.meetings]
        assert latencies == pytest.approx([held_s()] * len(latencies), rel=0.15), errors
        used = {i.host: i.name for i in found.interfaces if i.chosen}
        assert used == {"host1": "slow0", "host2": "slow0"}
        told = [f["text"] for f in answer["findings"]]
        assert any("slow0 sent" in text for text in told), told


def sent(source: netns.Host, target: netns.Host) -> list[int]:
    """Segments that ``source`` sent, sent again, and sent again in vain while ``target`` read 3 MB."""
    python = [sys.executable, "-c"]
    sender = source.start([*python, SENDER, source.address], stdout=subprocess.PIPE, env=fleet.environment())
    assert sender.stdout is not None and sender.stdout.readline() == "ready\n"
    target.run(*python, READER, source.address)
    told: list[int] = json.loads(sender.communicate(timeout=60)[0])
    return told


def test_what_a_lossy_link_loses_is_counted_by_the_side_that_sends(three: netns.Hosts):
    with netns.relay(three.members[:2], 0.0, lose=12) as ((one, two), _):
        there, back = sent(one, two), sent(two, one)
    lost = [max(0, again - late) / count for count, again, late in (there, back)]
    assert lost[0] > 0.04 and lost[1] < lost[0] / 3, (there, back)
