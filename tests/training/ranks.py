"""Runs the train probe on real gloo ranks without the launcher: a forkserver with torch, a file as meeting place."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from ddaudit.context import ProbeContext
from ddaudit.evidence import EventWriter, TrainingTrace, read_streams
from ddaudit.probes.train import train
from ddaudit.training.params import TrainParams

TIMEOUT_S = 90.0
PRELOAD = [
    "ddaudit.training.loop",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "tests.training.ranks",
]


def one_rank(rank: int, world_size: int, folder: str, runs: Mapping[str, dict[str, Any]]) -> None:
    """Body of one rank: process group, then one training after the other, each in its own run folder."""
    import torch
    import torch.distributed as dist

    root = Path(folder)
    if world_size > 1:
        torch.set_num_threads(1)
        timeout = timedelta(seconds=TIMEOUT_S)
        meeting = f"file://{root}/meeting"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size, timeout=timeout)
    for name, params in runs.items():
        run = root / name
        deadline = time.monotonic() + TIMEOUT_S
        with EventWriter(run / "events" / f"here-{rank}.jsonl") as events:
            context = ProbeContext("s", rank, world_size, rank, "here", "cpu", run, run / "scratch", events, deadline)
            train(context, TrainParams(**params))
    if world_size > 1:
        dist.destroy_process_group()


def trained_all(folder: Path, ranks: int, runs: Mapping[str, dict[str, Any]]) -> dict[str, TrainingTrace]:
    """Traces by name of several trainings in one set of processes; a failing rank fails the test with its traceback."""
    folder.mkdir(parents=True, exist_ok=True)
    if ranks == 1:
        one_rank(0, 1, str(folder), runs)
    else:
        from torch.multiprocessing import start_processes

        multiprocessing.set_forkserver_preload(PRELOAD)
        start_processes(one_rank, (ranks, str(folder), runs), nprocs=ranks, start_method="forkserver")
    return {name: trace_of(folder / name) for name in runs}


def trace_of(run: Path) -> TrainingTrace:
    trace = TrainingTrace.assemble(read_streams(run / "events"))
    assert trace is not None
    return trace


def trained(folder: Path, ranks: int = 1, **params: Any) -> TrainingTrace:
    """The trace of one training; its run folder is ``folder/run``."""
    return trained_all(folder, ranks, {"run": params})["run"]


def deviation(trace: TrainingTrace, reference: TrainingTrace, role: str = "grad") -> float:
    """Largest relative L2 distance of any rank's tensor from the reference's of that name and step."""
    wanted = {(t.step, t.name): t.values for t in reference.tensors if t.role == role}
    mine = [t for t in trace.tensors if t.role == role]
    assert {(t.step, t.name) for t in mine} == set(wanted)
    far = [np.linalg.norm(t.values - wanted[t.step, t.name]) / np.linalg.norm(wanted[t.step, t.name]) for t in mine]
    return float(np.max(far))
