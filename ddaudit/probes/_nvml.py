"""Reading one GPU through NVML without trusting any call to exist, to be allowed, to be quick or to come back whole."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Gpu"]

NOT_SUPPORTED, NO_PERMISSION, INVALID_ARGUMENT, FUNCTION_NOT_FOUND = 3, 4, 2, 13
GONE = {15: "lost", 16: "in need of a reset"}
MAX_LINKS = 18
#: Field ids of cumulative clock event counters, in nanoseconds. 75 is the older name of the thermal one.
COUNTERS = {"thermal_s": (75, 269, 270), "power_brake_s": (271,), "power_cap_s": (74,)}
#: Drivers without field values count by policy: power 0, thermal 1.
POLICIES = {"thermal_s": 1, "power_cap_s": 0}
#: GPM metric ids; the values are percent.
GPM = {"gpm_sm_share": 2, "gpm_tensor_share": 5, "gpm_dram_share": 10}

Convert = Callable[[Any], Any]


class Gpu:
    """Collects what one device says into ``facts``, and into ``absent`` why a field has no value.

    A device that once answered that it is gone is not asked again. ``slowest`` is the longest call so far.
    """

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml, self.index = nvml, index
        self.facts: dict[str, Any] = {}
        self.absent: dict[str, str] = {}
        self.samples: dict[str, list[float]] = defaultdict(list)
        self.lost: str | None = None
        self.closed: str | None = None
        """Why no further call is made."""
        self.slowest: tuple[str, float] = ("", 0.0)
        self.handle: Any = None
        self.handle = self.ask("handle", "nvmlDeviceGetHandleByIndex", index)
        if self.handle is None and self.closed is None:
            self.closed = f"the driver gives no handle: {self.absent['handle']}"

    def ask(self, field: str, function: str, *args: Any, end: int | None = None) -> Any | None:
        """The call's answer, or None with the reason in ``absent``. ``end`` is an error code that ends a list."""
        if self.closed:
            self.absent.setdefault(field, self.closed)
            return None
        call = getattr(self.nvml, function, None)
        if call is None:
            self.absent[field] = f"this nvidia-ml-py has no {function}"
            return None
        given = args if self.handle is None else (self.handle, *args)
        began = time.perf_counter()
        try:
            return call(*given)
        except self.nvml.NVMLError as error:
            if error.value != end:
                self._refused(field, function, error)
            return None
        finally:
            seconds = time.perf_counter() - began
            if seconds > self.slowest[1]:
                self.slowest = (function, seconds)

    def _refused(self, field: str, function: str, error: Any) -> None:
        if error.value in GONE:
            self.lost = f"{function} says that it is {GONE[error.value]}"
            self.closed = f"the device is {GONE[error.value]}"
        self.absent[field] = {
            NOT_SUPPORTED: "not supported",
            NO_PERMISSION: "no permission",
            FUNCTION_NOT_FOUND: f"the driver has no {function}",
        }.get(error.value, str(error))

    def read(self, field: str, function: str, *args: Any, convert: Convert = float) -> None:
        """Sets a fact from one call."""
        value = self.ask(field, function, *args)
        if value is not None:
            self.facts[field] = convert(value)

    def sample(self, field: str, function: str, *args: Any, convert: Convert = float) -> None:
        """Adds one more value of a field that varies."""
        value = self.ask(field, function, *args)
        if value is not None:
            self.samples[field].append(convert(value))

    def temperature(self) -> None:
        """Adds a temperature, from the older call where the driver has no newer one."""
        before = len(self.samples["temperature_c"])
        self.sample("temperature_c", "nvmlDeviceGetTemperatureV", 0)
        if len(self.samples["temperature_c"]) == before:
            self.sample("temperature_c", "nvmlDeviceGetTemperature", 0)

    def counters(self) -> dict[str, float]:
        """Cumulative seconds slowed down by cause, and error counts; only what the driver gives."""
        found: dict[str, float] = {}
        wanted = [id for ids in COUNTERS.values() for id in ids]
        given = self.ask("thermal_s", "nvmlDeviceGetFieldValues", wanted)
        values = {f.fieldId: _whole(f) for f in given or () if f.nvmlReturn == 0}
        for field, ids in COUNTERS.items():
            known = [values[id] for id in ids if id in values]
            if known:
                found[field] = max(known) / 1e9
            elif field in POLICIES and (old := self.ask(field, "nvmlDeviceGetViolationStatus", POLICIES[field])):
                found[field] = old.violationTime / 1e9
            elif field not in POLICIES:
                self.absent.setdefault(field, "not supported")
        replays = self.ask("pcie_replays_delta", "nvmlDeviceGetPcieReplayCounter")
        if replays is not None:
            found["pcie_replays_delta"] = replays
        if (errors := self._link_errors()) is not None:
            found["link_errors_delta"] = errors
        return found

    def difference(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Sets counters to what they grew by; one that went backwards was reset in between and is not known."""
        for field in before.keys() & after.keys():
            grown = after[field] - before[field]
            if grown >= 0:
                self.facts[field] = grown if field.endswith("_s") else int(grown)
            else:
                self.absent[field] = "the counter was reset during the window"

    def links(self) -> None:
        """Sets the NVLink ports that are up and those that are not; none at all is "not supported"."""
        states: dict[int, bool] = {}
        for link in range(MAX_LINKS):
            state = self.ask("links_active", "nvmlDeviceGetNvLinkState", link, end=INVALID_ARGUMENT)
            if state is None:
                break
            states[link] = bool(state)
        if states:
            self.facts["links_active"] = tuple(n for n, up in states.items() if up)
            self.facts["links_inactive"] = tuple(n for n, up in states.items() if not up)

    def _link_errors(self) -> int | None:
        active: Sequence[int] = self.facts.get("links_active", ())
        if not active:
            self.absent.setdefault("link_errors_delta", "no NVLink port is up")
            return None
        counts = []
        for counter in range(self.nvml.NVML_NVLINK_ERROR_DL_CRC_DATA + 1):
            for link in active:
                count = self.ask("link_errors_delta", "nvmlDeviceGetNvLinkErrorCounter", link, counter)
                if count is None:
                    return None
                counts.append(int(count))
        return sum(counts)

    def gpm_sample(self) -> Any | None:
        """A sample of the GPM counters, where this device has them."""
        sample = None
        support = self.ask("gpm", "nvmlGpmQueryDeviceSupport")
        if support is not None and support.isSupportedDevice:
            try:
                sample = self.ask("gpm", "nvmlGpmSampleGet", self.nvml.nvmlGpmSampleAlloc())
            except self.nvml.NVMLError as error:
                self._refused("gpm", "nvmlGpmSampleAlloc", error)
        if sample is None:
            self._no_gpm()
        return sample

    def _no_gpm(self) -> None:
        for field in GPM:
            self.absent[field] = self.absent.get("gpm", "not supported")

    def gpm_between(self, first: Any, last: Any) -> None:
        """Sets the GPM shares (0 to 1) from two samples."""
        request = self.nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = self.nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        request.sample1, request.sample2 = first, last
        for slot, id in enumerate(GPM.values()):
            request.metrics[slot].metricId = id
        try:
            self.nvml.nvmlGpmMetricsGet(request)
        except self.nvml.NVMLError as error:
            self._refused("gpm", "nvmlGpmMetricsGet", error)
            self._no_gpm()
            return
        for slot, field in enumerate(GPM):
            if request.metrics[slot].nvmlReturn == 0:
                self.facts[field] = request.metrics[slot].value / 100
            else:
                self.absent[field] = "not supported"


def _whole(field: Any) -> int:
    """The number of a field value; 1 is the type code of a 32-bit one."""
    return int(field.value.uiVal if field.valueType == 1 else field.value.ullVal)
