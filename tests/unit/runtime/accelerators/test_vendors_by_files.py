"""The vendors that are found by device files and sysfs, on trees that look like such machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import trees
from upshift.model.spec.hardware import Device
from upshift.runtime.accelerators import vendors
from upshift.runtime.accelerators.amd import Amd
from upshift.runtime.accelerators.gaudi import Gaudi
from upshift.runtime.accelerators.intel import Intel
from upshift.runtime.accelerators.neuron import Neuron
from upshift.runtime.accelerators.nvidia import Nvidia
from upshift.runtime.accelerators.tpu import Tpu
from upshift.runtime.accelerators.vendor import Inventory, Reading, Vendor

VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES"),
    *("TPU_VISIBLE_CHIPS", "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "HABANA_VISIBLE_MODULES"),
    *("NEURON_LOGICAL_NC_CONFIG", "JAX_PLATFORMS", "PJRT_DEVICE"),
)
GIB = 1 << 30


@pytest.fixture(autouse=True)
def nothing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UPSHIFT_DEVICE_ROOT", str(tmp_path))
    return tmp_path


def uuids(inventory: Inventory) -> list[str | None]:
    return [device.uuid for device in inventory.devices]


def test_a_machine_without_device_files_has_no_vendor(root: Path) -> None:
    assert vendors.present() == ()


@pytest.mark.parametrize(
    ("make", "vendor", "addresses"),
    [
        (trees.amd, Amd, ["0000:03:00.0", "0000:04:00.0"]),
        (lambda root: trees.intel(root, ("0x0bda", "0x0bda")), Intel, ["0000:3a:00.0", "0000:3b:00.0"]),
        (trees.gaudi, Gaudi, ["0000:19:00.0", "0000:1a:00.0"]),
        (lambda root: trees.gaudi(root, old=True), Gaudi, ["0000:19:00.0", "0000:1a:00.0"]),
        (lambda root: trees.tpu(root, 2), Tpu, ["0000:00:04.0", "0000:00:05.0"]),
    ],
)
def test_the_numa_node_of_a_device_is_what_its_folder_on_the_bus_says(
    root: Path, make: Callable[[Path], None], vendor: type[Vendor], addresses: list[str]
) -> None:
    make(root)
    trees.numa(root, {}, dict(zip(addresses, (1, -1), strict=True)))
    assert [device.numa_node for device in vendor().discover(root).devices] == [1, None]


# -- AMD ------------------------------------------------------------------------------------------


def test_amd_gpus_are_found_by_the_kernels_topology(root: Path) -> None:
    trees.amd(root, 2)
    assert [vendor.name for vendor in vendors.present()] == ["amd"]
    inventory = Amd().discover(root)
    assert inventory.problems == ()
    assert inventory.driver == "6.10.5"
    first, second = inventory.devices
    assert (first.model, first.memory) == ("AMD Instinct MI300X OAM", 192 * GIB)
    assert (first.compute_capability, first.index, second.index) == ("gfx942", 0, 1)
    assert uuids(inventory) == ["GPU-deadbeef00000000", "GPU-deadbeef00000001"]
    assert inventory.links == (("GPU-deadbeef00000000", "GPU-deadbeef00000001"),)


@pytest.mark.parametrize(
    ("target", "architecture"), [(90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100")]
)
def test_amds_architecture_is_what_the_compiler_calls_it(root: Path, target: int, architecture: str) -> None:
    trees.amd(root, 1, target=target)
    assert Amd().discover(root).devices[0].compute_capability == architecture


def test_graphics_inside_an_amd_cpu_are_not_handed_out(root: Path) -> None:
    trees.amd(root, 1, memory=512 << 20)
    assert Amd().discover(root).devices == ()


def test_amd_gpus_of_another_container_are_left_out(root: Path) -> None:
    trees.amd(root, 4, forbidden=[0, 2])
    inventory = Amd().discover(root)
    assert uuids(inventory) == ["GPU-deadbeef00000001", "GPU-deadbeef00000003"]
    assert [device.index for device in inventory.devices] == [0, 1]  # as ROCm counts here


def test_an_amd_gpu_whose_file_is_missing_is_a_problem(root: Path) -> None:
    trees.amd(root, 2)
    trees.remove(root / "dev/dri/renderD129")
    inventory = Amd().discover(root)
    assert len(inventory.devices) == 1
    assert inventory.problems == (
        "a GPU cannot be used: /dev/dri/renderD129 is not there: it was not passed into this container",
    )


@pytest.mark.parametrize(
    ("variables", "left"),
    [
        ({"ROCR_VISIBLE_DEVICES": "1,3"}, [1, 3]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-deadbeef00000002"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "0"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, []),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "0,9,1"}, [0]),
    ],
)
def test_amd_gpus_that_this_process_may_not_see_are_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], left: list[int]
) -> None:
    trees.amd(root, 4)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert uuids(Amd().discover(root)) == [f"GPU-deadbeef0000000{number}" for number in left]


def test_amd_gpus_are_read(root: Path) -> None:
    trees.amd(root, 2)
    amd = Amd()
    readings = amd.read(root, amd.discover(root).devices)
    assert readings[1] == Reading(
        uuid="GPU-deadbeef00000001",
        busy=63,
        memory=5 * GIB,
        power=412,
        temperature=51,
        clock=2100,
        memory_clock=1300,
        ecc_errors=1,
        processes={4242: GIB},
    )


def test_a_process_sees_the_amd_gpus_that_it_was_given(root: Path) -> None:
    trees.amd(root, 4)
    devices = Amd().discover(root).devices
    assert Amd().environment(devices[2:]) == {
        "ROCR_VISIBLE_DEVICES": "GPU-deadbeef00000002,GPU-deadbeef00000003",
        "HIP_VISIBLE_DEVICES": "0,1",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }


def test_an_amd_gpu_without_an_id_goes_by_its_number(root: Path) -> None:
    trees.amd(root, 2, unique=False)
    devices = Amd().discover(root).devices
    assert [device.uuid for device in devices] == ["amd-0000:03:00.0", "amd-0000:04:00.0"]
    assert Amd().environment(devices[1:])["ROCR_VISIBLE_DEVICES"] == "1"


# -- Neuron ---------------------------------------------------------------------------------------


def test_neuron_devices_are_handed_out_with_all_their_cores(root: Path) -> None:
    trees.neuron(root, 16)
    assert [vendor.name for vendor in vendors.present()] == ["neuron"]
    inventory = Neuron().discover(root)
    assert (len(inventory.devices), inventory.driver) == (16, "2.21.37.0")
    assert inventory.devices[3].model == "Trainium1"
    assert Neuron().environment(inventory.devices[3:5]) == {"NEURON_RT_VISIBLE_CORES": "6,7,8,9"}


def test_cores_that_the_runtime_takes_for_one_count_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.neuron(root, 2, model="Trainium2", architecture="NCv3", cores=8)
    devices = Neuron().discover(root).devices
    assert Neuron().environment(devices[1:]) == {"NEURON_RT_VISIBLE_CORES": "4,5,6,7"}
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    devices = Neuron().discover(root).devices
    assert Neuron().environment(devices[1:]) == {"NEURON_RT_VISIBLE_CORES": "8,9,10,11,12,13,14,15"}


def test_neuron_cores_of_this_process_alone_count(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.neuron(root, 4)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "2-4")
    inventory = Neuron().discover(root)
    assert uuids(inventory) == ["neuron1"]
    assert "neuron2 is left out" in inventory.problems[0]


def test_neuron_devices_are_read(root: Path) -> None:
    trees.neuron(root, 2)
    devices = Neuron().discover(root).devices
    assert Neuron().read(root, devices)[1] == Reading(uuid="neuron1", memory=2 * GIB, ecc_errors=1)


# -- TPU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "model", "uuid"),
    [
        ("0x005e", "TPU v4", "tpu-accel1"),
        ("0x0063", "TPU v5e", "tpu-vfio-1"),
        ("0x006f", "TPU v6e", "tpu-vfio-1"),
    ],
)
def test_tpu_chips_are_found_by_their_files(root: Path, device: str, model: str, uuid: str) -> None:
    trees.tpu(root, 4, device=device)
    assert [vendor.name for vendor in vendors.present()] == ["tpu"]
    devices = Tpu().discover(root).devices
    assert len(devices) == 4
    assert (devices[1].model, devices[1].uuid) == (model, uuid)


def test_chips_of_the_host_that_are_not_in_the_container_do_not_count(root: Path) -> None:
    trees.tpu(root, 8, here=2)
    assert uuids(Tpu().discover(root)) == ["tpu-vfio-0", "tpu-vfio-1"]


def test_other_devices_that_a_virtual_machine_may_use_are_no_tpus(root: Path) -> None:
    trees.write(root, {"dev/vfio/12": None})
    trees.pci(root, "0000:01:00.0", vendor="0x10de", device="0x2330")
    assert Tpu().discover(root) == Inventory(vendor="tpu")


def test_some_of_the_chips_are_arranged_and_all_of_them_are_as_they_are(root: Path) -> None:
    trees.tpu(root, 8)
    devices = Tpu().discover(root).devices
    assert Tpu().environment(devices[4:]) == {
        "TPU_VISIBLE_CHIPS": "4,5,6,7",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }
    assert Tpu().environment(devices) == {"TPU_VISIBLE_CHIPS": "0,1,2,3,4,5,6,7"}


def test_without_chips_nobody_looks_for_them(root: Path) -> None:
    assert Tpu().environment(()) == {"TPU_VISIBLE_CHIPS": ""}
    trees.tpu(root, 4)
    variables = vendors.environment(())
    assert (variables["JAX_PLATFORMS"], variables["PJRT_DEVICE"]) == ("cpu", "CPU")


def test_a_gpu_that_was_granted_beside_chips_is_used(root: Path) -> None:
    trees.tpu(root, 4)
    gpu = Device(vendor="nvidia", uuid="GPU-1", index=0)
    assert not {"JAX_PLATFORMS", "PJRT_DEVICE"} & set(vendors.environment([gpu]))


def test_nobody_is_kept_from_chips_that_are_not_there(root: Path) -> None:
    trees.write(root, {"dev/vfio/12": None, "dev/vfio/vfio": None})
    trees.pci(root, "0000:00:04.0", vendor="0x1ae0", device="0x0042")  # the network card of Google's machines
    assert Tpu().present(root)
    assert not {"JAX_PLATFORMS", "PJRT_DEVICE"} & set(vendors.environment(()))


@pytest.mark.parametrize(
    ("said", "stays"), [("cuda", True), ("cpu", True), ("", False), ("tpu,cpu", False), ("TPU", False)]
)
def test_what_the_user_says_stays_where_it_leaves_out_the_chips(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: str, stays: bool
) -> None:
    trees.tpu(root, 4)
    assert ("JAX_PLATFORMS" in vendors.environment((), {"JAX_PLATFORMS": said})) is not stays
    monkeypatch.setenv("PJRT_DEVICE", said)
    assert ("PJRT_DEVICE" in vendors.environment(())) is not stays


# -- Intel ----------------------------------------------------------------------------------------


def test_intel_cards_are_found_and_graphics_inside_the_cpu_only_counted(root: Path) -> None:
    trees.intel(root, ["0x0bda", "0xe20b"], integrated=True)
    assert [vendor.name for vendor in vendors.present()] == ["intel"]
    devices = Intel().discover(root).devices
    assert [device.model for device in devices] == ["Intel Data Center GPU Max 1100", "Intel Arc B580"]
    assert (devices[0].memory, devices[0].uuid) == (48 * GIB, "intel-0000:3a:00.0")
    assert Intel().environment(devices[:1]) == {"ZE_AFFINITY_MASK": "1", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}


def test_a_laptop_with_graphics_of_intel_has_no_accelerator(root: Path) -> None:
    trees.intel(root, [], integrated=True)
    assert vendors.present() == ()


def test_each_tile_of_an_intel_gpu_has_a_number(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.intel(root, ["0x0bd5", "0x0bd5"], tiles=2)
    devices = Intel().discover(root).devices
    assert Intel().environment(devices[1:])["ZE_AFFINITY_MASK"] == "2,3"
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE")
    assert Intel().environment(devices[1:])["ZE_AFFINITY_MASK"] == "1"


@pytest.mark.parametrize(("mask", "left"), [("0,1", [0]), ("2-3", [1]), ("1,2", []), ("0-3", [0, 1])])
def test_intel_gpus_that_this_process_sees_as_a_whole_count(
    root: Path, monkeypatch: pytest.MonkeyPatch, mask: str, left: list[int]
) -> None:
    trees.intel(root, ["0x0bd5", "0x0bd5"], tiles=2)
    monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
    assert [device.index for device in Intel().discover(root).devices] == left


def test_intel_gpus_are_read_and_power_is_energy_over_time(root: Path) -> None:
    trees.intel(root)
    intel = Intel()
    devices = intel.discover(root).devices
    assert intel.read(root, devices) == [Reading(uuid="intel-0000:3a:00.0", temperature=44, clock=1550)]
    trees.write(root, {"sys/bus/pci/devices/0000:3a:00.0/hwmon/hwmon5/energy1_input": 3_000_000})
    (reading,) = intel.read(root, devices)
    assert reading.power is not None
    assert reading.power > 0


# -- Gaudi ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
def test_gaudis_are_found_under_old_and_new_drivers(root: Path, old: bool) -> None:
    trees.gaudi(root, 2, old=old)
    assert [vendor.name for vendor in vendors.present()] == ["habana"]
    gaudi = Gaudi()
    devices = gaudi.discover(root).devices
    assert [device.model for device in devices] == ["Gaudi2", "Gaudi2"]
    assert gaudi.environment(devices[:1]) == {"HABANA_VISIBLE_MODULES": "0" if old else "1"}
    assert gaudi.read(root, devices)[0] == Reading(
        uuid="habana-0000:19:00.0", power=95, temperature=33, clock=1400
    )


def test_a_gaudi_that_is_not_well_has_a_problem(root: Path) -> None:
    trees.gaudi(root, 1, status="Malfunction")
    gaudi = Gaudi()
    (reading,) = gaudi.read(root, gaudi.discover(root).devices)
    assert reading.problem == "it is malfunction"


def test_an_npu_of_a_laptop_is_no_gaudi(root: Path) -> None:
    device = trees.pci(root, "0000:00:0b.0", vendor="0x8086", device="0x7d1d")
    trees.write(root, {"dev/accel/accel0": None})
    trees.link(root / "sys/class/accel/accel0/device", device)
    assert vendors.present() == ()


# -- all of them ----------------------------------------------------------------------------------


def test_a_process_that_was_given_nothing_sees_nothing(root: Path) -> None:
    assert vendors.environment(()) == {
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "-1",
        "HIP_VISIBLE_DEVICES": "-1",
        "NEURON_RT_VISIBLE_CORES": "65535",
        "TPU_VISIBLE_CHIPS": "",
        "HABANA_VISIBLE_MODULES": "255",
        "ZE_AFFINITY_MASK": "65535",
    }


def test_devices_of_one_vendor_hide_those_of_the_others(root: Path) -> None:
    trees.amd(root, 1)
    variables = vendors.environment(Amd().discover(root).devices)
    assert variables["ROCR_VISIBLE_DEVICES"] == "GPU-deadbeef00000000"
    assert variables["CUDA_VISIBLE_DEVICES"] == "0"  # which HIP reads, too
    assert variables["ZE_AFFINITY_MASK"] == "65535"
    assert Nvidia().present(root) is False
