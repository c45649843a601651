"""Hangs four gloo ranks in six ways and asks ``ddaudit triage --live`` and the runbook ``hang`` who is guilty.

    python benchmarks/live_hangs.py [stopped loader lock other-collective rank-0-branch oom-killed]

Each must be named within 20 s of the question. ``oom-killed`` needs the right to make a memory control group (root) and
is left out elsewhere, which is said. Exit 1 when a rank is not named, a wrong one is, or it takes longer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

RANKS = 4
LIMIT_S = 20.0
#: Loading torch four times on a busy machine takes its time; nothing is measured in it.
START_S = 240.0
ADVANCE_S = 1.5

JOB = """
import faulthandler, os, signal, sys, time
case, folder = sys.argv[1], sys.argv[2]
rank = int(os.environ["RANK"])
faulthandler.register(signal.SIGUSR1, all_threads=True)
import torch
import torch.distributed as dist
world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
guilty = rank == (0 if case == "rank-0-branch" else 2)
value = torch.ones(1024)

def ready():
    open(f"{folder}/ready_{rank}", "w").close()

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        time.sleep(600)

def report_metrics():
    for number in range(600):
        time.sleep(1)

def train_step(step):
    if guilty and step == 3:
        ready()
        if case == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif case == "loader":
            next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1)))
        elif case == "lock":
            from torch.utils.file_baton import FileBaton
            FileBaton(folder + "/lock").wait()
        elif case == "other-collective":
            dist.broadcast(value, src=0)
        elif case == "rank-0-branch":
            report_metrics()
        elif case == "oom-killed":
            kept = []
            while True:
                kept.append(bytearray(b"x" * (8 << 20)))
    dist.all_reduce(value)

print(f"rank {rank} world_size {dist.get_world_size()} pid {os.getpid()}", flush=True)
try:
    for step in range(100):
        if not guilty and step == 3:
            ready()
        train_step(step)
        if rank == 0:
            print(f"step {step} loss {2.5 - step / 100:.3f}", flush=True)
except Exception:
    import traceback
    traceback.print_exc()
    sys.stderr.flush()
    signal.pause()
"""


@dataclass(frozen=True)
class Case:
    """A way to hang, the guilty rank, and the causes that say why."""

    name: str
    rank: int
    causes: tuple[str, ...]
    words: str


CASES = (
    Case("stopped", 2, ("app.deadlock",), "stopped by a signal"),
    Case("loader", 2, ("data.loader-stalled",), "data loader"),
    Case("lock", 2, ("app.stale-lock",), "lock file"),
    Case("other-collective", 2, ("collective.mismatch-op",), "broadcast"),
    Case("rank-0-branch", 0, ("collective.desync",), "outside of the collective"),
    Case("oom-killed", 2, ("host.oom-killed",), "killed"),
)


@contextmanager
def hung(case: Case, folder: Path, group: Path | None = None) -> Iterator[list[int]]:
    """The process ids of four ranks that hang as the case says; they are killed at the end."""
    script = folder / "train.py"
    script.write_text(JOB)
    (folder / "lock").touch()
    processes = []
    try:
        for rank in range(RANKS):
            env = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "OMP_NUM_THREADS": "1",
            }
            log = (folder / f"rank_{rank}.log").open("wb")
            command = [sys.executable, str(script), case.name, str(folder)]
            processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
            log.close()
            if group is not None and rank == case.rank:
                (group / "cgroup.procs").write_text(str(processes[-1].pid))
        _wait(folder, processes, case)
        yield [p.pid for p in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in processes:
            process.wait()


def _wait(folder: Path, processes: list[subprocess.Popen[bytes]], case: Case) -> None:
    """Until all ranks have come to the step of the hang and the guilty one does what it does."""
    end = time.monotonic() + START_S
    while not all((folder / f"ready_{rank}").exists() for rank in range(RANKS)):
        early = [r for r, p in enumerate(processes) if p.poll() is not None]
        assert not early, f"rank {early[0]} ended early: {(folder / f'rank_{early[0]}.log').read_text()[-800:]}"
        assert time.monotonic() < end, "the job did not start"
        time.sleep(0.05)
    if case.name == "oom-killed":
        processes[case.rank].wait(timeout=START_S)
    # There is no event for "is now inside the call": a stack taken too early would show the line before it.
    time.sleep(ADVANCE_S)


def ask(pids: list[int], keep: Path) -> dict[str, object]:
    """What ``ddaudit triage --live`` says; the collected bundle stays in ``keep``."""
    alive = [pid for pid in pids if Path(f"/proc/{pid}/environ").exists() and _state(pid) != "Z"]
    named = [word for pid in alive for word in ("--pid", str(pid))]
    return _json(["triage", "--live", *named, "--signal", "USR1", "--keep", str(keep), "--json"])


def walk(folder: Path, out: Path) -> list[dict[str, object]]:
    """The failed findings of the runbook ``hang`` over a collected bundle."""
    found = _json(["run", "hang", "-P", f"path={folder}", "--out", str(out), "--json", "--no-progress"])
    findings = found["findings"]
    assert isinstance(findings, list)
    return [f for f in findings if f["status"] == "FAIL"]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _json(arguments: list[str]) -> dict[str, object]:
    program = "import sys; from ddaudit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout.strip(), done.stderr[-2000:]
    value: dict[str, object] = json.loads(done.stdout)
    return value


@contextmanager
def memory_limit(mib: int = 700) -> Iterator[Path | None]:
    """A control group with a memory limit; None where none may be made."""
    first = next((p for p in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")) if p.is_dir()), None)
    group = first / f"ddaudit-live-{os.getpid()}" if first else None
    limit = "memory.limit_in_bytes" if first and first.name == "memory" else "memory.max"
    try:
        assert group is not None
        group.mkdir()
        (group / limit).write_text(str(mib << 20))
    except (OSError, AssertionError):
        if group is not None and group.is_dir():
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def check(case: Case, group: Path | None = None, *, runbook: bool = True) -> tuple[bool, str]:
    """(whether all was right, one line about it)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with hung(case, folder, group) as pids:
            start = time.perf_counter()
            told = ask(pids, folder / "live")["incident"]
            seconds = time.perf_counter() - start
            assert isinstance(told, dict)
            failed = walk(folder / "live", folder / "runs") if runbook else []
        guilty, walked = told["guilty"].get("rank"), ""
        good = guilty == case.rank and told["cause"] in case.causes and case.words in told["why"] and seconds <= LIMIT_S
        if runbook:
            ranks = {f["where"].get("rank") for f in failed}  # type: ignore[attr-defined]
            good &= ranks == {case.rank}
            walked = f"; runbook: {sorted(ranks, key=str)}"
        return good, f"{case.name}: rank {guilty}, {told['cause']}, {seconds:.1f} s{walked}: {told['why']}"


def main(names: list[str]) -> int:
    good = True
    for case in (c for c in CASES if not names or c.name in names):
        with memory_limit() if case.name == "oom-killed" else nullcontext() as group:
            if case.name == "oom-killed" and group is None:
                print("oom-killed: left out, no memory control group may be made here")
                continue
            right, line = check(case, group)
            print(("ok   " if right else "WRONG ") + line, flush=True)
            good &= right
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
