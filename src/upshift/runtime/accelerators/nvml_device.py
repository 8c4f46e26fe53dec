"""One device of NVML's, read again and again: each value is checked, or None."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from typing import Any

import attrs
import pynvml

from upshift.runtime.accelerators.vendor import Reading

MOST_MEMORY = 1 << 46
"""Bytes. A device that says more is not believed."""

_REMEDIES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 is not there. On a host: install the driver. In a container: start it with "
        "its GPUs (docker run --gpus all), so that the driver's libraries come with them."
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the driver is installed but not loaded. Run `modprobe nvidia`, and look at `dmesg` if that fails."
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver's library and its kernel module have different versions: it was updated while it "
        "was loaded. Reboot the machine, or load the module again."
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "this user may not use the driver. Look at the permissions of /dev/nvidia*, often those of a "
        "group such as `video`."
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: "a GPU has fallen off the bus. Look at `dmesg` for Xid 79, and reboot.",
    pynvml.NVML_ERROR_UNKNOWN: (
        "the driver refuses without a reason. In a container this is often a cgroup whose device rules "
        "were taken back: start the container again."
    ),
}
GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
NEVER = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def text(ask: Callable[..., Any], *arguments: Any) -> str | None:
    """What the function says, if that is text."""
    try:
        return str(ask(*arguments)).strip() or None
    except (pynvml.NVMLError, ValueError):  # it says nothing, or no text
        return None


def number(ask: Callable[..., Any], *arguments: Any, most: int) -> int | None:
    """What the function says, if that is a number up to ``most``."""
    with contextlib.suppress(pynvml.NVMLError):
        value = int(ask(*arguments))
        if 0 <= value <= most:
            return value
    return None


def identifier(handle: Any) -> str:
    """The UUID of a device."""
    uuid = str(pynvml.nvmlDeviceGetUUID(handle))
    if not uuid.startswith(("GPU-", "MIG-")) or "," in uuid:
        raise ValueError(f"UUID {uuid!r}")
    return uuid


def memory(handle: Any) -> Any:
    """Total and used memory of a device, without what the driver keeps, where it tells that apart."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def reason(error: pynvml.NVMLError) -> str:
    """What an error means, and what to do about it, for people."""
    words = f"NVML: {str(error).rstrip('.')}"
    return f"{words}: {_REMEDIES[error.value]}" if error.value in _REMEDIES else words


_ALL_LINKS = 0xFFFFFFFF
"""Scope of a field that adds up all NVLinks of a device."""
_WHOLE_GPU = 0xFFFFFFFF
"""Instance id of an event that concerns no MIG instance."""


@attrs.define
class _Meter:
    """One value of a device; it is not asked again once the device has said that it has none."""

    name: str
    ask: Callable[[], float | int | None]
    most: float
    over: bool = False


@attrs.frozen
class _Counter:
    """A count of bytes as it was at the last reading."""

    value: int
    at: float


class _Utilization:
    """How busy a MIG instance is, from one call to the next: by NVML's GPU Performance Monitoring.

    GPUs have that from Hopper on. The utilization that NVML gives of a whole GPU is not told by instance.
    """

    def __init__(self, gpu: Any, instance: int) -> None:
        if not pynvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._gpu = gpu
        self._instance = instance
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = 1
        self._request.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
        self._last = pynvml.nvmlGpmSampleAlloc()
        self._next = pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmMigSampleGet(gpu, instance, self._last)

    def __call__(self) -> float | None:
        """Percent of the time since the call before; None: it does not tell this time."""
        pynvml.nvmlGpmMigSampleGet(self._gpu, self._instance, self._next)
        self._request.sample1, self._request.sample2 = self._last, self._next
        pynvml.nvmlGpmMetricsGet(self._request)
        self._last, self._next = self._next, self._last
        metric = self._request.metrics[0]
        return float(metric.value) if metric.nvmlReturn == pynvml.NVML_SUCCESS else None

    def close(self) -> None:
        """Give its memory back."""
        for sample in (self._last, self._next):
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)


