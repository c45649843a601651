"""Runs of ddaudit over several hosts: one process on each, as an operator would start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddaudit.launch.process import stat_fields
from tests.cluster.netns import Host

ROOT = Path(__file__).resolve().parents[2]
CODE = "import sys; from ddaudit.cli.main import run; run()"
PORT = 29555


def environment(**more: str) -> dict[str, str]:
    """Ours, without what a scheduler or launcher may have left in it."""
    foreign = ("SLURM", "OMPI_", "PMI_", "TORCHELASTIC", "GLOO_", "NCCL_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def words(*argv: str) -> list[str]:
    return [sys.executable, "-c", CODE, *argv]


@dataclass
class Started:
    """One ``ddaudit run`` on several hosts."""

    processes: list[subprocess.Popen[str]]
    out: Path

    def finish(self, timeout_s: float = 120.0) -> tuple[int, dict[str, Any], list[str]]:
        """Waits for all; returns the conductor's exit code and JSON, and every process's stderr."""
        told = [p.communicate(timeout=timeout_s) for p in self.processes]
        text = told[0][0]
        return self.processes[0].returncode, json.loads(text) if text.strip() else {}, [e for _, e in told]

    @property
    def run_dir(self) -> Path:
        return next(p for p in self.out.iterdir() if p.is_dir())


def start(
    where: Sequence[Host], out: Path, *argv: str, per_node: int = 1, delay: Sequence[int] = (), **env: str
) -> Started:
    """Starts ``ddaudit run ARGV`` on every host; hosts whose index is in ``delay`` are left to the test."""
    flags = ["--nnodes", str(len(where)), "--nproc-per-node", str(per_node), "--device", "cpu"]
    flags += ["--rdzv-endpoint", f"{where[0].address}:{PORT}", "--out", str(out), "--json"]
    processes = [one(host, index, flags, *argv, **env) for index, host in enumerate(where) if index not in delay]
    return Started(processes, out)


def one(host: Host, index: int, flags: Sequence[str], *argv: str, **env: str) -> subprocess.Popen[str]:
    command = words("run", *argv, *flags, "--node-rank", str(index))
    return host.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**env))


def left(where: Sequence[Host]) -> list[int]:
    """Processes that still run (zombies do not) in any of the hosts."""
    pids = [pid for host in where for pid in host.pids()]
    return [pid for pid in pids if (stat_fields(pid) or ["Z"])[0] != "Z"]
