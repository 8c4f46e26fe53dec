"""A step in this very process gets its devices, and who has found them leaves nothing in it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import attrs
import pytest

from nvml import FakeNvml
from upshift.backends import inline
from upshift.config import ResourceSettings
from upshift.model.spec import Code, Device, EntryPoint, Hardware, TaskId, TaskSpec
from upshift.model.spec.hardware import SUPERVISOR, enforced
from upshift.runtime import proc

SPEC = TaskSpec(
    task=TaskId(run="run", step="train"),
    attempt=1,
    pipeline="p",
    entry=EntryPoint(module="os", qualname="getpid"),
    code=Code(project="."),
    store="",
    request=ResourceSettings(gpu_count=1),
)


def open_descriptors() -> dict[str, str]:
    gc.collect()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of the listing
            continue
    return found


def test_nothing_is_left_of_who_has_found_the_devices(
    fake_nvml: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = fake_nvml(1)
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    gpu = Device(vendor="nvidia", model=machine.gpus[0].model, uuid=None)
    spec = attrs.evolve(SPEC, granted=Hardware(gpus=(gpu,), details=enforced(SUPERVISOR)))
    before, children = open_descriptors(), set(proc.children(os.getpid()))
    for _ in range(2):
        grant, failure = inline._devices(spec)
        assert failure is None and grant is not None and grant.devices is not None
        assert [device.uuid for device in grant.devices] == machine.uuids
        grant.give_back()
    assert set(proc.children(os.getpid())) == children  # a zombie is one, too
    assert open_descriptors() == before
