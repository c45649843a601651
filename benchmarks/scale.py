"""Judge, store and report for thousands of ranks: seconds, memory and size of the page, on generated run folders.

``python -m benchmarks.scale [--ranks 256 1024 4096] [--steps 200]`` from the repository root. Each folder holds what
ranks of a data-parallel training would have written, 8 to a node, with one planted straggler; `ddaudit report` reads it
in a process of its own on one core. Prints a table; ends with 1 when a bound is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PER_NODE = 8
MAX_SECONDS, MAX_BYTES, MAX_HTML = 60.0, 2 << 30, 2 << 20
CHECKS = ["loss.finite", "batch.effective", "accumulation.consistent", "sync.frequency", "lr.ticks", "bottleneck.*"]


def generate(folder: Path, ranks: int, steps: int, straggler: int) -> None:
    """Writes the run folder."""
    from ddaudit import packs
    from ddaudit.runbook.model import Plan, PlannedStep

    registry = packs.load(entries=False, environment=False).registry
    checks = tuple(c for c in registry.checks if c in CHECKS or c.startswith("bottleneck."))
    step = PlannedStep(id="data", title="Data parallel", source="scale.md:3", runbook="scale", probe="train",
                       checks=checks, nproc=ranks)  # fmt: skip
    plan = Plan(run_id=folder.name, runbook="scale", title="Scale", steps=(step,))
    (folder / "events" / "data").mkdir(parents=True)
    (folder / "plan.json").write_text(plan.model_dump_json(by_alias=True))
    head = {"event": "run", "t": 0.0, "command": "run", "created": 0.0, "facts": {"host": "n0", "hosts": ranks // 8}}
    ended = {"event": "step", "t": 1.0, "id": "data", "state": "done", "folder": "data", "started": 0.0, "seconds": 60}
    lines = [head, ended, {"event": "end", "t": 2.0, "seconds": 60.0}]
    (folder / "events" / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcomes = [{"rank": r, "host": f"n{r // PER_NODE}", "state": "done", "exit_code": 0} for r in range(ranks)]
    facts = {"world_size": ranks, "host": "n0", "timeout_s": 120.0, "seconds": 60.0, "ranks": outcomes}
    evidence = {"event": "evidence", "t": 60.0, "kind": "launch", "facts": facts}
    (folder / "events" / "data" / "launcher.jsonl").write_text(json.dumps(evidence) + "\n")
    for rank in range(ranks):
        text = "".join(rank_lines(rank, ranks, steps, straggler))
        (folder / "events" / "data" / f"n{rank // PER_NODE}-{rank}.jsonl").write_text(text)


def rank_lines(rank: int, ranks: int, steps: int, straggler: int) -> list[str]:
    """One rank's events. The straggler computes 40 ms longer in each step of 100 ms; all others wait for it."""
    chance = random.Random(rank)
    host = f"n{rank // PER_NODE}"
    job: dict[str, object] = {"parallel": "data", "world_size": ranks, "dp": ranks, "micro_batch": 1, "accumulation": 1}
    job |= {"steps": steps, "global_batch": ranks, "seq_len": 32, "grad_syncs_per_step": 1.0}
    job |= {"dataset_samples": ranks * steps}
    place = {"rank": rank, "host": host, "pid": 100 + rank, "device": "cpu", "coords": {"dp": rank}}
    events: list[dict[str, object]] = [
        {"event": "start", "t": 0.0, "host": host, "rank": rank, "world_size": ranks, "pid": 100 + rank},
        {"event": "job", "t": 0.1, "job": job},
        {"event": "rank", "t": 0.1, "place": place},
    ]
    late = 0.04 if rank == straggler else 0.0
    for step in range(steps):
        own = 0.06 + late + chance.uniform(0, 0.001)
        wait = 0.14 - own - 0.02
        values = {
            "loss_nats": 3.4 - step / 100, "lr": 0.1, "grad_norm": 1.0, "micro_batches": 1.0, "samples": 1.0,
            "tokens": 32.0, "loss_divisor": 1.0, "grad_syncs": 1.0, "grad_sync_calls": 1.0, "scheduler_ticks": 1.0,
            "zero_grads": 1.0, "step_s": 0.14, "input_s": 0.001, "forward_s": own / 3, "backward_s": own * 2 / 3 + wait,
            "comm_wait_s": wait, "sync_s": 0.0, "optimizer_s": 0.015, "loss_s": 0.002, "host_s": 0.002, "cpu_s": own,
        }  # fmt: skip
        begin = step * 0.14
        stamps: dict[str, object] = {"begin_s": begin, "stamps": [[0, own, 0.12]], "sample_ids": [step * ranks + rank]}
        if step == 0:
            stamps["groups"] = [list(range(ranks))]
        events.append({"event": "step", "t": begin, "step": step, "values": values, **stamps})
    events.append({"event": "end", "t": steps * 0.14})
    return [json.dumps(event) + "\n" for event in events]


def measure(folder: Path) -> tuple[float, float, float, int]:
    """Seconds, CPU seconds, bytes of memory at most, and the exit code of ``ddaudit report`` on one core."""
    code = "import sys; from ddaudit.cli.main import run; run()"
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-c", code, "report", str(folder), "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    os.sched_setaffinity(child.pid, {sorted(os.sched_getaffinity(0))[0]})
    _, status, usage = os.wait4(child.pid, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    return time.monotonic() - began, cpu_s, usage.ru_maxrss * 1024.0, os.waitstatus_to_exitcode(status)


def named(folder: Path, straggler: int) -> bool:
    """Whether the record's straggler finding names the planted rank, and no other."""
    record = json.loads((folder / "record.json").read_text())
    found = [f["where"]["rank"] for f in record["findings"] if f["id"] == "perf.straggler-rank"]
    return found == [straggler]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[256, 1024, 4096])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    heads = ("ranks", "steps", "events MB", "seconds", "CPU s", "memory MB", "html kB")
    print(" ".join(f"{head:>9}" for head in heads), " straggler")
    good = True
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as root:
            folder, straggler = Path(root) / "run", ranks // 3
            generate(folder, ranks, options.steps, straggler)
            size = sum(p.stat().st_size for p in folder.rglob("*.jsonl"))
            seconds, cpu_s, memory, code = measure(folder)
            page = (folder / "report.html").stat().st_size if (folder / "report.html").exists() else 0
            right = code in (0, 1, 3) and page > 0 and named(folder, straggler)
            good = good and right and seconds < MAX_SECONDS and memory < MAX_BYTES and page < MAX_HTML
            told = "named" if right else f"NOT NAMED (exit {code})"
            numbers = (ranks, options.steps, size / 1e6, seconds, cpu_s, memory / 1e6, page / 1e3)
            print(" ".join(f"{number:>9.0f}" for number in numbers), "", told, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
