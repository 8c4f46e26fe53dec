"""What a request gets in a container, and how GPUs get there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upshift.backends.base import Offer
from upshift.backends.docker.offers import DeviceInjector, offer
from upshift.errors import BackendError
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.facts import is_rootless, limits
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Device, Hardware
from upshift.runtime.accelerators.vendor import Inventory

GB = 10**9
HERE = Hardware(cpu_count=4, memory=8 * GB, nodes=1)
DOCKER = ContainerEngine(
    name="docker", command=("docker",), version="28.1.0", platform="linux/amd64", buildkit=True
)
PODMAN = ContainerEngine(
    name="podman", command=("podman",), version="5.2.0", platform="linux/amd64", buildkit=True
)
WITH_RUNTIME = {"Runtimes": {"nvidia": {}, "runc": {}}}
ROOTLESS_V1 = {"host": {"security": {"rootless": True}, "cgroupVersion": "v1"}}
ROOTLESS_V2 = {
    "host": {"security": {"rootless": True}, "cgroupVersion": "v2", "cgroupControllers": ["memory", "pids"]}
}


def gpu(number: int) -> Device:
    return Device(vendor="nvidia", model="NVIDIA L4", kind="L4", uuid=f"GPU-{number}", index=number)


def offered(
    facts: dict[str, Any] | None = None,
    *,
    engine: ContainerEngine = DOCKER,
    gpus: int = 0,
    folder: str = "/nowhere",
    **request: Any,
) -> Offer:
    facts = {} if facts is None else facts
    inventory = Inventory(vendor="nvidia", devices=tuple(map(gpu, range(gpus))))
    injector = DeviceInjector(engine, facts, None, [folder])
    return offer(
        ResourceSettings(**request), HERE, [inventory], engine=engine, facts=facts, injector=injector
    )


def test_shared_memory_is_the_containers_own_and_part_of_its_memory() -> None:
    given = offered(memory="2GB", shared_memory="1GB")
    assert given.granted is not None and given.shortfalls == ()
    assert (given.granted.memory, given.granted.shared_memory) == (2 * GB, GB)
    (short,) = offered(memory="1GB", shared_memory="2GB").shortfalls
    assert (short.field, short.asked, short.got) == ("shared_memory", "2 GB of shared memory", "1 GB")
    assert offered(shared_memory="6GB").shortfalls == ()
    assert offered(shared_memory="9GB").shortfalls != ()


@pytest.mark.parametrize(
    ("facts", "engine", "can"),
    [
        ({}, DOCKER, {"cpu_count", "memory"}),
        ({"CpuCfsQuota": False, "MemoryLimit": True}, DOCKER, {"memory"}),
        ({"host": {"security": {"rootless": False}, "cgroupVersion": "v1"}}, PODMAN, {"cpu_count", "memory"}),
        (ROOTLESS_V1, PODMAN, set()),
        (ROOTLESS_V2, PODMAN, {"memory"}),
    ],
)
def test_a_limit_that_the_engine_cannot_set_is_not_promised(
    facts: dict[str, Any], engine: ContainerEngine, can: set[str]
) -> None:
    assert limits(facts) == can
    given = offered(facts, engine=engine, cpu_count=2, memory="1GB")
    assert {short.field for short in given.shortfalls} == {"cpu_count", "memory"} - can
    assert given.granted is not None
    assert given.granted.memory == (GB if "memory" in can else None)
    assert all("cannot limit it here" in short.why for short in given.shortfalls)


def test_rootless_engines_are_known() -> None:
    assert is_rootless(ROOTLESS_V1) and is_rootless({"SecurityOptions": ["name=seccomp", "name=rootless"]})
    assert not is_rootless({"SecurityOptions": ["name=seccomp,profile=default"]}) and not is_rootless({})


def test_gpus_are_granted_where_the_engine_has_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    given = offered(WITH_RUNTIME, gpus=2, gpu_count=2)
    assert given.granted is not None and len(given.granted.gpus or ()) == 2 and given.shortfalls == ()
    given = offered(gpus=2, gpu_count=2)
    assert given.granted is not None and given.granted.gpus == ()
    (short,) = given.shortfalls
    assert (short.asked, short.got) == ("2 GPUs", "none")
    assert "Docker 28.1.0 has no way to give a container a GPU" in short.why
    assert short.fix is not None and "nvidia-ctk runtime configure --runtime=docker" in short.fix


@pytest.mark.parametrize(
    "text",
    [
        'cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: "0"\n- name: GPU-1\n- name: all\n',
        '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": "GPU-1"}]}',
    ],
)
def test_cdi_names_a_device_by_its_uuid_or_else_its_number(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / ("nvidia.json" if text[0] == "{" else "nvidia.yaml")).write_text(text)
    (tmp_path / "other.yaml").write_text("kind: example.org/net\ndevices:\n- name: GPU-2\n")
    injector = DeviceInjector(PODMAN, {}, None, [str(tmp_path)])
    assert injector.way == "cdi"
    assert injector.arguments([gpu(0), gpu(1)]) == (
        *("--device", "nvidia.com/gpu=0"),
        *("--device", "nvidia.com/gpu=GPU-1"),
    )
    with pytest.raises(BackendError, match=r"no name for GPU 2 \(GPU-2\)") as caught:
        injector.arguments([gpu(2)])
    assert "nvidia-ctk cdi generate" in str(caught.value)
    assert DeviceInjector(DOCKER, {}, None, [str(tmp_path)]).way is None
    assert DeviceInjector(DOCKER, {"CDISpecDirs": [str(tmp_path)]}, None).way == "cdi"


def test_devices_of_other_vendors_are_refused_by_name() -> None:
    problem = DeviceInjector(DOCKER, WITH_RUNTIME, None).problem({"amd", "nvidia"})
    assert problem is not None and "not those of amd" in problem[0]
