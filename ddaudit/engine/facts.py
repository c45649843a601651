"""What the engine knows of this machine before anything is launched; ``when`` conditions are asked over these facts.

Nothing here touches CUDA or NVML: GPUs are counted by their device files.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from ddaudit import __version__
from ddaudit.redact import redact_argv, redact_environment, redact_text

__all__ = ["collect", "host_name", "pick_device"]

PACKAGES = ("torch", "numpy", "h5py", "pydantic", "click", "nvidia-ml-py")


def host_name() -> str:
    """The name findings print: Slurm's node name where there is one, since several may share one machine."""
    return redact_text(os.environ.get("SLURMD_NODENAME") or socket.gethostname())


def count_gpus() -> int:
    """NVIDIA devices of this host by ``/dev/nvidia<N>``, cut to ``CUDA_VISIBLE_DEVICES`` where that is set."""
    devices = [p for p in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(devices)
    listed = [v for v in visible.split(",") if v.strip() and v.strip() != "-1"]
    return min(len(devices), len(listed))


def pick_device(asked: str, gpus: int) -> tuple[str, str]:
    """Resolves ``auto`` and returns (device, reason); the reason is printed in the report."""
    if asked != "auto":
        return asked, "asked for"
    return ("cuda", f"{gpus} CUDA device(s) visible") if gpus else ("cpu", "no CUDA device visible")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def collect(device: str, device_reason: str, argv: list[str]) -> dict[str, Any]:
    """Facts for conditions, reports and remedies; redacted, JSON-ready."""
    affinity = len(os.sched_getaffinity(0))
    return {
        "ddaudit": __version__,
        "host": host_name(),
        "hosts": 1,
        "device": device,
        "device_reason": device_reason,
        "backend": "nccl" if device == "cuda" else "gloo",
        "gpus": count_gpus(),
        "cpus": affinity,
        "memory_bytes": psutil.virtual_memory().total,
        "slurm": "SLURM_JOB_ID" in os.environ,
        "kubernetes": "KUBERNETES_SERVICE_PORT" in os.environ,
        "torchrun": "TORCHELASTIC_RUN_ID" in os.environ,
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "packages": {name: found for name in PACKAGES if (found := _installed(name))},
        "torch": _installed("torch"),
        "argv": redact_argv(argv),
        "environment": redact_environment(os.environ),
        "load_before": [round(x, 2) for x in os.getloadavg()],
    }
