"""The ``devices`` probe: what the driver says of this host's GPUs, before, during and after a window under load."""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.errors import LaunchProblem
from ddaudit.evidence.devices import Device, DeviceProcess, DeviceReport, SlowCall
from ddaudit.probes import _gpu_load
from ddaudit.probes._kernel_log import find_xids, kernel_log
from ddaudit.probes._nvml import Gpu
from ddaudit.probes._nvml_stub import load_stub
from ddaudit.redact import redact_text
from ddaudit.registry import probe

__all__ = ["DevicesParams", "devices"]

#: How long an ``import torch`` and the first kernels may take before the window opens without load.
LOAD_START_S = 45.0
#: NVML's init errors that mean "no driver here" rather than "a driver that does not work".
ABSENT = {12: "the loader finds no libnvidia-ml.so.1", 9: "libnvidia-ml.so.1 is there, and no driver is loaded"}


class DevicesParams(BaseModel):
    """``window_s``: how long to look, every ``interval_s``. ``load`` runs matrix products and copies on the devices
    meanwhile (CUDA runs only): link and clocks of an idle device say nothing. ``expected``: how many there should be.
    ``stub`` replaces the driver by a stand-in with the named faults, and ``kernel_log`` the kernel's log by these
    records, to prove the checks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    window_s: float = Field(1.0, gt=0.0, le=600.0)
    interval_s: float = Field(0.1, ge=0.01, le=60.0)
    load: bool = True
    expected: int | None = Field(None, ge=0, le=1024)
    stub: Mapping[str, int] | None = None
    kernel_log: tuple[str, ...] | None = None


@probe("devices", produces=(DeviceReport,), params=DevicesParams, where="hosts")
def devices(context: ProbeContext, params: DevicesParams) -> None:
    """Reads every GPU through NVML: identity and totals once, counters before and after, the rest during the window.

    What the driver does not support, does not allow or does not have stays without a value, with the reason.
    """
    import pynvml

    files = len([p for p in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)])
    if params.stub is not None:
        try:
            load_stub(context.scratch, params.stub, os.environ.get("PATH", os.defpath))
        except LaunchProblem as problem:
            context.events.emit_evidence(DeviceReport(host=context.host, missing=str(problem)))
            return
        files = params.stub.get("count", 2)
    report: dict[str, Any] = {"host": context.host, "device_files": files, "expected": params.expected}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        found = f"{files or 'no'} /dev/nvidia<N> file(s)"
        what = ABSENT.get(error.value, f"NVML does not start: {str(error).rstrip('.')}")
        context.events.emit_evidence(DeviceReport(**report, missing=f"{what} (there are {found})"))
        return
    gpus = [Gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    report |= _versions(pynvml) | _xids(params)
    for gpu in gpus:
        _identity(gpu)
    with _loaded(context, params) as load:
        seconds = _window(gpus, params)
    context.events.emit_evidence(
        DeviceReport(**report, window_s=seconds, load=load, devices=tuple(_device(gpu) for gpu in gpus))
    )
    pynvml.nvmlShutdown()


def _versions(nvml: Any) -> dict[str, str | None]:
    """Versions of driver, NVML and the newest CUDA that the driver serves; None for what it does not tell."""
    found: dict[str, str | None] = {}
    for name, function in (("driver", "nvmlSystemGetDriverVersion"), ("nvml", "nvmlSystemGetNVMLVersion")):
        try:
            found[name] = getattr(nvml, function)()
        except nvml.NVMLError:
            found[name] = None
    try:
        number = nvml.nvmlSystemGetCudaDriverVersion_v2()
        found["cuda"] = f"{number // 1000}.{number % 1000 // 10}"
    except nvml.NVMLError:
        found["cuda"] = None
    return found


def _xids(params: DevicesParams) -> dict[str, Any]:
    """Xids of the kernel log, or why there are none to tell. A stand-in for the driver has nothing in the real log."""
    if params.stub is not None and params.kernel_log is None:
        return {"xids": ()}
    try:
        return {"xids": find_xids(kernel_log() if params.kernel_log is None else params.kernel_log)}
    except OSError as error:
        return {"xids_missing": f"the kernel log is not readable: /dev/kmsg: {error.strerror}"}


def _identity(gpu: Gpu) -> None:
    """What does not change within seconds, and who is there before we are."""
    gpu.read("name", "nvmlDeviceGetName", convert=str)
    gpu.read("uuid", "nvmlDeviceGetUUID", convert=str)
    gpu.read("bus_id", "nvmlDeviceGetPciInfo", convert=lambda p: _text(p.busId))
    gpu.read("serial", "nvmlDeviceGetSerial", convert=str)
    gpu.read("persistence", "nvmlDeviceGetPersistenceMode", convert=bool)
    gpu.read("mig", "nvmlDeviceGetMigMode", convert=lambda modes: bool(modes[0]))
    gpu.read("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", 1)
    gpu.read("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", convert=_from_milli)
    gpu.read("power_default_limit_w", "nvmlDeviceGetPowerManagementDefaultLimit", convert=_from_milli)
    gpu.read("temperature_slowdown_c", "nvmlDeviceGetTemperatureThreshold", 1)
    gpu.read("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration", convert=int)
    gpu.read("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", convert=int)
    gpu.read("processes", "nvmlDeviceGetComputeRunningProcesses", convert=_processes)
    gpu.links()


def _window(gpus: list[Gpu], params: DevicesParams) -> float:
    """Counters, samples until the window ends, counters again, and the totals. Returns the window's seconds."""
    before = [(gpu.counters(), gpu.gpm_sample()) for gpu in gpus]
    began = time.perf_counter()
    while True:
        for gpu in gpus:
            _sample(gpu)
        seconds = time.perf_counter() - began
        if seconds >= params.window_s:
            break
        time.sleep(min(params.interval_s, params.window_s - seconds))
    for gpu, (counters, first) in zip(gpus, before, strict=True):
        gpu.difference(counters, gpu.counters())
        if first is not None and (last := gpu.gpm_sample()) is not None:
            gpu.gpm_between(first, last)
        gpu.read("ecc_enabled", "nvmlDeviceGetEccMode", convert=lambda modes: bool(modes[0]))
        gpu.read("ecc_corrected", "nvmlDeviceGetTotalEccErrors", 0, 0, convert=int)
        gpu.read("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", 1, 0, convert=int)
        _rows(gpu)
    return seconds


