"""What the driver says of this host's GPUs, before, during and after a window under load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.evidence.base import JsonEvidence

__all__ = ["Device", "DeviceProcess", "DeviceReport", "SlowCall", "Xid"]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceProcess(_Strict):
    """A process that held memory on the device before our own load began. ``name`` is None where its pid is not
    visible from here (another container)."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None


class SlowCall(_Strict):
    """The driver call that took longest."""

    function: str
    seconds: float


class Xid(_Strict):
    """One of NVIDIA's error numbers in the kernel log, of one device; ``last_s`` is seconds after boot."""

    bus_id: str
    code: int
    count: int
    last_s: float | None = None


class Device(_Strict):
    """One GPU. None means not measured, and ``absent`` says why by field; it is never a stand-in for 0.

    Counters (``*_s``, ``*_delta``) are differences over the window; ``ecc_*`` and ``rows_*`` are the driver's totals
    (ECC since the driver was loaded, remapped rows over the device's life). Clocks, power, temperature and link are
    what was seen during the window: median clock, largest power, temperature, generation and width.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None
    serial: str | None = None
    lost: str | None = None
    """The call by which the driver first said that the device is gone (or needs a reset)."""
    persistence: bool | None = None
    mig: bool | None = None
    busy_share: float | None = None
    """Largest share of a sampling period in which some kernel ran (0 to 1)."""
    performance_state: int | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_limit_w: float | None = None
    temperature_c: float | None = None
    temperature_slowdown_c: float | None = None
    event_reasons: int | None = None
    """Bits of every clock event reason seen in the window."""
    thermal_s: float | None = None
    power_brake_s: float | None = None
    power_cap_s: float | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    rows_remapped: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays_delta: int | None = None
    links_active: tuple[int, ...] | None = None
    links_inactive: tuple[int, ...] | None = None
    link_errors_delta: int | None = None
    gpm_sm_share: float | None = None
    gpm_tensor_share: float | None = None
    gpm_dram_share: float | None = None
    processes: tuple[DeviceProcess, ...] | None = None
    slowest: SlowCall | None = None
    absent: Mapping[str, str] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """What a person calls it: ``GPU 3``."""
        return f"GPU {self.index}"

    @property
    def id(self) -> str:
        """What identifies it for good: the UUID, or the label where that was not read."""
        return self.uuid or self.label


class DeviceReport(JsonEvidence):
    """All devices of one host. ``missing`` says why there is nothing to report and what was looked for."""

    kind: ClassVar[str] = "devices"

    host: str
    window_s: float = 0.0
    load: str | None = None
    """What we ran on the devices during the window; None when we ran nothing."""
    driver: str | None = None
    nvml: str | None = None
    cuda: str | None = None
    device_files: int = 0
    """``/dev/nvidia<N>`` files: what the kernel module has set up."""
    expected: int | None = None
    missing: str | None = None
    devices: tuple[Device, ...] = ()
    xids: tuple[Xid, ...] | None = None
    """None where the kernel log was not readable; ``xids_missing`` says why."""
    xids_missing: str | None = None
