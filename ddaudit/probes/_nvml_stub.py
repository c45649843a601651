"""Builds and loads a stand-in for the NVIDIA driver's library, so that device faults can be planted without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

from ddaudit.errors import LaunchProblem
from ddaudit.probes._program import run_program

__all__ = ["load_stub"]

SOURCE = Path(__file__).with_name("_nvml_stub.c")
LIBRARY = "libnvidia-ml.so.1"
COMPILE_TIMEOUT_S = 30.0


def load_stub(folder: Path, faults: Mapping[str, int], path: str) -> None:
    """Compiles the stub into ``folder`` and loads it, so that pynvml in this process speaks to it.

    The dynamic loader gives a library whose name is already loaded to whoever asks for that name. ``faults`` are names
    of ``_nvml_stub.c``; ``old_driver`` leaves the late entry points out. ``path`` is where gcc is looked for.

    Raises:
        LaunchProblem: no gcc, it failed, or a fault that the stub does not know.
    """
    library = folder / LIBRARY
    old = ["-DOLD_DRIVER"] if faults.get("old_driver") else []
    argv = ["gcc", "-O0", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", *old, "-o", str(library), str(SOURCE)]
    ended = run_program(
        argv, env={"PATH": path}, cwd=folder, timeout_s=COMPILE_TIMEOUT_S, max_bytes=1 << 16, merge=True
    )
    if ended.exit_code != 0:
        why = ended.not_started or ended.stdout.strip().splitlines()[:1] or "it did not end"
        raise LaunchProblem(f"the stub of {LIBRARY} was not built: {why}", expected="a C compiler called gcc")
    stub = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    for name, value in faults.items():
        if name != "old_driver" and stub.ddaudit_stub_set(name.encode(), ctypes.c_long(value)) != 0:
            raise LaunchProblem(f"the stub of {LIBRARY} knows no fault {name!r}")
