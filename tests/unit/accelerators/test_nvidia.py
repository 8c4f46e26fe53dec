"""NVIDIA's devices, through the true nvidia-ml-py and a stand-in for the driver's library."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvml import FakeNvml
from upshift.accelerators.base import Inventory
from upshift.accelerators.discovery import discover

Make = Callable[..., FakeNvml]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Inventory]:
    """What this process discovers on a machine like that."""

    def find(machine: FakeNvml, *, timeout: float = 30, **variables: str) -> Inventory:
        for name, value in {**machine.environment(), **variables}.items():
            monkeypatch.setenv(name, value)
        (inventory,) = discover(timeout)
        return inventory

    return find


def test_two_gpus(fake_nvml: Make, found: Callable[..., Inventory]) -> None:
    machine = fake_nvml(2)
    inventory = found(machine)
    print(inventory)
    assert [device.uuid for device in inventory.devices] == machine.uuids
