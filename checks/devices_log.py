"""What the kernel log says of the GPUs: errors that a driver reports once and forgets."""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.api import (
    DeviceReport,
    Finding,
    Plant,
    Remedy,
    Severity,
    Where,
    Xid,
    check,
    fail,
    ok,
    skip,
    warn,
)

from ._devices import WINDOW_S

#: Numbers that mean a broken device or link whoever was using it. Source: NVIDIA, "XID Errors" (catalogue of the GPU
#: deployment documentation). Others (13, 31, 43, 45, ...) are mostly a program's own doing.
BROKEN = {
    46: "the GPU stopped processing",
    48: "an uncorrectable memory error",
    54: "the auxiliary power cable is not connected",
    62: "the GPU's own micro-controller halted",
    64: "a faulty memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU fell off the bus",
    95: "a memory error that was not contained",
    119: "the GPU's system processor does not answer",
    120: "an error in the GPU's system processor",
    140: "an unrecovered memory error",
}
WEAK = {
    63: "a faulty memory row was remapped",
    92: "many corrected memory errors",
    94: "a memory error that ended one program",
}
BUS = "pci:0000:11:00"
RECORDS = (
    "6,100,1000000,-;eth0: link is up",
    f"4,101,2000000,-;NVRM: Xid ({BUS.upper()}): 43, pid=7, name=python, Ch 00000008",
)
FELL_OFF = (
    f"3,102,3000000,-;NVRM: Xid ({BUS.upper()}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)


@check(
    "device.xid",
    asks="Did the kernel log report a broken device since the host was booted?",
    plant=Plant(
        "the log tells of a GPU that fell off the bus",
        "device.xid",
        probe="devices",
        params={"window_s": WINDOW_S, "interval_s": 0.05, "stub": {"count": 2}, "kernel_log": RECORDS},
        planted={"kernel_log": (*RECORDS, FELL_OFF)},
        types="stub driver",
    ),
)
def xid(report: DeviceReport) -> Iterator[Finding]:
    """A device that came back after a reset looks healthy; the log still knows. Numbers that a program causes by itself
    are counted and accuse nobody."""
    here = Where(host=report.host)
    if report.missing:
        yield skip(f"not measured: {report.missing}", where=here)
        return
    if report.xids is None:
        yield skip(f"not measured: {report.xids_missing or 'the kernel log was not read'}", where=here)
        return
    bad = [x for x in report.xids if x.code in BROKEN or x.code in WEAK]
    yield from (_told(report, one) for one in bad)
    if not bad:
        others = ", ".join(f"{x.code} ({x.count} times)" for x in report.xids[:8])
        text = "no Xid of a broken device in the kernel log since the host was booted"
        yield ok(text + (f"; of programs: {others}" if others else ""), where=here, measured=0, limit=0, unit="Xids")


def _told(report: DeviceReport, one: Xid) -> Finding:
    device = next((d for d in report.devices if _slot(d.bus_id) == _slot(one.bus_id)), None)
    name = f"{device.label} ({device.id})" if device else f"the device at {one.bus_id}"
    since = "" if one.last_s is None else f", last {one.last_s:.0f} s after boot"
    told, severity = (fail, Severity.CRITICAL) if one.code in BROKEN else (warn, Severity.MAJOR)
    meaning = BROKEN.get(one.code) or WEAK[one.code]
    return told(
        "device.xid",
        f"the kernel log has Xid {one.code} ({meaning}) of {name}, {one.count} time(s){since}",
        severity=severity,
        where=Where(host=report.host, device=device.id if device else one.bus_id, key=f"Xid {one.code}"),
        measured=one.count,
        unit="times since boot",
        limit=0,
        limit_source="NVIDIA's catalogue of Xid errors",
        remedy=Remedy(
            text="Drain the node, reset the device; when it comes again, hand it in for repair.",
            commands=("dmesg -T | grep -i xid", "nvidia-smi -q -d ECC,ROW_REMAPPER"),
        ),
    )


def _slot(bus_id: str | None) -> tuple[int, ...]:
    """Domain, bus and device, however many digits the writer gives the domain."""
    parts = (bus_id or "").lower().partition(".")[0].removeprefix("pci:").split(":")
    try:
        return tuple(int(p, 16) for p in parts)
    except ValueError:
        return ()
