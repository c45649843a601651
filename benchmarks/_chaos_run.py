"""One run of ``benchmarks/chaos.py``: hosts, one or two faults, the report behind them, and the run that goes on."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._chaos_faults import Strike
from benchmarks._chaos_site import Site
from benchmarks._chaos_storage import Storage
from benchmarks._chaos_tools import SILENCE_S, Member, Place, cut
from tests.cluster import netns

__all__ = ["Result", "Run"]

#: How long the processes of a run may take to leave after the fault; TCP gives up a dead peer after 15 s, a step ends
#: after 20 s, and a host that never came is waited for 15 s.
LEAVE_S = 75.0
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM, "int": signal.SIGINT,
           "hup": signal.SIGHUP}  # fmt: skip


@dataclass
class Result:
    """How a run ended. ``named``: ``right``, ``not proven`` or ``wrong``; ``wrong`` says what else was."""

    strikes: list[Strike]
    named: str = "wrong"
    readable: bool = False
    orphans: int = 0
    kept: bool = False
    resumed: bool = False
    folders: int = 0
    left_s: float = 0.0
    """Until the last process of the run had left, behind the last fault."""
    told: str = ""
    wrong: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.readable and self.named != "wrong" and self.kept and self.resumed and self.clean

    @property
    def clean(self) -> bool:
        return self.orphans == 0 and self.folders == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Run:
    def __init__(self, root: Path, count: int, strikes: Sequence[Strike], chance: random.Random) -> None:
        self.root, self.count, self.strikes, self.chance = root, count, list(strikes), chance
        self.meeting = chance.random() < 0.5
        self.site = Site(root, meeting=self.meeting)
        self.storage = Storage(self.site.out)
        self.faults = {s.fault for s in strikes}
        self.members: list[Member] = []
        self.hosts: list[netns.Host] = []

    def start(self, node: int, port: int, *words: str, faulty: bool = True) -> Member:
        skewed = next((s for s in self.strikes if s.fault == "clock-skew" and s.victim == node and faulty), None)
        ahead_s = 60 * self.chance.choice((-1, 1)) * self.chance.uniform(2, 30) if skewed else 0.0
        host = self.hosts[node] if faulty and self.hosts else None
        hangs = self.storage if faulty and node == 0 and "storage-hangs" in self.faults else None
        place = Place(f"node{node}", host.namespace if host else None, ahead_s, self.root / f"tmp{node}", hangs)
        flags = ["--nnodes", str(self.count), "--node-rank", str(node), "--device", "cpu", "--json", "--no-progress"]
        flags += ["--rdzv-endpoint", f"{self.hosts[0].address if host else '127.0.0.1'}:{port}"]
        flags += ["--pack", str(self.site.pack), "--node-timeout", "2s", "--join-timeout", "15s"]
        member = Member(["run", *words, *flags], self.root / f"told{len(self.members)}", place)
        self.members.append(member)
        return member

    def end(self) -> None:
        for member in self.members:
            member.end()

    def go(self) -> Result:
        with ExitStack() as stack:
            self.hosts = stack.enter_context(self._network())
            if self.faults & {"storage-full", "storage-read-only"}:
                stack.enter_context(self.storage.mounted())
            stack.callback(self.storage.heal)
            stack.callback(self.end)
            return self._go()

    def _go(self) -> Result:
        result = Result(self.strikes)
        port, book = free_port(), (str(self.site.book), "-P", f"desk={self.site.desk}", "--out", str(self.site.out))
        late = [s for s in self.strikes if s.fault == "late-agent"]
        started = {n: self.start(n, port, *book) for n in range(self.count) if n not in [s.victim for s in late]}
        for strike in late:
            time.sleep(self.chance.uniform(0.0, 3.0))
            started[strike.victim] = self.start(strike.victim, port, *book)
            strike.hit = True
        self._strike_all(started)
        struck = time.monotonic()
        self._leave(started)
        result.left_s = time.monotonic() - struck
        result.orphans = sum(len(member.left()) for member in started.values())
        self.storage.heal()
        unsent = self._unsent()
        answer = self._report(result)
        result.kept = self.site.done() <= _states(answer, "done") and unsent <= self._received()
        self._name(result, started, answer)
        result.resumed = self._resume(result, answer)
        left = [p for p in self.root.glob("tmp*/ddaudit-*") if p.is_dir()]
        result.folders = len(left)
        result.wrong += [f"{p} {[str(f.relative_to(p)) for f in p.rglob('*') if f.is_file()][:9]}" for p in left]
        return result

    def _network(self) -> AbstractContextManager[list[netns.Host]]:
        """Namespaces where the network is what breaks."""
        cuts = any(s.fault.startswith("cut") for s in self.strikes)
        return _members(self.count) if cuts else nullcontext([])

    def _strike_all(self, started: dict[int, Member]) -> None:
        """Each fault at its moment, if that comes; the second step is told to end when nothing else ends it."""
        due = [s for s in self.strikes if not s.hit]
        until = time.monotonic() + LEAVE_S
        while time.monotonic() < until and started[0].poll() is None and (due or not (self.site.desk / "go").exists()):
            if due and self.site.has_come(due[0].moment, self.count):
                time.sleep(due[0].after_s)
                self._hit(due.pop(0), started)
            elif self._waits_for_go(due):
                (self.site.desk / "go").touch()
            time.sleep(0.002)

    def _waits_for_go(self, due: list[Strike]) -> bool:
        """True when the second step runs everywhere, and no fault is due in it, nor in it to end it."""
        in_probe = [s for s in self.strikes if s.moment == "probe"]
        if any(s in due or not s.kind.holds for s in in_probe):
            return False
        return any(s.kind.holds for s in in_probe) or self.site.has_come("probe", self.count)

    def _hit(self, strike: Strike, started: dict[int, Member]) -> None:
        how, _, what = strike.fault.partition("-")
        strike.hit = True
        if what == "all":
            for member in started.values():
                member.kill(signal.SIGTERM)
        elif what == "twice":
            started[0].kill(signal.SIGINT)
            time.sleep(self.chance.uniform(0.02, 0.5))
            started[0].kill(signal.SIGINT)
        elif how == "cut":
            cut(self.hosts[strike.victim], what)
        elif how == "storage":
            self.storage.break_(what)
        elif what in ("agent", "conductor"):
            started[strike.victim].kill(SIGNALS[how])
        else:
            self._hit_rank(strike)

    def _hit_rank(self, strike: Strike) -> None:
        pid = self.site.pid(f"node{strike.victim}")
        strike.hit = pid is not None
        if pid is None:
            return
        with suppress(ProcessLookupError):
            if strike.fault != "late-rank":
                os.kill(pid, signal.SIGSTOP if strike.fault == "stop-rank" else signal.SIGKILL)
                return
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.chance.uniform(1.0, 4.0))
            os.kill(pid, signal.SIGCONT)

    def _leave(self, started: dict[int, Member]) -> None:
        """Waits for all. What was stopped is woken when the others are through: an agent when the conductor is."""
        until = time.monotonic() + LEAVE_S
        order = list(started)
        if "stop-conductor" in self.faults:
            time.sleep(SILENCE_S)
            order = [*order[1:], 0]
        for node in order:
            if node == order[-1] or "stop-agent" not in self.faults:
                started[0].kill_if_there(signal.SIGCONT)
            started[node].wait_for(until - time.monotonic())
            if node == order[0]:
                for member in started.values():
                    member.kill_if_there(signal.SIGCONT)

    def _name(self, result: Result, started: dict[int, Member], answer: dict[str, Any]) -> None:
        """Whether all left as they should, and the report blames whom it should."""
        code, verdict = started[0].code, str(answer.get("verdict", "nothing began"))
        hit = [s for s in self.strikes if s.hit]
        allowed = {0, 1, 3, *(c for s in hit for c in s.kind.codes)}
        if code not in allowed:
            result.wrong.append(f"the conductor left with {code}: {started[0].err[-300:]!r}")
        for node, member in started.items():
            if "Traceback" in member.err or member.code is None:
                result.wrong.append(f"node {node} left with {member.code}: {member.err[-600:]!r}")
        blamed = [(id, host) for id, host, _ in _bad(answer, "FAIL")]
        known = {(id, f"node{s.victim}") for s in hit for id in s.kind.ids}
        result.wrong += [f"{id} {host} is no fault of this run" for id, host in blamed if (id, host) not in known]
        result.named = self._verdict(verdict, hit, bool(blamed), answer)
        if result.named == "wrong":
            result.wrong.append(f"verdict {verdict}")
        result.told = f"{verdict} {code} " + "; ".join(f"{id} {host}" for id, host in blamed)
        if result.named != "right":
            texts = [text for _, _, text in _bad(answer, "ERROR")] + [member.err[-300:] for member in started.values()]
            result.told += " ".join(f"[{text[:300]}]" for text in texts if text)
        result.named = "wrong" if result.wrong else result.named

    def _verdict(self, verdict: str, hit: list[Strike], blamed: bool, answer: dict[str, Any]) -> str:
        if len(self.strikes) == 1 and self.strikes[0].moment == "probe":
            if verdict == hit[0].kind.ends:
                return "right"
            return "not proven" if verdict == "INCONCLUSIVE" else "wrong"
        if verdict in ("PASS", "WARN"):
            return "right" if _states(answer, "done") == {"first", "second"} else "wrong"
        if verdict in ("INTERRUPTED", "nothing began"):
            return "right" if any(s.kind.interrupts for s in hit) else "wrong"
        if verdict == "FAIL":
            return "right" if blamed else "wrong"
        texts = " ".join(text for _, _, text in _bad(answer, "ERROR"))
        named = any(re.search(rf"\bnode ?{s.victim}\b", texts) or s.kind.interrupts for s in hit)
        return "right" if named else "not proven" if verdict == "INCONCLUSIVE" else "wrong"

    def _report(self, result: Result) -> dict[str, Any]:
        """``ddaudit report`` of the folder, as JSON. A run that never began has one clear line instead."""
        run_dir = self.site.run_dir
        argv = ["report", str(run_dir or next(self.site.out.glob("*"), self.site.out)), "--json"]
        report = Member(argv, self.root / "report", Place("node0", tmp=self.root / "tmp0"))
        report.wait_for(LEAVE_S)
        answer: dict[str, Any] = json.loads(report.out) if report.out.strip() else {}
        pages = run_dir is not None and (run_dir / "report.html").is_file()
        lines = [line for line in report.err.splitlines() if line]
        clear = run_dir is None and report.code in (2, 3) and len(lines) == 1
        result.readable = "Traceback" not in report.err and (clear or (bool(answer) and pages))
        if not result.readable:
            result.wrong.append(f"report {report.code}: {report.err[-300:]!r}")
        return answer if run_dir is not None else {}

    def _unsent(self) -> set[bytes]:
        """Whole event lines of the conductor's own ranks that are in its temporary folder."""
        return {line for path in self.root.glob("tmp0/ddaudit-node-*/events/*/*.jsonl")
                for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")}  # fmt: skip

    def _received(self) -> set[bytes]:
        lines = (line for path in self.site.out.glob("*/events/*/node0.node.jsonl")
                 for line in path.read_bytes().splitlines())  # fmt: skip
        return {line.partition(b", ")[2][:-1] + b"\n" for line in lines}

    def _resume(self, result: Result, answer: dict[str, Any]) -> bool:
        """True when the run goes on to its end on fresh processes, and no finished step is run again."""
        (self.site.desk / "go").touch()
        run_dir, done = self.site.run_dir, _states(answer, "done")
        before = {step: self.site.ran(step) for step in done}
        again = ("--resume", str(run_dir)) if run_dir else (str(self.site.book), "-P", f"desk={self.site.desk}",
                                                            "--out", str(self.root / "anew"))  # fmt: skip
        port = free_port()
        members = [self.start(n, port, *again, faulty=False) for n in range(self.count)]
        for member in members:
            member.wait_for(LEAVE_S)
        # A rank that was lost stays in the report of its step, which ran; a step that lost a host runs again.
        stands = any(id != "launch.host-lost" for id, _, _ in _bad(answer, "FAIL"))
        code, text = members[0].code, members[0].out
        ended = _states(json.loads(text), "done", "failed", "timed-out") if text.strip() else set()
        if code != int(stands) or ended != {"first", "second"}:
            texts = [text[:200] for _, _, text in _bad(json.loads(text or "{}"), "ERROR")]
            result.wrong.append(f"resumed: {code} {sorted(ended)} {texts} {members[0].err[-300:]!r}")
            return False
        repeated = [step for step, ran in before.items() if self.site.ran(step) != ran]
        result.wrong += [f"step {step} ran again" for step in repeated]
        return not repeated and not any(member.left() for member in members)


def _states(answer: dict[str, Any], *states: str) -> set[str]:
    return {s["id"] for s in answer.get("steps", ()) if s["state"] in states}


def _bad(answer: dict[str, Any], status: str) -> list[tuple[str, str, str]]:
    return [(f["id"], f["where"]["host"], f["text"]) for f in answer.get("findings", ()) if f["status"] == status]


@contextmanager
def _members(count: int) -> Iterator[list[netns.Host]]:
    with netns.hosts(count) as made:
        yield made.members