def _sample(gpu: Gpu) -> None:
    gpu.sample("sm_clock_mhz", "nvmlDeviceGetClockInfo", 1)
    gpu.sample("power_w", "nvmlDeviceGetPowerUsage", convert=_from_milli)
    gpu.sample("busy_share", "nvmlDeviceGetUtilizationRates", convert=lambda rates: rates.gpu / 100)
    gpu.sample("performance_state", "nvmlDeviceGetPerformanceState", convert=int)
    gpu.sample("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration", convert=int)
    gpu.sample("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", convert=int)
    gpu.sample("event_reasons", "nvmlDeviceGetCurrentClocksEventReasons", convert=int)
    gpu.temperature()


def _rows(gpu: Gpu) -> None:
    rows = gpu.ask("rows_remapped", "nvmlDeviceGetRemappedRows")
    if rows is None:
        gpu.absent |= dict.fromkeys(("rows_pending", "rows_failed"), gpu.absent["rows_remapped"])
        return
    corrected, uncorrected, pending, failed = rows
    gpu.facts |= {"rows_remapped": corrected + uncorrected, "rows_pending": bool(pending), "rows_failed": bool(failed)}


def _device(gpu: Gpu) -> Device:
    """The device's evidence: facts, samples reduced to the one number that is judged, and the slowest call."""
    reduce: dict[str, Any] = {
        "sm_clock_mhz": statistics.median,
        "performance_state": min,
        "event_reasons": lambda bits: functools.reduce(operator.or_, bits),
    }
    seen = {field: reduce.get(field, max)(values) for field, values in gpu.samples.items() if values}
    facts = {**gpu.facts, **seen}
    function, seconds = gpu.slowest
    return Device(
        index=gpu.index,
        lost=gpu.lost,
        slowest=SlowCall(function=function, seconds=seconds) if function else None,
        absent={f: why for f, why in gpu.absent.items() if f in Device.model_fields and facts.get(f) is None},
        **facts,
    )


@contextmanager
def _loaded(context: ProbeContext, params: DevicesParams) -> Iterator[str | None]:
    """Keeps the visible devices busy for the block, from a process of its own; yields what runs, or None."""
    if not params.load or params.stub is not None or context.device != "cuda":
        yield None
        return
    # -P: the script's own folder holds modules whose names must not hide others.
    argv = [sys.executable, "-P", _gpu_load.__file__, str(LOAD_START_S + params.window_s)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline().strip()
        try:
            yield ready or None
        finally:
            process.kill()


def _processes(running: Any) -> tuple[DeviceProcess, ...]:
    """Others' processes on a device: all but this one and its ancestors."""
    mine = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    return tuple(
        DeviceProcess(pid=p.pid, name=_process_name(p.pid), memory_bytes=p.usedGpuMemory)
        for p in running
        if p.pid not in mine
    )


def _process_name(pid: int) -> str | None:
    try:
        return redact_text(psutil.Process(pid).name())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _from_milli(value: int) -> float:
    return value / 1e3


def _text(value: Any) -> str:
    raw = value.value if isinstance(value, ctypes.Array) else value
    return raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)
