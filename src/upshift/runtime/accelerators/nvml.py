"""NVML by way of nvidia-ml-py: which GPUs NVIDIA's driver has, and readings of each, checked or None.

The library may hang, crash or talk nonsense, so nothing but the process of
:mod:`upshift.runtime.accelerators.agent` imports it. Source: 'NVML API Reference Guide', release 13.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import pynvml

from upshift.model.spec.hardware import Device
from upshift.runtime.accelerators.vendor import Reading

_MOST_DEVICES = 256
_MOST_EVENTS = 64
"""Xid events taken at one reading; the others wait for the next."""


class Unusable(Exception):
    """NVML says nothing at all; the text says why, and what to do."""


@attrs.frozen(kw_only=True)
class FoundGpu:
    """A GPU, and what can be handed out of it: itself, or its MIG instances."""

    index: int  # its number, in the order of PCI bus ids
    uuid: str  # of the whole GPU
    minor: int | None  # number of its device file; None: it has none
    address: str | None  # that on the bus, as sysfs has it: ``0000:3b:00.0``
    devices: tuple[Device, ...]  # empty if it is to be cut into MIG instances, and is not


class Nvml:
    """NVML, initialized."""

    def __init__(self) -> None:
        self._cards: dict[str, NvmlDevice] = {}
        self._events: Any = None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise Unusable(reason(error)) from None
        self.driver: str | None = text(pynvml.nvmlSystemGetDriverVersion)
        self.cuda = _cuda_version()

    # -- finding ----------------------------------------------------------------------------------

    def find(self) -> tuple[list[FoundGpu], list[str]]:
        """All GPUs, and what could not be found out of them."""
        problems: list[str] = []
        found: list[FoundGpu] = []
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise Unusable(reason(error)) from None
        if not 0 <= count <= _MOST_DEVICES:
            raise Unusable(f"NVML counts {count} GPUs, which is not believed")
        known, self._cards = self._cards, {}
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.append(self._gpu(index, handle, problems))
            except pynvml.NVMLError as error:
                problems.append(f"GPU {index} is left out: {reason(error)}")
            except ValueError as error:
                problems.append(f"GPU {index} is left out, since what NVML says of it is invalid: {error}")
        for uuid, card in known.items():  # one that is lost goes on telling so
            self._cards.setdefault(uuid, card).succeed(card)
        self._listen()
        return found, problems

    def _gpu(self, index: int, handle: Any, problems: list[str]) -> FoundGpu:
        uuid = identifier(handle)
        if uuid in self._cards:
            raise ValueError(f"its UUID {uuid} is another's too")
        whole = Device(
            vendor="nvidia",
            model=text(pynvml.nvmlDeviceGetName, handle),
            memory=_memory_size(handle),
            uuid=uuid,
            index=index,
            compute_capability=_compute_capability(handle),
        )
        minor = number(pynvml.nvmlDeviceGetMinorNumber, handle, most=1 << 20)
        address = _pci_address(handle)
        self._cards[uuid] = NvmlDevice(handle, handle, None)
        if not _is_cut(handle):
            return FoundGpu(index=index, uuid=uuid, minor=minor, address=address, devices=(whole,))
        slices = []
        for instance in _instances(handle):
            name = identifier(instance)
            place = number(pynvml.nvmlDeviceGetGpuInstanceId, instance, most=1 << 16)
            self._cards[name] = NvmlDevice(instance, handle, -1 if place is None else place)
            slices.append(
                attrs.evolve(
                    whole,
                    uuid=name,
                    memory=_memory_size(instance),
                    partition=_profile(instance),
                    parent=uuid,
                )
            )
        if not slices:
            problems.append(
                f"GPU {index} ({uuid}) has MIG mode enabled and no instance, and cannot be used. "
                f"Create some (`nvidia-smi mig -i {index} -cgi … -C`), or disable it "
                f"(`nvidia-smi -i {index} -mig 0`)."
            )
        return FoundGpu(index=index, uuid=uuid, minor=minor, address=address, devices=tuple(slices))

    def links(self, devices: Sequence[Device]) -> tuple[tuple[str, str], ...]:
        """Pairs of whole GPUs that NVLink joins, directly or through a switch."""
        whole = [
            d.uuid for d in devices if d.uuid is not None and d.partition is None and d.uuid in self._cards
        ]
        pairs = []
        for place, one in enumerate(whole):
            for other in whole[place + 1 :]:
                with contextlib.suppress(pynvml.NVMLError):
                    status = pynvml.nvmlDeviceGetP2PStatus(
                        self._cards[one].handle, self._cards[other].handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK
                    )
                    if status == pynvml.NVML_P2P_STATUS_OK:
                        pairs.append((one, other))
        return tuple(pairs)

    # -- reading ----------------------------------------------------------------------------------

    def read(self, devices: Sequence[Device]) -> list[Reading]:
        """Each device, in this order."""
        self._take_events()
        return [self._reading(device.uuid or "") for device in devices]

    def _reading(self, uuid: str) -> Reading:
        card = self._cards.get(uuid)
        if card is None:
            return Reading(uuid=uuid, problem="NVML does not list it")
        return card.read(uuid)

    # -- events -----------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Ask to be told of Xid events: errors that the driver reports of a GPU."""
        with contextlib.suppress(pynvml.NVMLError):
            if self._events is not None:
                pynvml.nvmlEventSetFree(self._events)
                self._events = None
            self._events = pynvml.nvmlEventSetCreate()
        for card in self._cards.values():
            if self._events is not None and card.instance is None:
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlDeviceRegisterEvents(
                        card.handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                    )

    def _take_events(self) -> None:
        if self._events is None:
            return
        with contextlib.suppress(pynvml.NVMLError):  # in the end: that there are no more
            for _ in range(_MOST_EVENTS):
                event = pynvml.nvmlEventSetWait(self._events, 0)
                for card in self._cards.values():
                    card.take(event)


