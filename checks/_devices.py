"""What the device checks share: the sweep over a host's devices, and plants on a stub of the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ddaudit.api import Device, DeviceReport, Finding, Plant, Where, ok, skip

HEALTHY: Mapping[str, int] = {"count": 2}
WINDOW_S = 0.2


def stub_plant(name: str, expect: str, faults: Mapping[str, int], twin: Mapping[str, int] = HEALTHY) -> Plant:
    """A plant on the stub driver: ``faults`` against ``twin``, in a short window."""
    return Plant(
        name,
        expect,
        probe="devices",
        params={"window_s": WINDOW_S, "interval_s": 0.05, "stub": dict(twin)},
        planted={"stub": {**twin, **faults}},
        types="stub driver",
    )


def place(report: DeviceReport, device: Device, key: str | None = None) -> Where:
    """Host and UUID of a device."""
    return Where(host=report.host, device=device.id, key=key)


def sweep(
    report: DeviceReport,
    fields: Sequence[str],
    judge: Callable[[Device], Finding | None],
    healthy: Callable[[list[Device]], Mapping[str, Any]],
) -> Iterator[Finding]:
    """Judges every device that has all ``fields``: the bad ones one by one, the rest in one PASS made by ``healthy``.

    Devices without a field are told together as not measured, with the driver's reasons.
    """
    if report.missing:
        yield skip(f"not measured: {report.missing}", where=Where(host=report.host))
        return
    known = [d for d in report.devices if all(getattr(d, field) is not None for field in fields)]
    bad = [finding for device in known if (finding := judge(device)) is not None]
    yield from bad
    if known and not bad:
        yield ok(where=Where(host=report.host), **healthy(known))
    unknown = [d for d in report.devices if d not in known]
    if unknown:
        yield skip(f"not measured on {_names(unknown)}: {_why(unknown, fields)}", where=Where(host=report.host))
    elif not report.devices:
        yield skip("not measured: the driver runs and lists no device", where=Where(host=report.host))


def _names(devices: Sequence[Device]) -> str:
    return ", ".join(d.label for d in devices[:4]) + (f" and {len(devices) - 4} more" if len(devices) > 4 else "")


def _why(devices: Sequence[Device], fields: Sequence[str]) -> str:
    reasons = {
        f"{field.replace('_', ' ')}: {device.absent.get(field, 'no value was read')}"
        for device in devices
        for field in fields
        if getattr(device, field) is None
    }
    return "; ".join(sorted(reasons))
