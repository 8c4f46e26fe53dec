"""NVML by way of nvidia-ml-py: which GPUs NVIDIA's driver has, readings of them, and events.

The library may hang, crash or talk nonsense, so nothing but the process of
:mod:`upshift.runtime.accelerators.agent` imports it. Source: 'NVML API Reference Guide', release 13.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pynvml

from upshift.model.spec.hardware import Device
from upshift.runtime.accelerators.nvml_device import (
    MOST_MEMORY,
    NvmlDevice,
    identifier,
    memory,
    number,
    reason,
    text,
)
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
        address = _address(handle)
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
                f"GPU {index} ({uuid}) has MIG mode enabled and no instance, so that nothing can use it. "
                f"Make some (`nvidia-smi mig -i {index} -cgi … -C`), or disable it "
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


def _address(handle: Any) -> str | None:
    """NVML writes the domain with eight digits, and sysfs with four."""
    said = text(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId)
    found = re.fullmatch(r"([0-9a-f]{1,8})(:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", (said or "").lower())
    return None if found is None else f"{int(found[1], 16):04x}{found[2]}"


def _cuda_version() -> str | None:
    """NVML gives 12040 for 12.4."""
    version = number(pynvml.nvmlSystemGetCudaDriverVersion_v2, most=1_000_000)
    return f"{version // 1000}.{version % 1000 // 10}" if version else None
