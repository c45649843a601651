"""Runs the train probe on real gloo ranks without the launcher: a forkserver with torch, a file as meeting place."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

from ddaudit.context import ProbeContext
from ddaudit.evidence import EventWriter, TrainingTrace, read_streams
from ddaudit.probes.train import train
from ddaudit.training.params import TrainParams

TIMEOUT_S = 60.0
PRELOAD = [
    "ddaudit.training.loop",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "tests.training.ranks",
]


def one_rank(rank: int, world_size: int, folder: str, params: dict[str, Any]) -> None:
    """Body of one rank: process group, probe, done."""
    import torch
    import torch.distributed as dist

    root = Path(folder)
    if world_size > 1:
        torch.set_num_threads(1)
        timeout = timedelta(seconds=TIMEOUT_S)
        meeting = f"file://{root}/meeting"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size, timeout=timeout)
    deadline = time.monotonic() + TIMEOUT_S
    with EventWriter(root / "events" / f"here-{rank}.jsonl") as events:
        context = ProbeContext("s", rank, world_size, rank, "here", "cpu", root, root / "scratch", events, deadline)
        train(context, TrainParams(**params))
    if world_size > 1:
        dist.destroy_process_group()


def trained(folder: Path, ranks: int = 1, **params: Any) -> TrainingTrace:
    """The trace of a training on ``ranks`` ranks; a rank that fails fails the test with its traceback.

    ``resume_from`` may be relative to ``folder``. Runs in one folder must use different numbers of ranks or folders.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if ranks == 1:
        one_rank(0, 1, str(folder), params)
    else:
        from torch.multiprocessing import start_processes

        multiprocessing.set_forkserver_preload(PRELOAD)
        with warnings.catch_warnings():
            start_processes(one_rank, (ranks, str(folder), params), nprocs=ranks, start_method="forkserver")
    trace = TrainingTrace.assemble(read_streams(folder / "events"))
    assert trace is not None
    return trace
