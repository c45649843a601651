"""Random faults on runs over several hosts: is every report readable, the right one named, and nothing left running?

``python -m benchmarks.chaos [--faults 100] [--seed 1] [--only FAULT ...]``. Hosts are processes of this machine with
names of their own, and network namespaces where the network is what breaks; each run has a step that has finished
before the fault and one that is hit at a random moment. After the fault ``ddaudit report RUN`` reads the folder and
``ddaudit run --resume RUN`` goes on. Prints a line per fault and a table; ends with 1 when one was named wrongly, a
report could not be read, a process stayed, or a finished step was lost. Needs root (mounts, namespaces).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._chaos_tools import Member, Place, Storage, cut
from tests.cluster import netns
from tests.cluster.test_fleet import Site, wait

#: How long the processes of a run may take to leave after the fault; TCP gives up a dead peer after 15 s.
LEAVE_S = 60.0


@dataclass(frozen=True)
class Fault:
    """What a run with this fault must end as. ``ids``: findings that name the victim; ``codes``: exit codes of the
    conductor; ``ends``: the report's verdict."""

    ends: str
    codes: tuple[int, ...]
    ids: tuple[str, ...] = ()


LOST = Fault("FAIL", (1,), ("launch.host-lost",))
FAULTS: dict[str, Fault] = {
    "kill-rank": Fault("FAIL", (1,), ("launch.rank-lost",)),
    "stop-rank": Fault("FAIL", (1,), ("launch.rank-hung",)),
    "late-rank": Fault("PASS", (0,)),
    "kill-agent": LOST,
    "stop-agent": LOST,
    "term-agent": Fault("INTERRUPTED", (143,)),
    "late-agent": Fault("PASS", (0,)),
    "kill-conductor": Fault("INTERRUPTED", (-9,)),
    "term-conductor": Fault("INTERRUPTED", (143,)),
    "term-all": Fault("INTERRUPTED", (143,)),
    "cut-in": LOST,
    "cut-out": LOST,
    "cut-both": LOST,
    "storage-full": Fault("INTERRUPTED", (3,)),
    "storage-read-only": Fault("INTERRUPTED", (3,)),
    "storage-hangs": Fault("INTERRUPTED", (3,)),
    "clock-skew": Fault("FAIL", (1,), ("launch.rank-lost",)),
}


@dataclass
class Result:
    fault: str
    readable: bool
    named: str
    """``right``, ``not proven`` or ``wrong``."""
    orphans: int
    kept: bool
    resumed: bool
    told: str

    @property
    def good(self) -> bool:
        return self.readable and self.named != "wrong" and self.orphans == 0 and self.kept and self.resumed


