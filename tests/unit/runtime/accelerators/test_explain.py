"""Each cause of a framework that sees too little is told from the others, and has its own remedy."""

from __future__ import annotations

import attrs
import pytest

from upshift.model.spec import Device, Framework
from upshift.runtime.accelerators.evidence import CudaDriver, DeviceFile, Evidence
from upshift.runtime.accelerators.explain import expected, explain, falls_short

H100 = Device(vendor="nvidia", model="NVIDIA H100", uuid="GPU-1", index=0, compute_capability="9.0")
V100 = attrs.evolve(H100, model="Tesla V100", compute_capability="7.0")
RTX_5090 = attrs.evolve(H100, model="RTX 5090", compute_capability="12.0")
MI300X = Device(vendor="amd", model="MI300X", compute_capability="gfx942")
SLICE = attrs.evolve(H100, partition="1g.10gb", uuid="MIG-1", parent="GPU-1")

MODERN = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
LEGACY = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
TORCH = Framework(
    name="torch", version="2.13.0+cu130", built_for="cuda 13.0", devices=0, architectures=MODERN
)
TORCH_LEGACY = attrs.evolve(TORCH, version="2.6.0+cu126", built_for="cuda 12.6", architectures=LEGACY)
CPU_TORCH = Framework(name="torch", version="2.13.0+cpu", devices=0)

