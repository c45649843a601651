"""The devices probe against a stand-in for the driver: every fault is recorded, none ends the probe."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddaudit import packs
from ddaudit.context import ProbeContext
from ddaudit.engine.judge import judge
from ddaudit.errors import LaunchProblem
from ddaudit.evidence import DeviceReport, EventWriter, read_streams
from ddaudit.findings import Finding, Status
from ddaudit.probes import _gpu_load
from ddaudit.probes._nvml_stub import load_stub
from ddaudit.probes.devices import DevicesParams, _xids, devices
from ddaudit.runbook.model import PlannedStep

REGISTRY = packs.load(entries=False, environment=False).registry
STEP = PlannedStep(id="s", title="t", source="book.md:3", runbook="book")


def run(folder: Path, params: dict[str, Any]) -> None:
    with EventWriter(folder / "events" / "node1-0.jsonl") as events:
        deadline = time.monotonic() + 60
        devices(ProbeContext("s", 0, 1, 0, "node1", "cpu", folder, folder, events, deadline), DevicesParams(**params))


def report(folder: Path, stub: dict[str, int] | None, **params: Any) -> DeviceReport:
    """Runs the probe in a fork, since a loaded library stays loaded."""
    given = {"window_s": 0.05, "interval_s": 0.02, "stub": stub, **params}
    child = multiprocessing.get_context("fork").Process(target=run, args=(folder, given))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    found = DeviceReport.assemble(read_streams(folder / "events"))
    assert found is not None
    return found


def judged(found: DeviceReport) -> list[Finding]:
    return [f for spec in REGISTRY.select(["device.*"]) for f in judge(spec, {"devices": found}, step=STEP)]


def bad(found: DeviceReport) -> set[str]:
    assert not [f for f in judged(found) if f.status is Status.ERROR]
    return {f.id for f in judged(found) if f.bad}


def test_a_healthy_host_has_identity_state_and_no_complaint(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 8})
    assert bad(found) == set() and len(found.devices) == 8 and found.driver == "580.00.stub" and found.cuda == "13.0"
    last = found.devices[7]
    assert last.uuid == "GPU-00000000-0000-0000-0000-000000000007" and last.bus_id == "00000000:17:00.0"
    assert last.serial == "13200000007" and last.power_w == 640 and last.power_limit_w == 700
    assert (last.pcie_gen, last.pcie_width, last.persistence, last.ecc_enabled) == (5, 16, True, True)
    assert last.temperature_c == 52 and len(last.links_active or ()) == 18 and last.processes == ()


def test_what_a_driver_does_not_support_has_a_reason_and_is_not_zero(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 1, "no_links": 1})
    (device,) = found.devices
    assert device.mig is None and device.absent["mig"] == "not supported"
    assert device.links_active is None and device.absent["links_active"] == "not supported"
    assert device.gpm_sm_share is None and device.link_errors_delta is None
    assert bad(found) == set()
    assert any("mig (not supported)" in f.text for f in judged(found) if f.status is Status.SKIP)


def test_utilisation_counters_are_read_where_the_device_has_them(tmp_path: Path) -> None:
    device = report(tmp_path, {"count": 2, "gpm": 1}).devices[1]
    assert (device.gpm_sm_share, device.gpm_tensor_share) == (0.93, 0.41)
    assert device.gpm_dram_share is None and device.absent["gpm_dram_share"] == "not supported"


def test_an_old_driver_is_read_through_its_older_calls(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 2, "old_driver": 1, "throttle": 1})
    cool, hot = found.devices
    assert (cool.temperature_c, hot.temperature_c) == (52, 91)
    assert cool.thermal_s == 0.0 and hot.thermal_s is not None and hot.thermal_s > 0
    assert hot.absent["event_reasons"] == "the driver has no nvmlDeviceGetCurrentClocksEventReasons"
    assert bad(found) == {"device.throttled"}


def test_a_device_lost_in_the_window_keeps_what_was_read_before(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 4, "lost": 2, "lost_after": 120})
    assert [d.lost is not None for d in found.devices] == [False, False, True, False]
    gone = found.devices[2]
    assert gone.uuid is not None and gone.ecc_uncorrected is None
    assert gone.absent["ecc_uncorrected"] == "the device is lost"
    (finding,) = [f for f in judged(found) if f.bad]
    assert finding.id == "device.lost" and finding.where.device == gone.uuid and gone.uuid in finding.text


def test_a_device_lost_from_the_start_is_named_by_its_index(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 2, "lost": 0})
    assert found.devices[0].id == "GPU 0" and bad(found) == {"device.lost"}


@pytest.mark.parametrize(
    ("faults", "id", "index"),
    [
        ({"throttle": 3}, "device.throttled", 3),
        ({"brake": 5}, "device.throttled", 5),
        ({"capped": 1}, "device.power-capped", 1),
        ({"ecc": 7}, "device.ecc", 7),
        ({"remap_pending": 0}, "device.row-remap-pending", 0),
        ({"remap_failed": 6}, "device.row-remap-failed", 6),
        ({"pcie_gen": 2}, "device.pcie-degraded", 2),
        ({"pcie_width": 4}, "device.pcie-degraded", 4),
        ({"link_down": 1}, "device.nvlink-down", 1),
        ({"link_errors": 2}, "device.nvlink-errors", 2),
        ({"persistence_off": 3}, "device.persistence", 3),
        ({"slow": 4, "slow_ms": 300}, "device.slow-driver", 4),
        ({"deny": 5}, "device.no-permission", 5),
    ],
)
def test_of_eight_devices_the_faulty_one_is_named(tmp_path: Path, faults: dict[str, int], id: str, index: int) -> None:
    found = report(tmp_path, {"count": 8, **faults})
    (finding,) = [f for f in judged(found) if f.bad]
    assert (finding.id, finding.where.device) == (id, found.devices[index].uuid)
    assert finding.remedy is not None


def test_a_refused_reading_is_not_measured_and_nothing_else_is_lost(tmp_path: Path) -> None:
    denied, free = report(tmp_path, {"count": 2, "deny": 0}).devices
    assert denied.power_w is None and denied.absent["power_w"] == "no permission"
    assert denied.sm_clock_mhz == free.sm_clock_mhz and free.power_w == 640


def test_corrected_errors_are_told_and_are_no_fault(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 2, "corrected": 0})
    assert bad(found) == set() and any("70000 corrected" in f.text for f in judged(found))


def test_the_link_of_an_idle_device_is_not_judged(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 2, "idle": 1})
    assert [d.pcie_gen for d in found.devices] == [1, 1] and bad(found) == set()
    (link,) = [f for f in judged(found) if f.check == "device.pcie-degraded"]
    assert link.status is Status.SKIP and "idle link" in link.text


def test_another_process_is_named_with_its_memory(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        found = report(tmp_path, {"count": 2, "other_pid": other.pid})
        other.kill()
    (finding,) = [f for f in judged(found) if f.bad]
    assert finding.id == "device.other-process" and f"pid {other.pid} (sleep, 1024 MiB)" in finding.text


def test_a_process_of_another_container_is_counted_without_a_name(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 2, "other_pid": 2**22 + 1})
    assert bad(found) == {"device.other-process"}
    assert [p.name for p in found.devices[0].processes or ()] == [None]


def test_this_process_and_its_ancestors_are_not_others(tmp_path: Path) -> None:
    assert bad(report(tmp_path, {"count": 2, "other_pid": os.getpid()})) == set()


def test_fewer_devices_than_expected_are_a_fault(tmp_path: Path) -> None:
    assert bad(report(tmp_path, {"count": 7}, expected=8)) == {"device.missing"}


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="this host has a driver")
def test_without_a_driver_every_check_skips_with_one_text_that_says_what_was_looked_for(tmp_path: Path) -> None:
    findings = judged(report(tmp_path, None))
    assert {f.status for f in findings} == {Status.SKIP}
    (text,) = {f.text for f in findings}
    assert "libnvidia-ml.so.1" in text and "no /dev/nvidia<N>" in text


def test_a_driver_that_does_not_start_on_a_host_with_devices_is_a_fault(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 4, "init_error": 18})
    assert bad(found) == {"device.driver"} and found.devices == ()


def test_without_a_compiler_the_stub_says_so(tmp_path: Path) -> None:
    with pytest.raises(LaunchProblem, match="gcc"):
        load_stub(tmp_path, {"count": 1}, str(tmp_path))


def test_a_plant_without_a_compiler_is_not_measured_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = judged(report(tmp_path, {"throttle": 0}))
    assert {f.status for f in findings} == {Status.SKIP} and all("'gcc' is not on PATH" in f.text for f in findings)


def test_an_idle_link_that_was_not_read_is_no_narrow_one(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 1, "idle": 1})
    unread = found.devices[0].model_copy(update={"pcie_width": None, "absent": {"pcie_width": "no permission"}})
    assert "device.pcie-degraded" not in bad(found.model_copy(update={"devices": (unread,)}))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_an_unknown_fault_is_refused(tmp_path: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=unknown_fault, args=(tmp_path,))
    child.start()
    child.join(30)
    assert child.exitcode == 3


def unknown_fault(folder: Path) -> None:
    try:
        load_stub(folder, {"no_such_fault": 1}, "/usr/bin:/bin")
    except LaunchProblem as problem:
        sys.exit(3 if "no_such_fault" in str(problem) else 4)


def test_a_report_survives_the_store(tmp_path: Path) -> None:
    found = report(tmp_path, {"count": 2, "deny": 0})
    assert DeviceReport.restore(*found.dump()) == found


def test_the_load_ends_at_once_where_torch_sees_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _gpu_load.main(60.0) == 1


def logged(tmp_path: Path, *texts: str, **params: Any) -> list[Finding]:
    records = [f"4,{number},{number}000000,-;{text}" for number, text in enumerate(texts, start=1)]
    found = report(tmp_path, {"count": 2}, kernel_log=records, **params)
    return list(judge(REGISTRY.checks["device.xid"], {"devices": found}, step=STEP))


def test_an_xid_of_a_broken_device_names_it_by_its_place_on_the_bus(tmp_path: Path) -> None:
    fell = "NVRM: Xid (PCI:0000:11:00): 79, pid=9, GPU has fallen off the bus."
    (found,) = logged(tmp_path, "usb 1-1: new device", fell, fell)
    assert (found.id, found.status, found.measured) == ("device.xid", Status.FAIL, 2)
    assert found.where.device == "GPU-00000000-0000-0000-0000-000000000001" and "last 3 s after boot" in found.text


def test_an_xid_of_a_device_that_is_gone_is_told_by_its_address(tmp_path: Path) -> None:
    (found,) = logged(tmp_path, "NVRM: Xid (PCI:0000:9d:00): 94, pid=9, Contained: SM")
    assert (found.status, found.where.device) == (Status.WARN, "pci:0000:9d:00".removeprefix("pci:"))


def test_xids_that_programs_cause_accuse_no_device(tmp_path: Path) -> None:
    (found,) = logged(tmp_path, *(f"NVRM: Xid (PCI:0000:10:00): {code}, pid=9" for code in (13, 31, 43, 43, 45)))
    assert found.status is Status.PASS and "43 (2 times)" in found.text


def test_a_kernel_log_that_may_not_be_read_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Any:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setitem(_xids.__globals__, "kernel_log", refused)
    found = _xids(DevicesParams())
    (told,) = judge(REGISTRY.checks["device.xid"], {"devices": DeviceReport(host="n", **found)}, step=STEP)
    assert told.status is Status.SKIP and "/dev/kmsg: Operation not permitted" in told.text