def strike(fault: str, chance: random.Random, root: Path) -> Result:
    """One run of two to four hosts with one fault."""
    with ExitStack() as stack:
        run = _Run(root, fault, chance)
        stack.callback(run.end)
        return run.go(stack)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class _Run:
    def __init__(self, root: Path, fault: str, chance: random.Random) -> None:
        self.site, self.root, self.fault, self.chance = Site(root, 0), root, fault, chance
        self.count = chance.choice((2, 2, 3, 4))
        at_conductor = fault.startswith("storage") or "conductor" in fault
        self.victim = 0 if at_conductor else chance.randrange(1, self.count)
        self.storage = Storage(self.site.out)
        self.members: list[Member] = []
        self.hosts: list[netns.Host] = []

    def start(self, node: int, port: int, *words: str, faulty: bool = True) -> Member:
        ahead_s = 0.0
        if faulty and self.fault == "clock-skew" and node == self.victim:
            ahead_s = 60 * self.chance.choice((-1, 1)) * self.chance.uniform(2, 30)
        host = self.hosts[node] if faulty and self.hosts else None
        place = Place(f"node{node}", host.namespace if host else None, ahead_s)
        flags = ["--nnodes", str(self.count), "--node-rank", str(node), "--device", "cpu", "--json", "--no-progress"]
        flags += ["--rdzv-endpoint", f"{self.hosts[0].address if host else '127.0.0.1'}:{port}"]
        flags += ["--pack", str(self.site.pack), "--node-timeout", "2s"]
        member = Member(["run", *words, *flags], self.root / f"told{len(self.members)}", place)
        self.members.append(member)
        return member

    def end(self) -> None:
        for member in self.members:
            member.end()

    def go(self, stack: ExitStack) -> Result:
        self.hosts = stack.enter_context(self._network())
        if self.fault in ("storage-full", "storage-read-only"):
            stack.enter_context(self.storage.mounted())
        stack.callback(self.end)
        port, book = _free_port(), (str(self.site.book), "-P", f"desk={self.site.desk}", "--out", str(self.site.out))
        late = self.victim if self.fault == "late-agent" else None
        started = {n: self.start(n, port, *book) for n in range(self.count) if n != late}
        if late is not None:
            time.sleep(self.chance.uniform(0.0, 3.0))
            started[late] = self.start(late, port, *book)
        pids = self._await_second()
        time.sleep(self.chance.uniform(0.0, 0.7))
        self._hit(started, pids)
        self._leave(started)
        orphans = sum(len(member.left()) for member in started.values())
        self.storage.heal()
        named, told = self._judge(started[0])
        report, readable, answer = self._report()
        kept = {s["id"]: s["state"] for s in answer.get("steps", ())}.get("first") == "done"
        named = "wrong" if named == "wrong" else self._names(answer)
        told = f"{answer.get('verdict')} {told} " + "; ".join(f"{id} {host}" for id, host in _bad(answer))
        return Result(self.fault, readable, named, orphans, kept, self._resume(), told + report)

    def _await_second(self) -> list[int]:
        """Pids of the ranks of the second step, once all of them are there."""
        try:
            return [int(wait(lambda n=n: self.site.ran("second", f"node{n}"))) for n in range(self.count)]
        except (AssertionError, StopIteration):
            told = [f"{member.poll()} {member.err[-300:]!r}" for member in self.members]
            raise AssertionError(f"the second step did not start: {told}") from None

    def _network(self) -> AbstractContextManager[list[netns.Host]]:
        """Namespaces where the network is what breaks."""
        if not self.fault.startswith("cut"):
            return nullcontext([])
        return _members(self.count, f"{self.chance.randrange(10)}")

    def _hit(self, started: dict[int, Member], pids: list[int]) -> None:
        go = self.site.desk / "go"
        how, _, what = self.fault.partition("-")
        numbers = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
        if what == "all":
            for member in started.values():
                member.kill(signal.SIGTERM)
        elif how in numbers:
            os.kill(pids[self.victim] if what == "rank" else started[self.victim].pid, numbers[how])
        elif how == "clock":
            os.kill(pids[self.victim], signal.SIGKILL)
        elif how == "cut":
            cut(self.hosts[self.victim], what)
        elif how == "storage":
            self.storage.break_(what, self.site.run_dir)
            go.touch()
        elif self.fault == "late-rank":
            os.kill(pids[self.victim], signal.SIGSTOP)
            go.touch()
            time.sleep(self.chance.uniform(1.0, 4.0))
            os.kill(pids[self.victim], signal.SIGCONT)
        else:
            go.touch()

    def _leave(self, started: dict[int, Member]) -> None:
        """Waits for all, the conductor first; a stopped agent is woken when the conductor is through."""
        until = time.monotonic() + LEAVE_S
        for node, member in started.items():
            member.wait_for(until - time.monotonic())
            if node == 0 and self.fault == "stop-agent":
                started[self.victim].kill(signal.SIGCONT)

    def _judge(self, conductor: Member) -> tuple[str, str]:
        """Whether the conductor left as it should, and what it said if not."""
        storage = self.fault.startswith("storage") and "run folder" not in conductor.err
        if conductor.code not in FAULTS[self.fault].codes or "Traceback" in conductor.err or storage:
            return "wrong", f"{conductor.code} {conductor.err[-300:]!r}"
        return "right", str(conductor.code)

    def _report(self) -> tuple[str, bool, dict[str, Any]]:
        report = Member(["report", str(self.site.run_dir), "--json"], self.root / "report")
        report.wait_for(LEAVE_S)
        answer = json.loads(report.out) if report.out.strip() else {}
        page = self.site.run_dir / "report.html"
        readable = bool(answer) and page.is_file() and "Traceback" not in report.err
        return "" if readable else f" report: {report.code} {report.err[-300:]!r}", readable, answer

    def _names(self, answer: dict[str, Any]) -> str:
        wanted, bad = FAULTS[self.fault], _bad(answer)
        if not all(id in wanted.ids and host == f"node{self.victim}" for id, host in bad):
            return "wrong"
        if bool(bad) == bool(wanted.ids) and answer.get("verdict") in (wanted.ends, "WARN"):
            return "right"
        return "not proven" if answer.get("verdict") == "INCONCLUSIVE" else "wrong"

    def _resume(self) -> bool:
        """True when the run goes on to its end on fresh processes, and the finished step is not run again."""
        before = sorted(p.name for p in self.site.desk.glob("first.*"))
        (self.site.desk / "go").touch()
        port, argv = _free_port(), ("--resume", str(self.site.run_dir))
        members = [self.start(n, port, *argv, faulty=False) for n in range(self.count)]
        for member in members:
            member.wait_for(LEAVE_S)
        ended = FAULTS[self.fault]
        through = members[0].code == (1 if ended.ends == "FAIL" and ended is not LOST else 0)
        return through and before == sorted(p.name for p in self.site.desk.glob("first.*"))


@contextmanager
def _members(count: int, tag: str) -> Iterator[list[netns.Host]]:
    with netns.hosts(count, tag=tag) as made:
        yield made.members


def _bad(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f["id"], f["where"]["host"]) for f in answer.get("findings", ()) if f["status"] == "FAIL"]


def _table(results: list[Result]) -> str:
    lines = [f"{'fault':<18}{'runs':>5}{'readable':>9}{'right':>6}{'not proven':>11}{'wrong':>6}{'orphans':>8}"
             f"{'lost steps':>11}{'resumed':>8}"]  # fmt: skip
    groups = {name: [r for r in results if r.fault == name] for name in FAULTS}
    for name, group in [*groups.items(), ("all", results)]:
        if group:
            named = Counter(r.named for r in group)
            lines.append(
                f"{name:<18}{len(group):>5}{sum(r.readable for r in group):>9}{named['right']:>6}"
                f"{named['not proven']:>11}{named['wrong']:>6}{sum(r.orphans for r in group):>8}"
                f"{sum(not r.kept for r in group):>11}{sum(r.resumed for r in group):>8}"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(FAULTS), help="faults to draw from")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    results = []
    for number in range(options.faults):
        fault = chance.choice(options.only or list(FAULTS))
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as root:
            try:
                last = strike(fault, chance, Path(root))
            except (AssertionError, OSError, ValueError, subprocess.CalledProcessError) as error:
                last = Result(fault, False, "wrong", 0, False, False, f"{type(error).__name__}: {error}"[:900])
        results.append(last)
        mark = "ok" if last.good else "WRONG"
        print(f"{number + 1:>4} {fault:<18} {mark:<6} {last.named:<11} {last.told}  left running {last.orphans}"
              f"{'' if last.resumed else '  not resumed'}  ({time.monotonic() - began:.0f} s)", flush=True)  # fmt: skip
    print(_table(results))
    return 0 if all(r.good for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
