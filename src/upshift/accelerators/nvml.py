"""NVML by way of nvidia-ml-py: what the driver says of its GPUs, each value checked or None.

The library may hang, crash or talk nonsense, so nothing but the process of
:mod:`upshift.accelerators.agent` imports this module. Source: 'NVML API Reference Guide', release 13.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import pynvml

from upshift.accelerators.base import Reading
from upshift.spec.hardware import Device

_MOST_DEVICES = 256
_MOST_EVENTS = 64
"""Xid events taken at one reading; the others wait for the next."""
_MOST_MEMORY = 1 << 46
"""Bytes. A device that says more is not believed."""
_WHOLE_GPU = 0xFFFFFFFF
"""Instance id of an event that concerns no MIG instance."""
_ALL_LINKS = 0xFFFFFFFF
"""Scope of a field that adds up all NVLinks of a device."""

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
_GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_NEVER = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


class Unusable(Exception):
    """NVML says nothing at all; the text says why, and what to do."""


@attrs.frozen(kw_only=True)
class Found:
    """A GPU, and what can be handed out of it: itself, or its MIG instances.

    Parameters
    ----------
    index
        Its number, in the order of PCI bus ids.
    uuid
        Of the whole GPU.
    minor
        Number of its device file; None: it has none.
    devices
        Empty if it is to be cut into MIG instances, and is not.
    """

    index: int
    uuid: str
    minor: int | None
    devices: tuple[Device, ...]


@attrs.define
class _Meter:
    """One value of a device; it is not asked again once the device has said that it has none."""

    name: str
    ask: Callable[[], float | int | None]
    most: float
    over: bool = False


@attrs.define
class _Counter:
    """A count of bytes as it was at the last reading, by the name of the rate that is made of it."""

    value: int
    at: float


@attrs.define
class _Card:
    handle: Any
    gpu: str
    instance: int | None
    meters: list[_Meter]
    fields: dict[str, tuple[int, int, int]]
    counters: dict[str, _Counter] = attrs.field(factory=dict)
    xid: int | None = None


class Nvml:
    """The library, initialized.

    Raises
    ------
    Unusable
        It is not there, or says nothing.
    """

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._events: Any = None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise Unusable(_reason(error)) from None
        self.driver: str | None = _text(pynvml.nvmlSystemGetDriverVersion)
        self.cuda = _cuda_version()

    # -- finding ----------------------------------------------------------------------------------

    def find(self) -> tuple[list[Found], list[str]]:
        """All GPUs, and what could not be found out of them.

        Raises
        ------
        Unusable
            The library cannot even count them.
        """
        problems: list[str] = []
        found: list[Found] = []
        self._cards.clear()
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise Unusable(_reason(error)) from None
        if not 0 <= count <= _MOST_DEVICES:
            raise Unusable(f"NVML counts {count} GPUs, which is not believed")
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.append(self._gpu(index, handle, problems))
            except pynvml.NVMLError as error:
                problems.append(f"GPU {index} is left out: {_reason(error)}")
            except ValueError as error:
                problems.append(
                    f"GPU {index} is left out, since what NVML says of it makes no sense: {error}"
                )
        self._listen()
        return found, problems

    def _gpu(self, index: int, handle: Any, problems: list[str]) -> Found:
        uuid = _identifier(handle)
        if uuid in self._cards:
            raise ValueError(f"its UUID {uuid} is another's too")
        whole = Device(
            vendor="nvidia",
            model=_text(pynvml.nvmlDeviceGetName, handle),
            memory=_memory_size(handle),
            uuid=uuid,
            index=index,
            compute_capability=_compute_capability(handle),
        )
        minor = _number(pynvml.nvmlDeviceGetMinorNumber, handle, most=1 << 20)
        self._cards[uuid] = _card(handle, handle, uuid, None)
        if not _is_cut(handle):
            return Found(index=index, uuid=uuid, minor=minor, devices=(whole,))
        slices = []
        for instance in _instances(handle):
            name = _identifier(instance)
            self._cards[name] = _card(
                instance, handle, uuid, _number(pynvml.nvmlDeviceGetGpuInstanceId, instance, most=1 << 16)
            )
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
                f"GPU {index} ({uuid}) has MIG mode enabled and no instance, so that nothing can use it. "
                f"Make some (`nvidia-smi mig -i {index} -cgi … -C`), or disable it "
                f"(`nvidia-smi -i {index} -mig 0`)."
            )
        return Found(index=index, uuid=uuid, minor=minor, devices=tuple(slices))

    def links(self, devices: Sequence[Device]) -> tuple[tuple[str, str], ...]:
        """Pairs of whole GPUs that NVLink joins, directly or through a switch."""
        whole = [
            d.uuid for d in devices if d.uuid is not None and d.partition is None and d.uuid in self._cards
        ]
        pairs = []
        for number, one in enumerate(whole):
            for other in whole[number + 1 :]:
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
            return Reading(uuid=uuid, problem="NVML does not list it any more")
        values: dict[str, Any] = {}
        worst: pynvml.NVMLError | None = None
        for meter in card.meters:
            if meter.over:
                continue
            try:
                value = meter.ask()
            except pynvml.NVMLError as error:
                if error.value in _NEVER:
                    meter.over = True
                elif worst is None or error.value in _GONE:
                    worst = error
                continue
            if value is not None and 0 <= value <= meter.most:
                values[meter.name] = value
        xid, card.xid = card.xid, None
        if worst is not None and (not values or worst.value in _GONE):
            return Reading(uuid=uuid, xid=xid, problem=_reason(worst))
        return Reading(uuid=uuid, xid=xid, processes=_processes(card.handle), **values, **_rates(card))

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
        with contextlib.suppress(pynvml.NVMLError, ValueError):  # in the end: that there are no more
            for _ in range(_MOST_EVENTS):
                event = pynvml.nvmlEventSetWait(self._events, 0)
                gpu = _identifier(event.device)
                for card in self._cards.values():
                    concerned = event.gpuInstanceId in (_WHOLE_GPU, card.instance) or card.instance is None
                    if card.gpu == gpu and concerned:
                        card.xid = int(event.eventData)


def _card(handle: Any, gpu: Any, uuid: str, instance: int | None) -> _Card:
    """What to ask of a device: of a MIG instance what is its own, and what its GPU has as a whole."""
    n = pynvml
    meters = [
        _Meter("memory", lambda: _memory(handle).used, _MOST_MEMORY),
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
    fields: dict[str, tuple[int, int, int]] = {}
    if instance is None:  # power and busses are not told by instance
        meters += [
            _Meter("busy", lambda: n.nvmlDeviceGetUtilizationRates(gpu).gpu, 100),
            _Meter("power", lambda: n.nvmlDeviceGetPowerUsage(gpu) / 1000, 10_000),
        ]
        fields = {  # name: field, scope, bytes in its unit
            "pcie_sent": (n.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0, 1),
            "pcie_received": (n.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0, 1),
            "nvlink_sent": (n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS, 1024),
            "nvlink_received": (n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS, 1024),
        }
    return _Card(handle=handle, gpu=uuid, instance=instance, meters=meters, fields=fields)


def _rates(card: _Card) -> dict[str, Any]:
    """Bytes a second since the last reading, of counters that only grow."""
    if not card.fields:
        return {}
    try:
        values = pynvml.nvmlDeviceGetFieldValues(card.handle, [f[:2] for f in card.fields.values()])
    except pynvml.NVMLError:
        card.fields.clear()
        return {}
    now = time.monotonic()
    rates = {}
    for (name, (_, _, unit)), value in zip(list(card.fields.items()), values, strict=True):
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            if value.nvmlReturn in _NEVER:
                del card.fields[name]
            continue
        count = _field(value) * unit
        last = card.counters.get(name)
        card.counters[name] = _Counter(count, now)
        if last is not None and count >= last.value and now > last.at:
            rates[name] = round((count - last.value) / (now - last.at), 1)
    return rates


def _field(value: Any) -> int:
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
                known = size is not None and 0 <= size <= _MOST_MEMORY
                found[process.pid] = (found.get(process.pid) or 0) + size if known else found.get(process.pid)
    return found


def _memory(handle: Any) -> Any:
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _memory_size(handle: Any) -> int | None:
    with contextlib.suppress(pynvml.NVMLError):
        total = int(_memory(handle).total)
        if 0 < total <= _MOST_MEMORY:
            return total
    return None


def _is_cut(handle: Any) -> bool:
    with contextlib.suppress(pynvml.NVMLError):
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
    return False


def _instances(handle: Any) -> Iterator[Any]:
    for number in range(_number(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle, most=_MOST_DEVICES) or 0):
        with contextlib.suppress(pynvml.NVMLError):  # no instance has this number
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)


def _profile(instance: Any) -> str | None:
    """``1g.10gb``, as the instance's name ends: ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""
    name = _text(pynvml.nvmlDeviceGetName, instance) or ""
    return name.rpartition(" MIG ")[2] or None if " MIG " in name else None


