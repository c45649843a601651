"""What a run of ``benchmarks/chaos.py`` runs, and what its folder tells while it goes on.

The first step does one thing on every host. The second waits on every host for a file called ``go``: alone, or as
ranks that meet over torch's store and agree by all-reduce whether the file is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Site"]

PROBES = '''
import os, time
from pathlib import Path
from pydantic import BaseModel
from ddaudit.api import Measures, probe

class Params(BaseModel):
    desk: str
    wait_for: str = ""

def note(context, params):
    context.measure("here", 1.0)
    Path(params.desk, f"{context.step}.{context.host}.{os.getpid()}").touch()

@probe("roll", produces=[Measures], params=Params, where="hosts")
def roll(context, params):
    """Notes that it ran here; waits for a file where told."""
    note(context, params)
    while params.wait_for and not Path(params.desk, params.wait_for).exists():
        time.sleep(0.02)

@probe("beat", produces=[Measures], params=Params, where="ranks")
def beat(context, params):
    """Notes that it ran here; all ranks agree on whether the file is there."""
    import torch
    note(context, params)
    seen = torch.zeros(1)
    while not seen.item():
        time.sleep(0.02)
        seen = torch.tensor([float(Path(params.desk, params.wait_for).exists())])
        torch.distributed.all_reduce(seen, torch.distributed.ReduceOp.MIN)
'''
BOOK = """# Roll call

```toml runbook
id = "roll"
params.desk = { type = "str" }
params.ranks = { type = "int", default = 2, min = 1 }
```

```toml step first
probe = "roll"
with.desk = "$desk"
checks = ["measures.within-limits"]
limits.here = { fail_above = 5 }
timeout = "30s"
```

```toml step second
probe = "PROBE"
with = { desk = "$desk", wait_for = "go" }
checks = ["measures.within-limits"]
limits.here = { fail_above = 5 }
timeout = "20s"
```
"""


class Site:
    """A pack, a runbook, and a desk where probes note that they ran."""

    def __init__(self, root: Path, *, meeting: bool) -> None:
        self.desk, self.out, self.pack, self.book = root / "desk", root / "out", root / "pack", root / "roll.md"
        (self.pack / "probes").mkdir(parents=True)
        (self.pack / "probes" / "roll.py").write_text(PROBES)
        page = BOOK.replace("PROBE", "beat" if meeting else "roll")
        self.book.write_text(page.replace('timeout = "20s"', 'timeout = "20s"\nnproc = "$ranks"') if meeting else page)
        self.desk.mkdir()

    @property
    def run_dir(self) -> Path | None:
        """The run folder, once its journal has a head."""
        heads = self.out.glob("*/events/run.jsonl")
        return next((p.parents[1] for p in heads if b'"event": "run"' in p.read_bytes()), None)

    def ran(self, step: str) -> list[str]:
        """Which processes noted that they ran this step, as ``step.host.pid``."""
        return sorted(p.name for p in self.desk.glob(f"{step}.*"))

    def hosts_in(self, step: str) -> set[str]:
        return {name.split(".")[1] for name in self.ran(step)}

    def pid(self, host: str) -> int | None:
        """Process of the host's newest rank, by what it told the run folder or left on the desk."""
        found = None
        for step in ("first", "second"):  # by step, not by number: pids begin again
            for path in self.out.glob(f"*/events/{step}/{host}.node.jsonl"):
                for line in path.read_text().splitlines():
                    found = int(json.loads(line)[1]["pid"]) if '"event": "start"' in line else found
            for name in self.ran(step):
                found = int(name.split(".")[2]) if name.split(".")[1] == host else found
        return found

    def journal(self) -> list[dict[str, Any]]:
        events = []
        for path in self.out.glob("*/events/run.jsonl"):
            for line in path.read_text(errors="replace").splitlines():
                try:
                    events.append(json.loads(line))
                except ValueError:
                    continue  # it is being written
        return events

    def done(self) -> set[str]:
        """Steps whose last word in the journal is that they are done."""
        last = {e["id"]: e["state"] for e in self.journal() if e["event"] == "step"}
        return {id for id, state in last.items() if state == "done"}

    def has_come(self, moment: str, count: int) -> bool:
        """True once what this moment follows on has happened in a run of ``count`` hosts."""
        looks: dict[str, Callable[[], bool]] = {
            "join": lambda: True,
            "first": lambda: any(self.out.glob("*/events/first/*.node.jsonl")),
            "between": lambda: any(e["event"] == "step" for e in self.journal()),
            "start": lambda: any(self.out.glob("*/events/second/*.node.jsonl")),
            "probe": lambda: len(self.hosts_in("second")) == count,
            "judge": lambda: (self.desk / "go").exists(),
            "report": lambda: any(e["event"] == "end" for e in self.journal()),
            "shutdown": lambda: any(self.out.glob("*/report.html")),
        }
        return looks[moment]()
