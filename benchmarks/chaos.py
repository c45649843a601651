"""Random faults on runs over several hosts: is every report readable, the right one named, and nothing left running?

``python -m benchmarks.chaos [--faults 100] [--seed 1]``. Hosts are processes of this machine with names of their own;
each run has a step that has finished before the fault and one that is hit at a random moment. Prints a line per fault;
ends with 1 when one was named wrongly, a report could not be read, a process stayed, or a finished step was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.test_fleet import Site, alive, wait
from tests.conftest import ddaudit

#: Fault -> ids of findings that name it rightly; none: the run's own end is the answer.
FAULTS: dict[str, tuple[str, ...]] = {
    "kill-rank": ("launch.rank-lost",),
    "stop-rank": ("launch.rank-hung",),
    "kill-agent": ("launch.host-lost",),
    "stop-agent": ("launch.host-lost",),
    "kill-conductor": (),
    "term-agent": (),
    "term-conductor": (),
    "late-agent": (),
}


@dataclass
class Result:
    fault: str
    readable: bool
    named: bool
    orphans: int
    kept: bool
    told: str

    @property
    def good(self) -> bool:
        return self.readable and self.named and self.orphans == 0 and self.kept


def strike(fault: str, chance: random.Random, root: Path) -> Result:
    """One run of two or three hosts with one fault."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = Site(root, port)
    count, victim = chance.choice((2, 3)), 0
    if "conductor" not in fault:
        victim = chance.randrange(1, count)
    try:
        return _one(site, fault, count, victim, chance)
    finally:
        site.end()


def _one(site: Site, fault: str, count: int, victim: int, chance: random.Random) -> Result:
    book = [str(site.book), "-P", f"desk={site.desk}", "--node-timeout", "2s"]
    late = victim if fault == "late-agent" else None
    started = {node: site.start(node, count, *book) for node in range(count) if node != late}
    if late is not None:
        time.sleep(chance.uniform(0.0, 3.0))
        started[late] = site.start(late, count, *book)
    pids = [int(wait(lambda node=node: site.ran("second", f"node{node}"))) for node in range(count)]
    time.sleep(chance.uniform(0.0, 0.5))
    _hit(fault, started[victim].pid, pids[victim])
    if fault == "late-agent":
        (site.desk / "go").touch()
    for node, process in started.items():
        if not (fault == "stop-agent" and node == victim):
            process.communicate(timeout=120)
    if fault == "stop-agent":
        started[victim].send_signal(signal.SIGCONT)
        started[victim].communicate(timeout=60)
    with suppress(AssertionError):
        wait(lambda: not any(alive(pid) for pid in pids), 20.0)
    report = ddaudit("report", str(site.run_dir), "--json")
    answer = json.loads(report.stdout) if report.stdout.strip() else {}
    return _judge(fault, victim, answer, sum(alive(pid) for pid in pids))


def _hit(fault: str, process: int, rank: int) -> None:
    numbers = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
    how, _, what = fault.partition("-")
    if how in numbers:
        os.kill(rank if what == "rank" else process, numbers[how])


def _judge(fault: str, victim: int, answer: dict[str, Any], orphans: int) -> Result:
    steps = {s["id"]: s["state"] for s in answer.get("steps", ())}
    bad = [(f["id"], f["where"]["host"]) for f in answer.get("findings", ()) if f["status"] == "FAIL"]
    wanted = FAULTS[fault]
    if wanted:
        named = bool(bad) and all(id in wanted and host == f"node{victim}" for id, host in bad)
    elif fault == "late-agent":
        named = answer.get("verdict") in ("PASS", "WARN") and not bad
    else:
        named = answer.get("verdict") == "INTERRUPTED" and not bad
    told = "; ".join(f"{id} {host}" for id, host in bad) or str(answer.get("verdict"))
    return Result(fault, bool(answer), named, orphans, steps.get("first") == "done", told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    results = []
    for number in range(options.faults):
        fault = chance.choice(list(FAULTS))
        with tempfile.TemporaryDirectory() as root:
            results.append(strike(fault, chance, Path(root)))
        last = results[-1]
        mark = "ok" if last.good else "WRONG"
        print(f"{number + 1:>4} {fault:<15} {mark:<6} {last.told}  left running {last.orphans}", flush=True)
    readable, named = sum(r.readable for r in results), sum(r.named for r in results)
    print(f"readable {readable}, named rightly {named}, finished steps kept {sum(r.kept for r in results)}, of "
          f"{len(results)}; left running {sum(r.orphans for r in results)}")  # fmt: skip
    return 0 if all(r.good for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
