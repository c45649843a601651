"""Three hosts made of network namespaces: are a capped link, a lossy link and a slow host told apart, by name?

``python -m benchmarks.isolation [--runs 10]`` as root, with iproute2, iptables and cgroup v1's cpu controller (the slow
host is left out where there is none). Each run plants one fault on a random host, or none. Prints what was named.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import fleet, netns

CGROUP = Path("/sys/fs/cgroup/cpu")
BOOK = """# Who is slow?

```toml runbook
id = "who"
```

```toml step links
probe = "links"
with = { sizes = [4194304], repeats = 3 }
nproc = 3
checks = ["net.isolation"]
timeout = "180s"
```
"""
FAULTS = ("none", "capped", "lossy", "slow")
#: Finding ids, each with what it names.
Named = set[tuple[str, str | None]]


@contextmanager
def quota(name: str, share: float) -> Iterator[Path | None]:
    """A cgroup v1 that gives its processes a share of one core; None where there is no such controller."""
    group = CGROUP / f"ddaudit-{name}"
    if not (CGROUP / "cpu.cfs_quota_us").exists():
        yield None
        return
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text(str(int(share * 100_000)))
        yield group
    finally:
        for pid in (group / "tasks").read_text().split():
            (CGROUP / "tasks").write_text(pid)
        group.rmdir()


def expected(fault: str, victim: int) -> Named:
    names = {"capped": "net.bad-port", "slow": "net.slow-host"}
    if fault == "lossy":
        first, second = sorted((victim, (victim + 1) % 3))
        return {("net.bad-link", f"host{first + 1}-host{second + 1}")}
    return {(names[fault], f"host {f'host{victim + 1}'}")} if fault in names else set()


def once(
    fault: str, chance: random.Random, root: Path
) -> tuple[set[tuple[str, str | None]], set[tuple[str, str | None]]]:
    """Runs the probe with the fault; returns what should be named and what was."""
    victim = chance.randrange(3)
    (root / "who.md").write_text(BOOK)
    with netns.hosts(3) as hosts, quota(f"{root.name}", 0.15) as group:
        if fault == "capped":
            hosts[victim].cap(100)
        elif fault == "lossy":
            other = hosts[(victim + 1) % 3]
            hosts[victim].lose(0.1, source=other.address)
            other.lose(0.1, source=hosts[victim].address)
        started = fleet.start(hosts.members, root / "out", str(root / "who.md"))
        if fault == "slow" and group is not None:
            slow_down(started, hosts[victim], group)
        _, answer, errors = started.finish(600)
    if not answer:
        sys.exit("\n".join(errors))
    return expected(fault, victim), named(answer)


def slow_down(started: fleet.Started, host: netns.Host, group: Path) -> None:
    """Puts everything on the host under the quota, once its server has imported torch."""
    import time

    while started.processes[0].poll() is None:
        pids = [p for p in host.pids() if b"ddaudit.launch.server" in Path(f"/proc/{p}/cmdline").read_bytes()]
        if pids:
            break
        time.sleep(0.05)
    for pid in host.pids():
        (group / "tasks").write_text(str(pid))


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
    for fault in options.faults:
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory() as root:
                wanted, found = once(fault, chance, Path(root))
            right[fault] += wanted == found
            wrong += bool(found - wanted)
            print(fault, "ok" if wanted == found else f"wanted {json.dumps(sorted(map(str, wanted)))}, "
                  f"named {json.dumps(sorted(map(str, found)))}", flush=True)  # fmt: skip
    for fault in options.faults:
        print(f"{fault:<8} {right[fault]} of {options.runs}")
    print(f"runs with a wrong accusation: {wrong}")
    return 0 if wrong == 0 and all(right[f] >= 0.9 * options.runs for f in options.faults) else 1


if __name__ == "__main__":
    sys.exit(main())
