"""Small bundles for the self-test: each with its fault, and the same bundle without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Build = Callable[[Path, bool], Mapping[str, Any]]

STEPS = "".join(f"[2026-03-10 10:{m:02d}:00] rank 0 step {100 + m} loss 2.{50 - m} dt 6.0s\n" for m in range(20))
LOST = "[rank{r}]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:40142\n"
TIMEOUT = (
    "[rank{r}]:[E310 10:30:00.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=77, OpType={op}, NumelIn={n}, NumelOut={n}, Timeout(ms)=600000) ran for 600010 milliseconds\n"
)
BEHIND = (
    "[rank3]:[E310 10:30:01.1 ProcessGroupNCCL.cpp:1746] [Rank 3] Received a dump signal due to a collective timeout. "
    "Last enqueued NCCL work: 76, last completed NCCL work: 76.\n"
)
STACK = (
    'Process 413: python train.py\n\nThread 413 (idle): "MainThread"\n'
    "    wait (torch/utils/file_baton.py:49)\n    load (torch/utils/cpp_extension.py:1623)\n"
)
MAP = "".join(f"rank {r} on host n{r:02d} pid {410 + r}\n" for r in range(4))
TRACE = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 9, in main\n[rank1]: {error}\n'
WAITING = "".join(TIMEOUT.format(r=r, op="ALLREDUCE", n=64) for r in range(3))


def _bundle(name: str, broken: Mapping[str, str], whole: Mapping[str, str]) -> Build:
    """A builder that writes one of two sets of files and returns the probe's parameters."""

    def build(folder: Path, planted: bool) -> Mapping[str, Any]:
        for name, text in (broken if planted else whole).items():
            (folder / name).write_text(text, encoding="utf-8")
        return {"path": str(folder)}

    # The self-test tells builders apart by their names.
    build.__qualname__ = f"incident_{name}"
    return build


def _log(text: str, **more: str) -> Mapping[str, str]:
    return {"train.log": MAP + STEPS + text, **{name.replace("_", "."): value for name, value in more.items()}}


WELL = _log("Training completed\n")
COMPUTE = "compute ms per rank: 0:170 1:171 2:{v} 3:169 (allreduce wait ms: 0:{w} 1:{w} 2:2 3:{w})\n"
HOT = (
    "==============NVSMI LOG==============\nGPU 00000000:18:00.0\n    Clocks Event Reasons\n"
    "        HW Thermal Slowdown               : Active\n"
)
RANKS = "rank host gpu pci\n2 n02 0 0000:18:00.0\n"

PLANTS: dict[str, tuple[str, str, Build]] = {
    "scheduler": (
        "the time limit ends the job",
        "sched.time-limit",
        _bundle(
            "scheduler",
            _log("slurmstepd: error: *** JOB 7 ON n00 CANCELLED AT 2026-03-10T10:20:00 DUE TO TIME LIMIT ***\n"),
            WELL,
        ),
    ),
    "hardware": (
        "a GPU drops off the bus",
        "gpu.fell-off-bus",
        _bundle(
            "hardware",
            _log(
                WAITING,
                n03_dmesg="2026-03-10T10:20:01,0+00:00 NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n",
            ),
            _log(
                "Training completed\n", n03_dmesg="2026-03-01T10:20:01,0+00:00 NVRM: Xid (PCI:0000:18:00): 79, gone\n"
            ),
        ),
    ),
    "host": (
        "the kernel kills a rank",
        "host.oom-killed",
        _bundle(
            "host",
            _log(
                LOST.format(r=0),
                n01_dmesg="2026-03-10T10:19:30,0+00:00 Out of memory: Killed process 411 (python3) total-vm:9kB\n",
            ),
            WELL,
        ),
    ),
    "errors": (
        "a rank raises",
        "app.exception",
        _bundle("errors", _log(LOST.format(r=0) + TRACE.format(error="KeyError: 'lr'")), WELL),
    ),
    "startup": (
        "the master's port is taken",
        "rdzv.port-in-use",
        _bundle(
            "startup",
            {
                "a.log": "[rank0]: RuntimeError: The server socket has failed to bind "
                "(errno: 98 - Address already in use).\n"
            },
            WELL,
        ),
    ),
    "hang": (
        "a rank waits for a lock file",
        "app.stale-lock",
        _bundle("hang", {**_log(WAITING + BEHIND), "rank3.pyspy": STACK}, WELL),
    ),
    "storage": (
        "the NFS server is silent",
        "storage.fs-hang",
        _bundle(
            "storage",
            _log(WAITING, n03_dmesg="2026-03-10T10:20:01,0+00:00 nfs: server filer7 not responding, still trying\n"),
            _log("Training completed\n", n03_dmesg="2026-03-10T10:20:01,0+00:00 nfs: server filer7 OK\n"),
        ),
    ),
    "numbers": (
        "the loss becomes NaN",
        "train.nan-loss",
        _bundle(
            "numbers",
            _log("".join(f"[2026-03-10 10:2{m}:00] rank 0 step 12{m} loss nan dt 6.0s\n" for m in range(5))),
            WELL,
        ),
    ),
    "slow": (
        "a hot GPU holds the others up",
        "gpu.thermal-throttle",
        _bundle(
            "slow",
            {"train.log": STEPS + COMPUTE.format(v=330, w=160) * 3, "map.txt": RANKS, "smi-n02.txt": HOT},
            {"train.log": STEPS + COMPUTE.format(v=172, w=2) * 3, "map.txt": RANKS},
        ),
    ),
    "cause": (
        "everybody waits and nobody can be named",
        "unknown.collective-timeout",
        _bundle("cause", {"rank0.log": STEPS + TIMEOUT.format(r=0, op="ALLREDUCE", n=64)}, WELL),
    ),
}
