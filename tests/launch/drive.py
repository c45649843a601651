"""A driver to break: runs drill steps with one launcher, as its own session, and prints what became of each.

``python -m tests.launch.drive RUN_DIR '[{"fault": "kill", "ranks": 2}, ...]'``. The faults harness reads one JSON line
per step; whoever started it with its own session finds every process of it by the session's id.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ddaudit import packs
from ddaudit.engine.judge import judge
from ddaudit.launch import LocalLauncher
from ddaudit.launch.process import stat_fields
from ddaudit.runbook.model import Plan, PlannedStep

ROOT = Path(__file__).resolve().parents[2]
LOST = ("kill", "raise", "abort", "segfault", "exit", "leave", "leak")
HUNG = ("stop", "skip-collective", "hang-collective", "hang-lock", "hang-native", "hang-loader", "spin")


def plan_steps(cases: Sequence[Mapping[str, Any]]) -> tuple[PlannedStep, ...]:
    """One drill step per case; keys beside ``ranks``, ``timeout_s`` and ``after_s`` are drill parameters."""
    return tuple(
        PlannedStep(
            id=f"{case['fault']}-{case['ranks']}-{number}",
            title="drill",
            source="drive.py:1",
            runbook="drill",
            probe="drill",
            nproc=case["ranks"],
            timeout_s=case.get("timeout_s", 30.0),
            params={k: v for k, v in case.items() if k not in ("ranks", "timeout_s", "after_s")},
        )
        for number, case in enumerate(cases)
    )


def write_plan(run_dir: Path, steps: Sequence[PlannedStep], seed: int = 0, packs: Sequence[str] = ()) -> Path:
    plan = Plan(run_id="drill", runbook="drill", title="Drill", seed=seed, steps=tuple(steps), packs=tuple(packs))
    path = run_dir / "plan.json"
    path.write_text(plan.model_dump_json(by_alias=True))
    return path


def strike(events: Path, signum: int, after_s: float) -> threading.Thread:
    """Signals a rank from outside, ``after_s`` after it told its pid: any moment, in start-up too."""

    def wait_and_hit() -> None:
        while not (events.is_file() and b"\n" in events.read_bytes()):
            time.sleep(0.002)
        time.sleep(after_s)
        os.kill(json.loads(events.read_bytes().splitlines()[0])["pid"], signum)

    thread = threading.Thread(target=wait_and_hit, daemon=True)
    thread.start()
    return thread


def run_cases(run_dir: Path, cases: Sequence[Mapping[str, Any]], seed: int) -> Iterator[dict[str, Any]]:
    """Runs the cases one by one; yields per case its facts, its findings and the seconds it took."""
    outside = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
    told = [{**c, "fault": "none"} if "after_s" in c else c for c in cases]
    steps = plan_steps(told)
    plan = write_plan(run_dir, steps, seed)
    check = packs.load(entries=False, environment=False).registry.checks["launch.ranks"]
    with LocalLauncher(run_dir, torch=True, preload=("torch.distributed",)) as launcher:
        for case, step in zip(cases, steps, strict=True):
            if "after_s" in case:
                victim = run_dir / "events" / step.id / f"{launcher.host}-{step.nproc - 1}.jsonl"
                strike(victim, outside[case["fault"]], case["after_s"])
            began = time.monotonic()
            facts = launcher.run_step(step, plan)
            seconds = time.monotonic() - began
            found = [f.model_dump(mode="json") for f in judge(check, {"launch": facts}, step=step)]
            yield {"case": case, "seconds": seconds, "facts": facts.model_dump(mode="json"), "findings": found}


def start(run_dir: Path, cases: Sequence[Mapping[str, Any]], seed: int = 0) -> subprocess.Popen[str]:
    """Starts a driver in a session of its own; its pid is the session's id."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.launch.drive", str(run_dir), json.dumps(cases), str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def session_members(sid: int) -> list[str]:
    """Living processes of a session, as ``pid command-state`` (zombies do not run any more)."""
    found = []
    for entry in Path("/proc").iterdir():
        fields = stat_fields(int(entry.name)) if entry.name.isdigit() else None
        if fields and int(fields[3]) == sid and fields[0] != "Z":
            found.append(f"{entry.name} {fields[0]}")
    return found


def seconds_until_gone(sid: int, limit_s: float) -> float | None:
    """Seconds until no process of the session is left; None when some are at the limit."""
    began = time.monotonic()
    while session_members(sid):
        if time.monotonic() - began > limit_s:
            return None
        time.sleep(0.02)
    return time.monotonic() - began


@contextmanager
def driver(run_dir: Path, cases: Sequence[Mapping[str, Any]], seed: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A running driver; whatever a test leaves of its session is killed at the end."""
    process = start(run_dir, cases, seed)
    try:
        yield process
    finally:
        for member in session_members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(int(member.split()[0]), signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()


def main() -> None:
    run_dir, cases, seed = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    for result in run_cases(run_dir, cases, seed):
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    random.seed()
    main()
