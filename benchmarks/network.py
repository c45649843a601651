"""Two hosts made of network namespaces: is what a link does measured as it was made, and named?

``python -m benchmarks.network [--runs 3]`` as root, with iproute2. In turn: 100 Mbit/s by tbf (bandwidth from the slope
between large messages), 20 ms by a TUN relay (latency as half a ping-pong's round trip), then data-parallel training
over the capped link (the verdict must be communication). Prints each number beside what was made.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddaudit.evidence import LinkTrials
from ddaudit.evidence.store import load_events
from tests.cluster import fleet, netns

MBIT, DELAY_S, ALLOWED = 100, 0.020, 0.15

LINKS = """# Links

```toml runbook
id = "links"
```

```toml step links
probe = "links"
with = { sizes = [1048576, 4194304], repeats = 5, expected_gbps = 10.0 }
nproc = 2
checks = ["net.paths"]
timeout = "120s"
```
"""
TRAIN = """# Train

```toml runbook
id = "train"
```

```toml step train
probe = "train"
with = { parallel = "data", preset = "small", steps = 4, global_batch = 2, seq_len = 8, windows = ["no-sync"] }
nproc = 2
checks = ["bottleneck.verdict"]
timeout = "300s"
```
"""


def run(members: Sequence[netns.Host], page: str, root: Path, name: str) -> tuple[dict[str, Any], Path]:
    book = root / f"{name}.md"
    book.write_text(page)
    started = fleet.start(members, root / name, str(book))
    _, answer, errors = started.finish(600)
    if not answer:
        sys.exit("\n".join(errors))
    return answer, started.run_dir


def trials(run_dir: Path) -> LinkTrials:
    found = load_events(run_dir, "links", [LinkTrials])["links"]
    assert isinstance(found, LinkTrials)
    return found


def told(what: str, measured: float, made: float, unit: str) -> bool:
    good = abs(measured / made - 1) <= ALLOWED
    print(f"{what:<34} {measured:>9.4g} {unit:<7} made {made:>7.4g}  off {measured / made - 1:+.1%}"
          f"  {'ok' if good else 'WRONG'}", flush=True)  # fmt: skip
    return good


def once(root: Path) -> bool:
    good = True
    with netns.hosts(2) as hosts:
        for host in hosts.members:
            host.cap(MBIT)
        answer, run_dir = run(hosts.members, LINKS, root, "capped")
        for meeting in trials(run_dir).meetings:
            good &= told(f"host {meeting.source + 1} sends", 1000 * (meeting.gbps or 0), MBIT, "Mbit/s")
        named = [f for f in answer["findings"] if f["id"] == "net.below-nominal"]
        good &= bool(named) and "eth0" in named[0]["where"]["key"]
        print("verdict:", named[0]["text"] if named else "MISSING")
        answer, _ = run(hosts.members, TRAIN, root, "train")
        bound = [f["text"] for f in answer["findings"] if f["id"] == "perf.communication-bound"]
        good &= bool(bound) and "host1 eth0" in bound[0]
        print("training:", bound[0] if bound else f"NOT NAMED: {answer['findings']}")
        for host in hosts.members:
            host.heal()
        with netns.relay(hosts.members, DELAY_S * 1000) as (slow, held_s):
            _, run_dir = run(slow, LINKS, root, "slow")
            for meeting in trials(run_dir).meetings:
                good &= told(f"host {meeting.source + 1} half round trip", meeting.latency_s, held_s(), "s")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if (why := netns.missing()) is not None:
        sys.exit(why)
    good = 0
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as root:
            good += once(Path(root))
    print(f"{good} of {options.runs} runs right")
    return 0 if good == options.runs else 1


if __name__ == "__main__":
    sys.exit(main())