def _compute_capability(handle: Any) -> str | None:
    with contextlib.suppress(pynvml.NVMLError):
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        if 0 < major < 100 and 0 <= minor < 10:
            return f"{major}.{minor}"
    return None


def _cuda_version() -> str | None:
    """NVML gives 12040 for 12.4."""
    version = _number(pynvml.nvmlSystemGetCudaDriverVersion_v2, most=1_000_000)
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def _identifier(handle: Any) -> str:
    uuid = str(pynvml.nvmlDeviceGetUUID(handle))
    if not uuid.startswith(("GPU-", "MIG-")) or "," in uuid:
        raise ValueError(f"UUID {uuid!r}")
    return uuid


def _text(ask: Callable[..., Any], *arguments: Any) -> str | None:
    try:
        return str(ask(*arguments)).strip() or None
    except (pynvml.NVMLError, ValueError):  # it says nothing, or no text
        return None


def _number(ask: Callable[..., Any], *arguments: Any, most: int) -> int | None:
    with contextlib.suppress(pynvml.NVMLError):
        value = int(ask(*arguments))
        if 0 <= value <= most:
            return value
    return None


def _reason(error: pynvml.NVMLError) -> str:
    return f"NVML: {error}: {_REMEDIES[error.value]}" if error.value in _REMEDIES else f"NVML: {error}"
