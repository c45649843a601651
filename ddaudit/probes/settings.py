"""The ``settings`` probe: what each rank was started with, so that ranks can be compared before anything is timed."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.evidence.settings import RankSettings, SettingsReport
from ddaudit.redact import redact_environment, redact_text
from ddaudit.registry import probe

__all__ = ["SettingsParams", "settings"]

PACKAGES = ("torch", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "triton", "transformers", "deepspeed")
LIMITS = ("NOFILE", "MEMLOCK", "STACK", "NPROC", "CORE", "AS")
#: Variables that must differ from rank to rank, or say only where it runs.
OF_THE_RANK = re.compile(
    r"RANK|LOCAL_WORLD_SIZE|SLURM_(PROCID|LOCALID|NODEID)|CUDA_VISIBLE_DEVICES|GLOO_SOCKET_IFNAME|TORCHELASTIC|DDAUDIT_"
)
KERNEL_FILES = {
    "machine.huge-pages": "/sys/kernel/mm/transparent_hugepage/enabled",
    "machine.clock": "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "machine.numa-balancing": "/proc/sys/kernel/numa_balancing",
    "driver.nvidia": "/sys/module/nvidia/version",
}
MOUNTS = ("/", "/dev/shm", "/tmp")  # noqa: S108 - looked at, never written


class SettingsParams(BaseModel):
    """``differ`` changes a setting of the last rank on purpose: a variable, or the limit on open files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    differ: str = Field("", pattern="^(|variable|limit)$")


@probe("settings", produces=(SettingsReport,), params=SettingsParams, where="ranks")
def settings(context: ProbeContext, params: SettingsParams) -> None:
    """Records versions, variables of the communication and thread libraries, process limits, file systems and kernel
    settings of every rank. Variables pass the allow-list of the redaction; values are text."""
    if context.rank == context.world_size - 1:
        _plant(params.differ)
    found = {**_versions(), **_variables(os.environ), **_limits(), **_mounts(), **_machine()}
    mine = RankSettings(rank=context.rank, host=context.host, settings=found)
    context.events.emit("settings", settings=mine.model_dump(mode="json"))


def _plant(differ: str) -> None:
    if differ == "variable":
        os.environ["NCCL_ALGO"] = "Tree"
    elif differ == "limit":
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))


def _versions() -> dict[str, str]:
    """Of the interpreter, of packages, and of what torch was built with."""
    import torch

    found = {"version.python": platform.python_version(), "version.cuda": str(torch.version.cuda)}
    for name in PACKAGES:
        try:
            found[f"version.{name}"] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"threads.operators": str(torch.get_num_threads()), "version.torch": torch.__version__}


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    allowed = redact_environment(environment)
    return {f"variable.{name}": value for name, value in allowed.items() if not OF_THE_RANK.search(name)}


def _limits() -> dict[str, str]:
    """Soft limits of the process."""
    found = {}
    for name in LIMITS:
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        found[f"limit.{name.lower()}"] = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return found


def _mounts() -> dict[str, str]:
    """Type and size of the file systems that loaders and collectives use, and of the working folder."""
    kinds = {p.mountpoint: p.fstype for p in psutil.disk_partitions(all=True)}
    found = {}
    for name, path in {**{m: m for m in MOUNTS}, "working folder": str(Path.cwd())}.items():
        holder = next((str(p) for p in [Path(path), *Path(path).parents] if str(p) in kinds), "/")
        try:
            stat = os.statvfs(path)
        except OSError:
            continue
        size = stat.f_frsize * stat.f_blocks
        found[f"mount.{name}"] = f"{kinds.get(holder, 'unknown')} {size / 2**20:.0f} MiB"
    return found


def _machine() -> dict[str, str]:
    found = {"machine.kernel": platform.release(), "machine.cores": str(len(os.sched_getaffinity(0)))}
    for name, file in KERNEL_FILES.items():
        try:
            found[name] = redact_text(Path(file).read_text("utf-8", "replace").strip()[:200])
        except OSError:
            continue
    return found