FILES = tuple(DeviceFile(path=p) for p in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"))
WELL = CudaDriver(library="580.65.06", code=0, cuda="13.0", capabilities=("9.0",))
NOTHING_WRONG = Evidence(
    granted=(H100,),
    framework=TORCH,
    files=FILES,
    kernel_driver="580.65.06",
    driver=WELL,
    intended={"CUDA_VISIBLE_DEVICES": "GPU-1"},
    visible={"CUDA_VISIBLE_DEVICES": "GPU-1"},
)


def given(**changes: object) -> Evidence:
    """Evidence of a machine on which nothing is wrong but what is given."""
    return attrs.evolve(NOTHING_WRONG, **changes)


def without(*missing: str) -> tuple[DeviceFile, ...]:
    return tuple(attrs.evolve(f, problem="missing") if f.path in missing else f for f in FILES)


CASES = {
    "a wheel for CPUs": (
        given(framework=CPU_TORCH),
        "cpu-only",
        "PyTorch 2.13.0+cpu is built for CPUs only: it cannot use the GPU granted",
        "pip install --force-reinstall 'torch==2.13.*' --index-url https://download.pytorch.org/whl/cu126",
    ),
    "a wheel for CPUs, and a GPU that needs a newer CUDA": (
        given(framework=CPU_TORCH, granted=(RTX_5090,)),
        "cpu-only",
        "built for CPUs only",
        "whl/cu130",
    ),
    "tensorflow for CPUs": (
        given(framework=Framework(name="tensorflow", version="2.18.0", devices=0)),
        "cpu-only",
        "TensorFlow 2.18.0 is built for CPUs only",
        "pip install --upgrade 'tensorflow[and-cuda]'",
    ),
    "jax for CPUs, and a new driver": (
        given(framework=Framework(name="jax", version="0.8.1", devices=0)),
        "cpu-only",
        "JAX 0.8.1 is built for CPUs only",
        "pip install --upgrade 'jax[cuda13]'",
    ),
    "jax for CPUs, and an older driver": (
        given(
            framework=Framework(name="jax", version="0.8.1", devices=0),
            driver=attrs.evolve(WELL, cuda="12.4"),
        ),
        "cpu-only",
        "JAX 0.8.1 is built for CPUs only",
        "pip install --upgrade 'jax[cuda12]'",
    ),
    "a wheel for CUDA, and an AMD GPU": (
        given(granted=(MI300X,), visible={}, intended={}),
        "other-platform",
        "PyTorch 2.13.0+cu130 is built for cuda 13.0, and what was granted is of AMD: MI300X",
        "Install a build of PyTorch for ROCm",
    ),
    "hidden by the step itself": (
        given(visible={"CUDA_VISIBLE_DEVICES": ""}),
        "hidden",
        "CUDA_VISIBLE_DEVICES= hides devices (the step started with CUDA_VISIBLE_DEVICES=GPU-1)",
        "Leave CUDA_VISIBLE_DEVICES alone",
    ),
    "hidden by the shell": (
        given(granted=(H100, H100), intended={}, visible={"CUDA_VISIBLE_DEVICES": "0"}),
        "hidden",
        "CUDA_VISIBLE_DEVICES=0 hides devices: PyTorch 2.13.0+cu130 sees none of the 2 GPUs granted",
        "Leave CUDA_VISIBLE_DEVICES alone",
    ),
    "hidden by a number below zero": (
        given(intended={}, visible={"CUDA_VISIBLE_DEVICES": "-1,0"}),
        "hidden",
        "CUDA_VISIBLE_DEVICES=-1,0 hides devices",
        "in the shell",
    ),
    "not passed into Docker": (
        given(files=without("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"), container="Docker"),
        "devices",
        "the devices were not passed into this Docker container: there is no /dev/nvidiactl, /dev/nvidia-uvm",
        "docker run --gpus all",
    ),
    "not passed into Apptainer": (
        given(files=without("/dev/nvidia0"), container="Apptainer"),
        "devices",
        "the devices were not passed into this Apptainer container",
        "apptainer run --nv",
    ),
    "not asked for by the pod": (
        given(files=without("/dev/nvidia0"), container="Kubernetes"),
        "devices",
        "the devices were not passed into this pod",
        "resources.limits nvidia.com/gpu",
    ),
    "no driver in the kernel": (
        given(files=without("/dev/nvidiactl"), kernel_driver=None),
        "devices",
        "there is no /dev/nvidiactl on this machine",
        "load its kernel module: nvidia",
    ),
    "a device file that nothing has made": (
        given(files=without("/dev/nvidia-uvm")),
        "devices",
        "there is no /dev/nvidia-uvm on this machine",
        "sudo modprobe nvidia-uvm, or sudo nvidia-modprobe -u",
    ),
    "the same, where only the file of the module says that it is loaded": (
        given(files=without("/dev/nvidia-uvm"), kernel_driver=None),
        "devices",
        "there is no /dev/nvidia-uvm on this machine",
        "sudo modprobe nvidia-uvm",
    ),
    "a device file of the module, and none of a device": (
        given(files=without("/dev/nvidia0", "/dev/nvidia-uvm")),
        "devices",
        "there is no /dev/nvidia-uvm, /dev/nvidia0 on this machine",
        "sudo nvidia-modprobe -u -c=0 makes the files",
    ),
    "a wheel for CPUs, and slices": (
        given(framework=CPU_TORCH, granted=(H100, SLICE, SLICE)),
        "cpu-only",
        "it cannot use the GPU and 2 slices granted",
        "pip install",
    ),
    "a device file of another group": (
        given(
            files=(
                DeviceFile(path="/dev/nvidia0", problem="Permission denied", owner="crw-rw---- root:video"),
            )
        ),
        "permissions",
        "/dev/nvidia0 cannot be opened: Permission denied (crw-rw---- root:video)",
        "sudo usermod -aG video $USER",
    ),
    "a device file that a cgroup forbids": (
        given(
            files=(DeviceFile(path="/dev/nvidia0", problem="Operation not permitted"),), container="Podman"
        ),
        "permissions",
        "/dev/nvidia0 cannot be opened: Operation not permitted",
        "podman run --device nvidia.com/gpu=all",
    ),
    "no fabric manager": (
        given(
            driver=CudaDriver(
                library="580.65.06", code=802, problem="CUDA_ERROR_SYSTEM_NOT_READY", cuda="13.0"
            )
        ),
        "not-ready",
        "the NVIDIA driver is not ready (CUDA_ERROR_SYSTEM_NOT_READY)",
        "nvidia-fabricmanager",
    ),
    "a driver updated without a restart": (
        given(driver=CudaDriver(library="590.44.01", code=803, problem="mismatch", cuda="13.1")),
        "mismatch",
        "different versions: 580.65.06 is loaded, and the library is of 590.44.01",
        "restart the machine",
    ),
    "a driver library in the image": (
        given(
            driver=CudaDriver(library="unknown", code=803, problem="mismatch", cuda="13.1"),
            container="Docker",
        ),
        "mismatch",
        "the NVIDIA driver's kernel module and its library are of different versions",
        "take libcuda.so.1 and cuda-compat out of the image",
    ),
    "no driver library": (
        given(driver=CudaDriver(problem="libcuda.so.1: cannot open shared object file")),
        "no-libraries",
        "there is no libcuda.so.1, the driver's library, in this environment",
        "ldconfig",
    ),
    "no driver library in a container": (
        given(driver=CudaDriver(problem="libcuda.so.1: cannot open shared object file"), container="Docker"),
        "no-libraries",
        "there is no libcuda.so.1, the driver's library, in this Docker container",
        "NVIDIA_DRIVER_CAPABILITIES must hold compute",
    ),
    "the stub of the toolkit": (
        given(driver=CudaDriver(library="unknown", code=34, problem="CUDA_ERROR_STUB_LIBRARY")),
        "no-libraries",
        "there is only a stub of libcuda.so.1",
        "user libraries",
    ),
    "an image without the libraries of CUDA": (
        given(
            framework=Framework(
                name="tensorflow",
                version="2.18.0",
                built_for="cuda 12.5",
                devices=0,
                problem="Cannot dlopen some GPU libraries.",
            )
        ),
        "no-libraries",
        "TensorFlow 2.18.0 does not find the CUDA libraries that it needs: Cannot dlopen some GPU libraries.",
        "tensorflow[and-cuda]",
    ),
    "a CUDA that is too new for the driver": (
        given(
            kernel_driver="535.161.08",
            driver=CudaDriver(library="535.161.08", code=0, cuda="12.2", capabilities=("9.0",)),
        ),
        "old-driver",
        "PyTorch 2.13.0+cu130 is built for CUDA 13.0, and the NVIDIA driver 535.161.08 runs CUDA up to 12.2",
        "whl/cu126. Or update the NVIDIA driver to 580 or newer.",
    ),
    "a driver that was not asked, and is too old": (
        given(kernel_driver="535.161.08", driver=None),
        "old-driver",
        "the NVIDIA driver 535.161.08 runs CUDA up to 12.2",
        "whl/cu126",
    ),
    "a wheel without kernels for a new GPU": (
        given(granted=(RTX_5090,), framework=attrs.evolve(TORCH_LEGACY, devices=1)),
        "no-kernels",
        "PyTorch 2.6.0+cu126 has no kernels for the RTX 5090, which is of compute capability 12.0; "
        "it has them for sm_50, sm_60",
        "whl/cu130",
    ),
    "a wheel without kernels for an old GPU": (
        given(granted=(V100,), framework=attrs.evolve(TORCH, devices=1)),
        "no-kernels",
        "has no kernels for the Tesla V100, which is of compute capability 7.0",
        "'torch==2.13.*' --index-url https://download.pytorch.org/whl/cu126",
    ),
    "a build without kernels for an AMD GPU": (
        given(
            granted=(MI300X,),
            framework=Framework(
                name="torch",
                version="2.13.0+rocm7.2",
                built_for="rocm 7.2",
                devices=1,
                architectures=("gfx90a", "gfx1100"),
            ),
            visible={},
            intended={},
        ),
        "no-kernels",
        "has no kernels for the MI300X, which is of gfx942; it has them for gfx90a, gfx1100",
        "has kernels for gfx942",
    ),
    "nothing that anybody knows": (
        given(driver=CudaDriver(library="580.65.06", code=999, problem="CUDA_ERROR_UNKNOWN", cuda="13.0")),
        "unknown",
        "PyTorch 2.13.0+cu130 does not see the GPU granted; why is not known (granted: NVIDIA H100; ",
        "upshift doctor",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_found_and_the_remedy_is_its_own(case: str) -> None:
    evidence, cause, sentence, remedy = CASES[case]
    assert falls_short(evidence)
    finding = explain(evidence)
    assert finding.cause == cause
    assert sentence in finding.sentence
    assert remedy in finding.remedy


def test_every_cause_has_a_case() -> None:
    named = {cause for _, cause, _, _ in CASES.values()}
    assert named == {
        "cpu-only",
        "other-platform",
        "hidden",
        "devices",
        "permissions",
        "not-ready",
        "mismatch",
        "no-libraries",
        "old-driver",
        "no-kernels",
        "unknown",
    }


def test_files_of_devices_that_others_have_may_be_closed() -> None:
    closed = DeviceFile(path="/dev/nvidia1", problem="Operation not permitted")
    driver = CudaDriver(library="580.65.06", code=999, problem="CUDA_ERROR_UNKNOWN", cuda="13.0")
    assert explain(given(files=(*FILES, closed), driver=driver)).cause == "unknown"
    both = given(files=(*FILES, closed), driver=driver, granted=(H100, H100), intended={}, visible={})
    assert explain(both).cause == "permissions"


def test_what_a_framework_sees_itself_counts_more_than_the_tables() -> None:
    compatible = given(framework=attrs.evolve(TORCH, devices=1), kernel_driver="535.161.08", driver=None)
    assert not falls_short(compatible)  # by NVIDIA's forward compatibility packages


def test_what_is_known_is_kept_beside_the_cause() -> None:
    finding = explain(CASES["nothing that anybody knows"][0])
    for fact in ("driver 580.65.06", "the driver says: CUDA_ERROR_UNKNOWN", "/dev/nvidia0: can be opened"):
        assert fact in finding.evidence
        assert fact in finding.sentence  # nobody knows, so a person has to


def test_a_framework_that_sees_everything_falls_short_of_nothing() -> None:
    assert not falls_short(given(framework=attrs.evolve(TORCH, devices=1)))


def test_what_a_framework_does_not_say_is_not_held_against_it() -> None:
    assert not falls_short(given(framework=attrs.evolve(TORCH, devices=None, architectures=())))


@pytest.mark.parametrize("vendor", ["neuron", "tpu", "habana"])
def test_frameworks_that_show_devices_otherwise_are_not_judged(vendor: str) -> None:
    assert not falls_short(given(granted=(Device(vendor=vendor),), framework=CPU_TORCH))


def test_of_several_mig_instances_one_process_sees_one() -> None:
    assert expected((SLICE, SLICE)) == 1
    assert not falls_short(given(granted=(SLICE, SLICE), framework=attrs.evolve(TORCH, devices=1)))
    assert falls_short(given(granted=(SLICE, SLICE)))
    assert expected((H100, H100)) == 2
    assert expected(()) == 0
