"""Runs over several hosts on one machine, each process with a host name of its own: meeting, losing, going on.

The steps run on every host and need no torch, so that what is tested is the agents alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fleet import environment, words
from tests.conftest import ddaudit

PROBES = '''
import os, time
from pathlib import Path
from pydantic import BaseModel
from ddaudit.api import Measures, probe

class Params(BaseModel):
    desk: str
    wait_for: str = ""

@probe("roll", produces=[Measures], params=Params, where="hosts")
def roll(context, params):
    """Notes that it ran here; waits for a file where told."""
    print("hello from", context.host)
    context.measure("here", 1.0)
    Path(params.desk, f"{context.step}.{context.host}.{os.getpid()}").touch()
    while params.wait_for and not Path(params.desk, params.wait_for).exists():
        time.sleep(0.02)
'''
BOOK = """# Roll call

```toml runbook
id = "roll"
params.desk = { type = "str" }
```

```toml step first
probe = "roll"
with.desk = "$desk"
checks = ["measures.within-limits"]
limits.here = { fail_above = 5 }
```

```toml step second
probe = "roll"
with = { desk = "$desk", wait_for = "go" }
checks = ["measures.within-limits"]
limits.here = { fail_above = 5 }
timeout = "40s"
```
"""


class Site:
    """A pack, a runbook, a desk where probes note that they ran, and the processes that were started."""

    def __init__(self, root: Path, port: int) -> None:
        self.desk, self.out, self.port = root / "desk", root / "out", port
        self.pack, self.book = root / "pack", root / "roll.md"
        (self.pack / "probes").mkdir(parents=True)
        (self.pack / "probes" / "roll.py").write_text(PROBES)
        self.book.write_text(BOOK)
        self.desk.mkdir()
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, node: int, nnodes: int, *more: str, host: str | None = None, **env: str) -> subprocess.Popen[str]:
        flags = ["--nnodes", str(nnodes), "--node-rank", str(node), "--rdzv-endpoint", f"127.0.0.1:{self.port}"]
        flags += ["--pack", str(self.pack), "--json", "--out", str(self.out), "--device", "cpu"]
        target = list(more) or [str(self.book), "-P", f"desk={self.desk}"]
        process = subprocess.Popen(
            words("run", *target, *flags),
            env=environment(SLURMD_NODENAME=host or f"node{node}", **env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def ran(self, step: str, host: str) -> int | None:
        """Pid of the probe that noted it ran, or None."""
        found = next(self.desk.glob(f"{step}.{host}.*"), None)
        return int(found.name.rpartition(".")[2]) if found else None

    @property
    def run_dir(self) -> Path:
        return next(p for p in self.out.iterdir())

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
            process.wait()


def wait(what: Callable[[], Any], limit_s: float = 60.0) -> Any:
    until = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
    return found


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Site(tmp_path, port)
    yield made
    made.end()


def told(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=90)
    return process.returncode, json.loads(out) if out.strip() else {}, err


def ids(answer: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    return [(f["status"], f["id"], f["where"]["host"]) for f in answer["findings"]]


def test_a_node_that_comes_late_is_waited_for_by_name_and_takes_part(site: Site):
    conductor, first = site.start(0, 3), site.start(1, 3)
    line = wait(lambda: conductor.stderr and conductor.stderr.readline())
    while "node 2 (not here yet)" not in line or "node 1" in line:
        line = conductor.stderr.readline()  # type: ignore[union-attr]
    late = site.start(2, 3, host="node1")  # shares the name of node 1
    wait(lambda: site.ran("second", "node1-2"))
    (site.desk / "go").touch()
    code, answer, _ = told(conductor)
    assert code == 0
    assert [s["state"] for s in answer["steps"]] == ["done", "done"]
    assert [h for _, _, h in ids(answer)].count("node1-2") == 2
    assert [told(p)[0] for p in (first, late)] == [0, 0]
    assert (site.run_dir / "logs" / "second" / "node1-2-2.log").read_text() == "hello from node1-2\n"
    files = sorted(p.name for p in (site.run_dir / "events" / "second").iterdir())
    assert files == ["launcher.jsonl", *(f"{host}.node.jsonl" for host in ("node0", "node1-2", "node1"))]


def test_a_lost_agent_is_named_the_finished_step_stands_and_the_run_goes_on_later(site: Site):
    conductor, agent = site.start(0, 2), site.start(1, 2)
    victim = wait(lambda: site.ran("second", "node1"))
    wait(lambda: site.ran("second", "node0"))
    agent.kill()
    code, answer, _ = told(conductor)
    assert code == 1
    lost = [f for f in answer["findings"] if f["id"] == "launch.host-lost"]
    assert [(f["status"], f["where"]["host"]) for f in lost] == [("FAIL", "node1")]
    wait(lambda: not alive(victim))
    (site.desk / "go").touch()
    before = site.ran("first", "node0")
    again = site.start(0, 2, "--resume", str(site.run_dir))
    site.start(1, 2, "--resume", str(site.run_dir))
    assert told(again)[0] == 0
    assert site.ran("first", "node0") == before, "a finished step ran again"
    report = ddaudit("report", str(site.run_dir), "--json")
    assert [s["state"] for s in json.loads(report.stdout)["steps"]] == ["done", "done"]


def test_when_the_conductor_dies_its_agents_leave_with_their_ranks_and_the_folder_can_be_read(site: Site):
    conductor, agent = site.start(0, 2), site.start(1, 2)
    rank = wait(lambda: site.ran("second", "node1"))
    wait(lambda: (site.run_dir / "events" / "second" / "node1.node.jsonl").exists())
    conductor.kill()
    code, _, err = told(agent)
    assert code == 3 and "conductor" in err and "was lost" in err
    wait(lambda: not alive(rank))
    report = ddaudit("report", str(site.run_dir), "--json")
    assert report.returncode == 3
    answer = json.loads(report.stdout)
    assert answer["verdict"] == "INTERRUPTED"
    assert [s["state"] for s in answer["steps"]] == ["done", "interrupted"]


def test_a_term_to_an_agent_ends_the_whole_run_in_order(site: Site):
    conductor, agent = site.start(0, 2), site.start(1, 2)
    wait(lambda: site.ran("second", "node1"))
    wait(lambda: site.ran("second", "node0"))
    agent.terminate()
    code, answer, _ = told(conductor)
    assert (code, answer["verdict"]) == (143, "INTERRUPTED")
    assert told(agent)[0] == 0
    assert (site.run_dir / "report.html").exists()


def test_a_stopped_agent_falls_silent_and_is_lost(site: Site):
    conductor = site.start(0, 2, str(site.book), "-P", f"desk={site.desk}", "--node-timeout", "2s")
    agent = site.start(1, 2)
    wait(lambda: site.ran("second", "node1"))
    agent.send_signal(signal.SIGSTOP)
    code, answer, _ = told(conductor)
    assert code == 1
    assert ("FAIL", "launch.host-lost", "node1") in ids(answer)
    assert any("nothing was heard" in f["text"] for f in answer["findings"])


def test_a_node_that_never_comes_is_named_and_once_it_is_there_the_run_goes_on(site: Site):
    conductor = site.start(0, 3, str(site.book), "-P", f"desk={site.desk}", "--join-timeout", "3s")
    agent = site.start(1, 3)
    code, answer, _ = told(conductor)
    assert code == 3
    first = next(f for f in answer["findings"] if f["step"] == "first")
    assert first["status"] == "ERROR" and "node 2 (not here yet)" in first["text"] and "node1" in first["text"]
    agent.wait()
    (site.desk / "go").touch()
    again = [site.start(node, 3, "--resume", str(site.run_dir)) for node in range(3)]
    code, answer, err = told(again[0])
    assert code == 0 and [s["state"] for s in answer["steps"]] == ["done", "done"], err


def test_strangers_and_other_runs_are_turned_away(site: Site):
    import socket

    conductor = site.start(0, 2, str(site.book), "-P", f"desk={site.desk}", "--rdzv-id", "mine")
    wrong = site.start(1, 2, str(site.book), "-P", f"desk={site.desk}", "--rdzv-id", "theirs")
    code, _, err = told(wrong)
    assert code == 3 and "another run meets here" in err
    with socket.create_connection(("127.0.0.1", site.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(10) == b""
    (site.desk / "go").touch()
    site.start(1, 2, str(site.book), "-P", f"desk={site.desk}", "--rdzv-id", "mine")
    assert told(conductor)[0] == 0


def test_a_wrong_call_sends_the_agents_home(site: Site):
    conductor, agent = site.start(0, 2, "no-such-runbook"), site.start(1, 2, "no-such-runbook")
    assert told(conductor)[0] == 2
    assert told(agent)[0] in (0, 3)