def _memory_size(handle: Any) -> int | None:
    with contextlib.suppress(pynvml.NVMLError):
        total = int(memory(handle).total)
        if 0 < total <= MOST_MEMORY:
            return total
    return None


def _is_cut(handle: Any) -> bool:
    with contextlib.suppress(pynvml.NVMLError):
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
    return False


def _instances(handle: Any) -> Iterator[Any]:
    for place in range(number(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle, most=_MOST_DEVICES) or 0):
        with contextlib.suppress(pynvml.NVMLError):  # no instance is in this place
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)


def _profile(instance: Any) -> str | None:
    """``1g.10gb``, as the instance's name ends: ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""
    name = text(pynvml.nvmlDeviceGetName, instance) or ""
    return name.rpartition(" MIG ")[2] or None if " MIG " in name else None


def _compute_capability(handle: Any) -> str | None:
    with contextlib.suppress(pynvml.NVMLError):
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        if 0 < major < 100 and 0 <= minor < 10:
            return f"{major}.{minor}"
    return None


def _pci_address(handle: Any) -> str | None:
    """NVML writes the domain with eight digits, and sysfs with four."""
    said = text(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId)
    found = re.fullmatch(r"([0-9a-f]{1,8})(:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", (said or "").lower())
    return None if found is None else f"{int(found[1], 16):04x}{found[2]}"


def _cuda_version() -> str | None:
    """NVML gives 12040 for 12.4."""
    version = number(pynvml.nvmlSystemGetCudaDriverVersion_v2, most=1_000_000)
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


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
        self._gpu = _pointer(gpu)
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
        if own and _pointer(event.device) == self._gpu:  # a GPU that is lost does not tell its UUID
            self._xid = int(event.eventData)
            self._xid_events += 1

    def succeed(self, other: NvmlDevice) -> None:
        """Take the place of the card that was made of the same device before; or of itself."""
        if other is not self:
            self._xid, self._xid_events = other._xid, other._xid_events
            if other._utilization is not None:
                other._utilization.close()


def _pointer(handle: Any) -> int | None:
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
