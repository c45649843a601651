"""Three hosts made of network namespaces: are a capped link, a lossy link and a slow host told apart, by name?

``python -m benchmarks.isolation [--runs 10]`` as root, with iproute2, iptables and the cpu controller of cgroup v1 or
v2 (the slow host is left out where there is neither). Each run plants one fault on a random host, or none; of the lossy
links every second one loses packets one way only. Prints what was named.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.cluster import fleet, netns

V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
QUOTA, PERIOD_US = 0.15, 100_000
BOOK = """# Who is slow?

```toml runbook
id = "who"
```

```toml step links
probe = "links"
with = { sizes = [4194304], repeats = 3 }
nproc = 3
checks = ["net.isolation"]
timeout = "300s"
```
"""
FAULTS = ("none", "capped", "lossy", "slow")
#: Finding ids, each with what it names.
Named = set[tuple[str, str | None]]


def controller() -> Path | None:
    """The folder in which groups with a CPU quota can be made: cgroup v1's, else v2's; None without either."""
    if (V1 / "cpu.cfs_quota_us").exists():
        return V1
    offered = V2 / "cgroup.controllers"
    return V2 if offered.exists() and "cpu" in offered.read_text().split() else None


@contextmanager
def quota(root: Path, name: str, share: float) -> Iterator[Path]:
    """A control group that gives its processes a share of one core."""
    quota_us = int(share * PERIOD_US)
    if root == V2 and "cpu" not in (root / "cgroup.subtree_control").read_text().split():
        (root / "cgroup.subtree_control").write_text("+cpu")
    group = root / f"ddaudit-{name}"
    group.mkdir()
    try:
        if root == V2:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            move(int(pid), root)
        group.rmdir()


def move(pid: int, group: Path) -> None:
    with suppress(ProcessLookupError):  # it may have ended
        (group / "cgroup.procs").write_text(str(pid))


def expected(fault: str, victim: int) -> Named:
    names = {"capped": "net.bad-port", "slow": "net.slow-host"}
    if fault == "lossy":
        first, second = sorted((victim, (victim + 1) % 3))
        return {("net.bad-link", f"host{first + 1}-host{second + 1}")}
    return {(names[fault], f"host {f'host{victim + 1}'}")} if fault in names else set()


def once(fault: str, number: int, chance: random.Random, root: Path) -> tuple[Named, Named]:
    """Runs the probe with the fault; returns what should be named and what was."""
    victim = chance.randrange(3)
    (root / "who.md").write_text(BOOK)
    with netns.hosts(3) as hosts, ExitStack() as kept:
        if fault == "capped":
            hosts[victim].cap(100)
        elif fault == "lossy":
            other = hosts[(victim + 1) % 3]
            hosts[victim].lose(chance.uniform(0.05, 0.1), source=other.address)
            if number % 2:
                other.lose(chance.uniform(0.05, 0.1), source=hosts[victim].address)
        group = (
            kept.enter_context(quota(cpus, root.name, QUOTA)) if fault == "slow" and (cpus := controller()) else None
        )
        started = fleet.start(hosts.members, root / "out", str(root / "who.md"))
        if group is not None:
            slow_down(started, hosts[victim], group)
        _, answer, errors = started.finish(600)
    if not answer:
        sys.exit("\n".join(errors))
    wanted, found = expected(fault, victim), named(answer)
    if wanted != found:
        print(*(f"  {f['status']} {f['id']}: {f['text']}" for f in answer["findings"]), sep="\n")
    return wanted, found


def slow_down(started: fleet.Started, host: netns.Host, group: Path) -> None:
    """Puts everything on the host under the quota once its server has mapped torch's libraries, which the quota would
    only draw out, and before its rank works; takes it out again when the rank has ended, so that judging is quick."""
    while started.processes[0].poll() is None and len(servers := forks(host)) < 2:
        if servers and "libtorch_python" in Path(f"/proc/{servers[0]}/maps").read_text():
            break
        time.sleep(0.1)
    ranks = False
    while started.processes[0].poll() is None and not (ranks and len(forks(host)) < 2):
        for pid in host.pids():  # again and again: one may have been forked while its parent was moved
            move(pid, group)
        ranks = ranks or len(forks(host)) > 1
        time.sleep(0.05)
    for pid in host.pids():
        move(pid, group.parent)


def forks(host: netns.Host) -> list[int]:
    """The host's server of ranks, and its ranks, which are forks of it."""
    found = []
    for pid in host.pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"ddaudit.launch.server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def named(answer: dict[str, Any]) -> Named:
    return {(f["id"], f["where"]["key"]) for f in answer["findings"] if f["status"] == "FAIL"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--faults", nargs="*", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if (why := netns.missing()) is not None:
        sys.exit(why)
    chance = random.Random(options.seed)
    right: Counter[str] = Counter()
    wrong = 0
    faults = [fault for fault in options.faults if fault != "slow" or controller() is not None]
    if faults != options.faults:
        print("slow: left out, no cpu controller of cgroup v1 or v2 here")
    for fault in faults:
        for number in range(options.runs):
            with tempfile.TemporaryDirectory() as root:
                wanted, found = once(fault, number, chance, Path(root))
            right[fault] += wanted == found
            wrong += bool(found - wanted)
            print(fault, "ok" if wanted == found else f"wanted {json.dumps(sorted(map(str, wanted)))}, "
                  f"named {json.dumps(sorted(map(str, found)))}", flush=True)  # fmt: skip
    for fault in faults:
        print(f"{fault:<8} {right[fault]} of {options.runs}")
    print(f"runs with a wrong accusation: {wrong}")
    return 0 if wrong == 0 and all(right[f] >= 0.9 * options.runs for f in faults) else 1


if __name__ == "__main__":
    sys.exit(main())