class NvmlDevice:
    """A GPU or a MIG instance: what to ask of it, and what it said the last time."""

    def __init__(self, handle: Any, gpu: Any, instance: int | None) -> None:
        self.handle = handle
        self.instance = instance
        self._gpu = _address(gpu)
        self._xid: int | None = None
        self._xid_events = 0
        self._counters: dict[str, _Counter] = {}
        self._fields: dict[str, tuple[int, int, int]] = {}
        self._utilization: _Utilization | None = None
        n = pynvml
        self._meters = [
            _Meter("memory", lambda: int(memory(handle).used), MOST_MEMORY),
            _Meter("temperature", lambda: n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU), 200),
            _Meter("clock", lambda: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM), 20_000),
            _Meter("memory_clock", lambda: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_MEM), 50_000),
            _Meter(
                "ecc_errors",
                lambda: n.nvmlDeviceGetTotalEccErrors(
                    gpu, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC
                ),
                1 << 40,
            ),
        ]
        if instance is None:
            self._meters += [
                _Meter("busy", lambda: n.nvmlDeviceGetUtilizationRates(gpu).gpu, 100),
                _Meter("power", lambda: n.nvmlDeviceGetPowerUsage(gpu) / 1000, 10_000),
            ]
            self._fields = {  # name: field, scope, bytes in its unit
                "pcie_sent": (n.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0, 1),
                "pcie_received": (n.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0, 1),
                "nvlink_sent": (n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS, 1024),
                "nvlink_received": (n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS, 1024),
            }
        else:  # power and busses are not told by instance
            with contextlib.suppress(n.NVMLError):
                self._utilization = _Utilization(gpu, instance)
                self._meters.append(_Meter("busy", self._utilization, 100))

    def read(self, uuid: str) -> Reading:
        """What there is to know of it now; ``uuid`` is its own."""
        values: dict[str, Any] = {}
        worst: pynvml.NVMLError | None = None
        for meter in self._meters:
            if meter.over:
                continue
            try:
                value = meter.ask()
            except pynvml.NVMLError as error:
                if error.value in NEVER:
                    meter.over = True
                elif worst is None or error.value in GONE:
                    worst = error
                continue
            if value is not None and 0 <= value <= meter.most:
                values[meter.name] = value
        values |= {"uuid": uuid, "xid": self._xid, "xid_events": self._xid_events}
        if worst is not None and (len(values) == 3 or worst.value in GONE):
            return Reading(**values, problem=reason(worst))
        return Reading(**values, **self._rates(), processes=_processes(self.handle))

    def _rates(self) -> dict[str, Any]:
        """Bytes a second since the last reading, of counters that only grow."""
        if not self._fields:
            return {}
        try:
            asked = [field[:2] for field in self._fields.values()]
            values = pynvml.nvmlDeviceGetFieldValues(self.handle, asked)
        except pynvml.NVMLError:
            self._fields.clear()
            return {}
        now = time.monotonic()
        rates = {}
        for (name, (_, _, unit)), value in zip(list(self._fields.items()), values, strict=True):
            if value.nvmlReturn != pynvml.NVML_SUCCESS:
                if value.nvmlReturn in NEVER:
                    del self._fields[name]
                continue
            count = _count(value) * unit
            last = self._counters.get(name)
            self._counters[name] = _Counter(count, now)
            if last is not None and count >= last.value and now > last.at:
                rates[name] = round((count - last.value) / (now - last.at), 1)
        return rates

    def take(self, event: Any) -> None:
        """Keep an Xid event, if it is this device's."""
        own = event.gpuInstanceId in (_WHOLE_GPU, self.instance) or self.instance is None
        if own and _address(event.device) == self._gpu:  # a GPU that is lost does not tell its UUID
            self._xid = int(event.eventData)
            self._xid_events += 1

    def succeed(self, other: NvmlDevice) -> None:
        """Take the place of the card that was made of the same device before; or of itself."""
        if other is not self:
            self._xid, self._xid_events = other._xid, other._xid_events
            if other._utilization is not None:
                other._utilization.close()


def _address(handle: Any) -> int | None:
    """NVML has one handle for each device."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _count(value: Any) -> int:
    if value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(value.value.uiVal)
    return int(value.value.ullVal)


def _processes(handle: Any) -> dict[int, int | None]:
    """Memory by process. Those that only draw (a desktop) do not count."""
    found: dict[int, int | None] = {}
    for ask in (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    ):
        with contextlib.suppress(pynvml.NVMLError):
            for process in ask(handle):
                size = process.usedGpuMemory
                known = size is not None and 0 <= size <= MOST_MEMORY
                found[process.pid] = (found.get(process.pid) or 0) + size if known else found.get(process.pid)
    return found
