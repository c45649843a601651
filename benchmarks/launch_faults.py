"""How well ranks that die or hang are named, and whether anything outlives ddaudit. Prints a table and the numbers.

``python -m benchmarks.launch_faults [--moments 5] [--kills 10] [--ranks 2 4]`` from the repository root. For every
number of ranks: SIGKILL and SIGSTOP from outside at a random time after the rank's start (its start-up included), and
an exception, an abort, a hang outside and a hang inside a collective at a random step of a random rank. Then SIGKILL
of the driver at random times: in turn from its start on, and once ranks and DataLoader workers are at work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.launch import drive

OUTSIDE = ("kill", "stop")
INSIDE = ("raise", "abort", "hang-lock", "hang-collective")
HANGING = ("stop", "hang-lock", "hang-collective")


def cases(chance: random.Random, moments: int, ranks: int, timeout_s: float) -> Iterator[dict[str, Any]]:
    loop = {"ranks": ranks, "steps": 60, "pause_s": 0.02}
    for fault in (*OUTSIDE, *INSIDE):
        for _ in range(moments):
            timeout = timeout_s if fault in HANGING else 60.0
            if fault in OUTSIDE:
                yield {**loop, "fault": fault, "after_s": round(chance.uniform(0.0, 1.2), 3), "timeout_s": timeout}
            else:
                at, victim = chance.randrange(60), chance.randrange(ranks)
                yield {**loop, "fault": fault, "rank": victim, "at_step": at, "timeout_s": timeout}


def named_rightly(result: dict[str, Any]) -> bool:
    """One FAIL that names the victim, with the right id, and stacks of every rank that could still answer."""
    case, facts = result["case"], result["facts"]
    victim = case.get("rank", case["ranks"] - 1)
    id = "launch.rank-hung" if case["fault"] in HANGING else "launch.rank-lost"
    found = [(f["status"], f["id"], f["where"]["rank"]) for f in result["findings"]]
    answering = [r for r in facts["ranks"] if r["state"] in ("sleeping", "on-cpu")]
    return found == [("FAIL", id, victim)] and all(r["stack"] for r in answering)


def run_faults(chance: random.Random, moments: int, ranks: int, timeout_s: float) -> tuple[int, int]:
    """Runs one driver through all cases; prints a line per fault; returns (named rightly, cases)."""
    with tempfile.TemporaryDirectory() as folder:
        todo = list(cases(chance, moments, ranks, timeout_s))
        with drive.driver(Path(folder), todo, chance.randrange(1 << 30)) as process:
            output, _ = process.communicate()
            left = drive.session_members(process.pid)
    by_fault: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in map(json.loads, output.splitlines()):
        by_fault[result["case"]["fault"]].append(result)
    right = 0
    for fault, results in by_fault.items():
        good = sum(named_rightly(r) for r in results)
        right += good
        seconds = statistics.median(r["facts"]["seconds"] for r in results)
        print(f"{ranks} ranks  {fault:<16} named rightly {good}/{len(results)}  median {seconds:.2f} s")
        for result in (r for r in results if not named_rightly(r)):
            print("    ", result["case"], [f["text"] for f in result["findings"]])
    print(f"{ranks} ranks  processes left: {len(left)}  driver exit {process.returncode}")
    return right, len(todo)


def run_kills(chance: random.Random, count: int) -> int:
    """SIGKILLs the driver at random moments; returns how often nothing was left after 5 s."""
    clean = 0
    for number in range(count):
        busy = {"fault": "none", "ranks": 2, "steps": 100_000, "pause_s": 0.01, "loader_workers": 1, "timeout_s": 60}
        at_work = number % 2 == 1
        after_s = chance.uniform(0.0, 1.0 if at_work else 4.0)
        with tempfile.TemporaryDirectory() as folder, drive.driver(Path(folder), [busy]) as process:
            while at_work and len(drive.session_members(process.pid)) < 6:
                time.sleep(0.01)  # driver, server, two ranks, two loader workers
            time.sleep(after_s)
            alive = len(drive.session_members(process.pid))
            os.kill(process.pid, signal.SIGKILL)
            gone = drive.seconds_until_gone(process.pid, 5.0)
            clean += gone is not None
            told = f"gone after {gone:.2f} s" if gone is not None else "LEFT BEHIND"
            since = "all were at work" if at_work else "its start"
            print(f"kill {number + 1}: {after_s:.2f} s after {since}, with {alive} processes: {told}")
    return clean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--timeout-s", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    chance = random.Random(options.seed)
    print(f"seed {options.seed}")
    for ranks in options.ranks:
        right, of = run_faults(chance, options.moments, ranks, options.timeout_s)
        print(f"{ranks} ranks  total {right}/{of}")
    print(f"nothing left after SIGKILL of the driver: {run_kills(chance, options.kills)}/{options.kills}")


if __name__ == "__main__":
    main()
