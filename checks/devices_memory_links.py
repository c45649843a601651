"""Memory errors and links of the GPUs: ECC, remapped rows, PCIe under load, NVLink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddaudit.api import Device, DeviceReport, Finding, Remedy, Severity, check, fail, ok, skip, warn

from ._devices import place, stub_plant, sweep
from .devices import DRAIN, DeviceLimits

#: Performance states of a device at work; deeper ones lower the PCIe generation to save power.
AWAKE_STATE = 2


@check(
    "device.ecc",
    asks="Is the device memory free of errors that ECC could not correct?",
    plant=stub_plant("three uncorrected errors", "device.ecc", {"ecc": 1}),
)
def ecc(report: DeviceReport, limits: DeviceLimits) -> Iterator[Finding]:
    """Uncorrected errors since the driver was loaded. Corrected ones are printed: they are what ECC is for."""
    limit = limits.ecc_uncorrected

    def judge(device: Device) -> Finding | None:
        count = device.ecc_uncorrected or 0
        if limit.judge(count).value == "PASS":
            return None
        return fail(
            "device.ecc",
            f"{device.label} had {count} uncorrected memory error(s) since the driver was loaded",
            severity=Severity.CRITICAL,
            where=place(report, device),
            measured=count,
            unit="errors",
            limit=limit.bound(count),
            limit_source=limit.source,
            remedy=Remedy(text=DRAIN, commands=(f"nvidia-smi -i {device.index} -q -d ECC,ROW_REMAPPER",)),
        )

    def healthy(known: list[Device]) -> dict[str, Any]:
        corrected = sum(d.ecc_corrected or 0 for d in known)
        text = f"no uncorrected memory error on {len(known)} device(s); {corrected} corrected"
        return {"text": text, "measured": 0, "unit": "errors", "limit": limit.bound(0), "limit_source": limit.source}

    yield from sweep(report, ("ecc_uncorrected",), judge, healthy)


@check(
    "device.row-remap",
    asks="Are there spare memory rows left, and is no remap waiting for a reset?",
    plant=(
        stub_plant("a remap waits for a reset", "device.row-remap-pending", {"remap_pending": 0}),
        stub_plant("a remap failed", "device.row-remap-failed", {"remap_failed": 1}),
    ),
)
def row_remap(report: DeviceReport) -> Iterator[Finding]:
    """A pending remap keeps the bad row in use until the device is reset; a failed one means that spares ran out."""

    def judge(device: Device) -> Finding | None:
        here = place(report, device)
        if device.rows_failed:
            text = f"{device.label}: a memory row could not be remapped ({device.rows_remapped} are)"
            remedy = Remedy(text="Drain the node and return the device: its spare rows are used up.")
            return fail("device.row-remap-failed", text, severity=Severity.CRITICAL, where=here, remedy=remedy)
        if device.rows_pending:
            text = f"{device.label}: a remap of a memory row waits for a reset ({device.rows_remapped} rows remapped)"
            remedy = Remedy(
                text="Drain the node and reset the device; until then the row stays in use.",
                commands=(f"nvidia-smi -i {device.index} --gpu-reset",),
            )
            return warn("device.row-remap-pending", text, where=here, remedy=remedy)
        return None

    def healthy(known: list[Device]) -> dict[str, Any]:
        rows = sum(d.rows_remapped or 0 for d in known)
        text = f"no remap is pending or failed on {len(known)} device(s); {rows} row(s) remapped so far"
        return {"text": text, "measured": 0, "unit": "pending or failed remaps", "limit": 0}

    yield from sweep(report, ("rows_pending", "rows_failed"), judge, healthy)


@check(
    "device.pcie-degraded",
    asks="Does the PCIe link run at full generation and width under load?",
    plant=stub_plant("generation 3 instead of 5", "device.pcie-degraded", {"pcie_gen": 1}),
)
def pcie_degraded(report: DeviceReport) -> Iterator[Finding]:
    """Compares with the most that device and slot can do together. An idle device lowers its generation on purpose, so
    only a device at work is judged by it."""
    fields = ("pcie_gen", "pcie_gen_max", "pcie_width", "pcie_width_max")

    def healthy(known: list[Device]) -> dict[str, Any]:
        awake = sum(_awake(d) for d in known)
        text = f"{awake} of {len(known)} device(s) were at work, with links of full generation and width"
        return {"text": text, "measured": 1.0, "unit": "share of the link's bandwidth", "limit": 1.0}

    if not report.missing and report.devices and not any(_awake(d) for d in report.devices):
        known = [d for d in report.devices if all(getattr(d, field) is not None for field in fields)]
        narrow = [f for d in known if (f := _degraded(report, d)) is not None]
        yield from narrow
        if not narrow:
            yield skip("not measured: no device was at work in the window, and an idle link slows down on purpose")
        return
    yield from sweep(report, fields, lambda d: _degraded(report, d), healthy)


def _degraded(report: DeviceReport, device: Device) -> Finding | None:
    """A finding for a link with fewer lanes than it could have, or slower while the device is at work."""
    narrow = (device.pcie_width or 0) < (device.pcie_width_max or 0)
    slow = _awake(device) and (device.pcie_gen or 0) < (device.pcie_gen_max or 0)
    if not (narrow or slow):
        return None
    have, could = _lanes(device.pcie_gen, device.pcie_width), _lanes(device.pcie_gen_max, device.pcie_width_max)
    commands = (f"nvidia-smi -i {device.index} -q -d PCIE", f"lspci -vv -s {device.bus_id or 'BUS'} | grep Lnk")
    return warn(
        "device.pcie-degraded",
        f"the link of {device.label} runs at generation {device.pcie_gen} x{device.pcie_width}, it can do"
        f" generation {device.pcie_gen_max} x{device.pcie_width_max}",
        where=place(report, device),
        measured=have / could if could else None,
        unit="share of the link's bandwidth",
        limit=1.0,
        limit_source="what the driver says that device and slot can do",
        remedy=Remedy(text="Reseat the card or its riser; look at the slot's firmware settings.", commands=commands),
    )


def _awake(device: Device) -> bool:
    """True for a device in a performance state of work and with some kernel running."""
    return (device.performance_state or 0) <= AWAKE_STATE and (device.busy_share or 0.0) > 0.0


def _lanes(gen: int | None, width: int | None) -> float:
    """Bandwidth relative to one lane of generation 1: each generation doubles it."""
    return float(2 ** (gen or 0) * (width or 0))


@check(
    "device.nvlink-down",
    asks="Are the NVLink ports up, and free of errors?",
    plant=(
        stub_plant("one port of one GPU is down", "device.nvlink-down", {"link_down": 1}),
        stub_plant("a port counts errors during the window", "device.nvlink-errors", {"link_errors": 0}),
    ),
)
def nvlink_down(report: DeviceReport) -> Iterator[Finding]:
    """Compares each device with its best connected peer of the same model: how many ports a board wires up differs from
    board to board, so a device alone cannot be judged by it. Errors are counted over the window."""
    if not report.missing and report.devices and not any(d.links_active or d.links_inactive for d in report.devices):
        yield skip("not measured: no device has NVLink that the driver tells of")
        return
    most = {d.name: max(len(p.links_active or ()) for p in report.devices if p.name == d.name) for d in report.devices}

    if len(report.devices) == 1:
        only = report.devices[0]
        text = f"{len(only.links_active or ())} NVLink port(s) up, without errors; no peer to compare with"
        yield _link_fault(report, only, most[only.name]) or ok(text, where=place(report, only))
        return
    yield from sweep(report, ("links_active",), lambda d: _link_fault(report, d, most[d.name]), _linked)


def _link_fault(report: DeviceReport, device: Device, peers: int) -> Finding | None:
    """``peers``: ports that are up on the best connected device of the same model."""
    here = place(report, device)
    if (up := len(device.links_active or ())) < peers:
        down = ", ".join(str(n) for n in device.links_inactive or ()) or "unknown"
        return fail(
            "device.nvlink-down",
            f"{device.label} has {up} NVLink port(s) up, a peer of its kind has {peers}; down: {down}",
            where=here,
            measured=up,
            unit="ports",
            limit=peers,
            limit_source="the best connected device of the same model on this host",
            remedy=Remedy(
                text="Drain the node; reset the devices and the fabric manager, then look for Xid 74.",
                commands=(f"nvidia-smi nvlink -s -i {device.index}", "systemctl status nvidia-fabricmanager"),
            ),
        )
    if not device.link_errors_delta:
        return None
    return warn(
        "device.nvlink-errors",
        f"the NVLink ports of {device.label} counted {device.link_errors_delta} error(s) in {report.window_s:.1f} s",
        where=here,
        measured=device.link_errors_delta,
        unit="errors",
        limit=0,
        limit_source="default: a sound link replays nothing",
        remedy=Remedy(text="Retries cost bandwidth.", commands=(f"nvidia-smi nvlink -e -i {device.index}",)),
    )


def _linked(known: list[Device]) -> dict[str, Any]:
    ports = min(len(d.links_active or ()) for d in known)
    return {"text": f"{ports} NVLink port(s) up on each of {len(known)} device(s)", "measured": ports, "unit": "ports"}
