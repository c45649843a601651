"""Are the GPUs themselves in order? State under load, told by the driver; a host without one is not measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddaudit.api import (
    Device,
    DeviceReport,
    Finding,
    Limit,
    Limits,
    Remedy,
    Severity,
    Where,
    check,
    fail,
    skip,
    warn,
)

from ._devices import place, stub_plant, sweep


class DeviceLimits(Limits):
    """Limits on what the driver may report of one device."""

    family = "device"

    throttled_share: Limit = Limit(
        warn_above=0.01,
        fail_above=0.1,
        source="default: a cooled device is never slowed down; a tenth costs every rank",
    )
    power_limit_share: Limit = Limit(
        warn_below=0.95, source="default: the board's own default limit, less what vendors round"
    )
    ecc_uncorrected: Limit = Limit(fail_above=0, source="an uncorrected error is a wrong number in memory")
    call_s: Limit = Limit(warn_above=0.25, source="default: a healthy driver answers within milliseconds")


DRAIN = "Drain the node (running jobs will fail), reset the device, and return it for repair when it happens again."


@check(
    "device.lost",
    asks="Does every device answer the driver, and are they as many as expected?",
    plant=(
        stub_plant("a GPU falls off the bus in the window", "device.lost", {"lost": 1, "lost_after": 120}),
        stub_plant("library and kernel module differ in version", "device.driver", {"init_error": 18}),
    ),
)
def lost(report: DeviceReport) -> Iterator[Finding]:
    """A lost device ends every job that spans it; so does a driver that does not start on a host with device files."""
    here = Where(host=report.host)
    if report.missing and report.device_files:
        remedy = Remedy(text="After a driver upgrade the node must reboot, or reload the kernel modules.")
        yield fail("device.driver", report.missing, severity=Severity.CRITICAL, where=here, remedy=remedy)
        return
    wanted = report.expected
    if wanted is not None and len(report.devices) < wanted:
        yield fail(
            "device.missing",
            f"{report.host} has {len(report.devices)} device(s), {wanted} are expected",
            severity=Severity.CRITICAL,
            where=here,
            measured=len(report.devices),
            unit="devices",
            limit=wanted,
            limit_source="the step's parameter `expected`",
            remedy=Remedy(text="Look for Xid 79 in the kernel log.", commands=("dmesg -T | grep -i xid",)),
        )
    if report.missing:
        yield skip(f"not measured: {report.missing}", where=here)
        return
    yield from sweep(report, (), lambda d: _gone(report, d), lambda known: _all_answer(report, known))


def _gone(report: DeviceReport, device: Device) -> Finding | None:
    if device.lost is None:
        return None
    text = f"{device.label} ({device.id}, {device.bus_id or 'bus id unknown'}) is gone: {device.lost}"
    commands = ("dmesg -T | grep -i xid", "nvidia-smi -q -d ROW_REMAPPER,ECC")
    remedy = Remedy(text=DRAIN, commands=commands)
    return fail("device.lost", text, severity=Severity.CRITICAL, where=place(report, device), remedy=remedy)


def _all_answer(report: DeviceReport, known: list[Device]) -> dict[str, Any]:
    names = ", ".join(sorted({d.name or "unnamed" for d in known}))
    text = f"{len(known)} device(s) answer on {report.host}: {names}, driver {report.driver or 'unknown'}"
    return {"text": text, "measured": len(known), "unit": "devices", "limit": report.expected}


@check(
    "device.throttled",
    asks="Does heat or the power brake slow a device down?",
    plant=stub_plant("one of eight GPUs is too hot", "device.throttled", {"throttle": 3}, {"count": 8}),
)
def throttled(report: DeviceReport, limits: DeviceLimits) -> Iterator[Finding]:
    """Differences of the driver's cumulative counters over the window: an instant's reason bits miss what comes and
    goes. One slowed device holds up every rank that waits for it."""
    limit = limits.throttled_share

    def judge(device: Device) -> Finding | None:
        share = _throttled_share(report, device)
        if limit.judge(share).value == "PASS":
            return None
        told = fail if limit.judge(share).value == "FAIL" else warn
        clock = (
            f"; SM clock {device.sm_clock_mhz:.0f} of {device.sm_clock_max_mhz:.0f} MHz"
            if (device.sm_clock_mhz and device.sm_clock_max_mhz)
            else ""
        )
        heat = f", {device.temperature_c:.0f} C" if device.temperature_c is not None else ""
        seconds = max(device.thermal_s or 0.0, device.power_brake_s or 0.0)
        cause = "heat" if (device.thermal_s or 0.0) >= (device.power_brake_s or 0.0) else "the power brake"
        return told(
            "device.throttled",
            f"{cause} slowed {device.label} down for {seconds:.2f} of {report.window_s:.2f} s{clock}{heat}",
            where=place(report, device),
            measured=share,
            unit="share of the window",
            limit=limit.bound(share),
            limit_source=limit.source,
            remedy=Remedy(
                text="Look at fans, airflow and power supply of this node before anything in software.",
                commands=(f"nvidia-smi -i {device.index} -q -d PERFORMANCE,TEMPERATURE,CLOCK",),
            ),
        )

    yield from sweep(report, ("thermal_s",), judge, lambda known: _cool(report, known, limit))


def _throttled_share(report: DeviceReport, device: Device) -> float:
    return max(device.thermal_s or 0.0, device.power_brake_s or 0.0) / report.window_s


def _cool(report: DeviceReport, known: list[Device], limit: Limit) -> dict[str, Any]:
    worst = max(_throttled_share(report, d) for d in known)
    load = report.load or "no load of ours"
    text = f"no device was slowed down by heat or power brake in {report.window_s:.1f} s ({load})"
    kept = {"unit": "share of the window", "limit": limit.bound(worst), "limit_source": limit.source}
    return {"text": text, "measured": worst, **kept}


@check(
    "device.power-capped",
    asks="May every device draw the power that it was built for?",
    plant=stub_plant("one GPU's limit is set to 400 of 700 W", "device.power-capped", {"capped": 1}),
)
def power_capped(report: DeviceReport, limits: DeviceLimits) -> Iterator[Finding]:
    """Holds the enforced limit against the board's default. Reaching the default limit is normal for a busy device and
    no fault; a lowered one makes a device slower than its peers."""
    limit = limits.power_limit_share

    def judge(device: Device) -> Finding | None:
        assert device.power_limit_w is not None and device.power_default_limit_w is not None
        share = device.power_limit_w / device.power_default_limit_w if device.power_default_limit_w else 1.0
        if limit.judge(share).value == "PASS":
            return None
        capped = "" if device.power_cap_s is None else f"; it held the clocks down for {device.power_cap_s:.2f} s"
        drawn = "" if device.power_w is None else f", {device.power_w:.0f} W drawn"
        return warn(
            "device.power-capped",
            f"{device.label} is limited to {device.power_limit_w:.0f} of {device.power_default_limit_w:.0f} W"
            f"{drawn}{capped} of {report.window_s:.2f} s",
            where=place(report, device),
            measured=share,
            unit="share of the default limit",
            limit=limit.bound(share),
            limit_source=limit.source,
            remedy=Remedy(
                text="Unless somebody lowered it on purpose, set the default again.",
                commands=(f"nvidia-smi -i {device.index} -pl {device.power_default_limit_w:.0f}",),
            ),
        )

    def healthy(known: list[Device]) -> dict[str, Any]:
        least = min((d.power_limit_w or 0.0) / (d.power_default_limit_w or 1.0) for d in known)
        kept = {"unit": "share of the default limit", "limit": limit.bound(least), "limit_source": limit.source}
        return {"text": "every device may draw its board's default power", "measured": least, **kept}

    yield from sweep(report, ("power_limit_w", "power_default_limit_w"), judge, healthy)


@check(
    "device.persistence",
    asks="Does the driver stay loaded between jobs?",
    plant=stub_plant("persistence is off on one GPU", "device.persistence", {"persistence_off": 0}),
)
def persistence(report: DeviceReport) -> Iterator[Finding]:
    """Without persistence the driver starts anew for each job: seconds of start-up, and counters that begin at zero."""

    def judge(device: Device) -> Finding | None:
        if device.persistence:
            return None
        return warn(
            "device.persistence",
            f"persistence mode of {device.label} is off",
            severity=Severity.MINOR,
            where=place(report, device),
            measured="off",
            limit="on",
            limit_source="default: drivers of compute nodes stay loaded",
            remedy=Remedy(
                text="Enable the persistence daemon.", commands=("systemctl enable --now nvidia-persistenced",)
            ),
        )

    yield from sweep(
        report, ("persistence",), judge, lambda known: {"text": f"persistence is on for {len(known)} device(s)"}
    )


@check(
    "device.other-process",
    asks="Does anyone else use the devices?",
    plant=stub_plant("a foreign process holds memory", "device.other-process", {"other_pid": 4_000_000}),
)
def other_process(report: DeviceReport) -> Iterator[Finding]:
    """Processes that were there before our own load: they take memory, and time-share the device with the ranks."""

    def judge(device: Device) -> Finding | None:
        if not device.processes:
            return None
        who = ", ".join(
            f"pid {p.pid} ({p.name or 'not visible from here'}"
            + (f", {p.memory_bytes / 2**20:.0f} MiB)" if p.memory_bytes is not None else ")")
            for p in device.processes[:4]
        )
        return warn(
            "device.other-process",
            f"{device.label} is used by {len(device.processes)} other process(es): {who}",
            where=place(report, device),
            measured=len(device.processes),
            unit="processes",
            limit=0,
            limit_source="default: a device under test is ours alone",
            remedy=Remedy(text="Left-overs of an earlier job hold memory until they end; find whose they are."),
        )

    yield from sweep(
        report,
        ("processes",),
        judge,
        lambda known: {"text": f"nobody else uses the {len(known)} device(s)", "limit": 0},
    )


@check(
    "device.readable",
    asks="Does the driver answer quickly, and tell all that is asked?",
    plant=(
        stub_plant("one call takes 0.4 s", "device.slow-driver", {"slow": 1}),
        stub_plant("one reading is not permitted", "device.no-permission", {"deny": 0}),
    ),
)
def readable(report: DeviceReport, limits: DeviceLimits) -> Iterator[Finding]:
    """A slow answer is the first sign of a device that is about to be lost; a refused one hides what others check.
    What the device or an old driver does not have is listed, and is no fault."""
    limit = limits.call_s

    def healthy(known: list[Device]) -> dict[str, Any]:
        slowest = max((d.slowest.seconds for d in known if d.slowest), default=0.0)
        text = f"the slowest answer of the driver took {slowest * 1e3:.1f} ms"
        return {
            "text": text,
            "measured": slowest,
            "unit": "s",
            "limit": limit.bound(slowest),
            "limit_source": limit.source,
        }

    yield from sweep(report, (), lambda d: _reluctant(report, d, limit), healthy)
    lacking = sorted({f"{field} ({why})" for d in report.devices if not d.lost for field, why in d.absent.items()})
    if lacking:
        yield skip(f"not measured: {', '.join(lacking)}", where=Where(host=report.host))


def _reluctant(report: DeviceReport, device: Device, limit: Limit) -> Finding | None:
    """A finding for a device with a refused reading or a slow call."""
    took = device.slowest.seconds if device.slowest else 0.0
    refused = sorted(field for field, why in device.absent.items() if why == "no permission")
    if refused:
        text = f"{device.label} does not let this user read {', '.join(refused)}"
        remedy = Remedy(text="Run as a user whom the administrator lets read it, or leave these checks out.")
        where = place(report, device)
        return warn("device.no-permission", text, severity=Severity.MINOR, where=where, remedy=remedy)
    if limit.judge(took).value == "PASS" or device.slowest is None:
        return None
    commands = ("dmesg -T | grep -iE 'xid|aer'",)
    return warn(
        "device.slow-driver",
        f"{device.slowest.function} on {device.label} took {took:.2f} s",
        where=place(report, device),
        measured=took,
        unit="s",
        limit=limit.bound(took),
        limit_source=limit.source,
        remedy=Remedy(text="Look for Xid and PCIe errors in the kernel log.", commands=commands),
    )
