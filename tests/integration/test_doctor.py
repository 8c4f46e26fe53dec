"""``upshift doctor`` says what would stop a step on GPUs, and what to do about it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import trees
from frameworks import cuda_driver, fake_tensorflow, fake_torch
from nvml import VERSION_MISMATCH, FakeNvml, Gpu, Instance
from project import Outcome, Project

MakeNvml = Callable[..., FakeNvml]
CPU = {"cuda": None, "version": "2.13.0+cpu"}


class Doctor:
    """A machine with NVIDIA GPUs, a driver that starts, and an environment with packages; and the command."""

    def __init__(self, project: Project, machine: FakeNvml, cuda_library: Path) -> None:
        self.project, self.machine = project, machine
        self.packages = project.folder / "site-packages"
        capabilities = [gpu.capability or "" for gpu in machine.gpus]
        self.environment = cuda_driver(cuda_library, *capabilities) | machine.environment()
        own = f"{machine.environment()['LD_LIBRARY_PATH']}:{cuda_library.parent}"
        self.environment |= {"LD_LIBRARY_PATH": own, "PYTHONPATH": str(self.packages)}
        (machine.root / "dev/nvidia-uvm").touch()

    def torch(self, **options: Any) -> None:
        """A PyTorch that is installed; by default one for CUDA that sees all GPUs."""
        options = {"devices": len(self.machine.gpus), **options}
        fake_torch(self.packages, **options)
        version = options.get("version", "2.13.0+cu130")
        cuda = options.get("cuda", "13.0")
        (self.packages / "torch/version.py").write_text(f"cuda: Optional[str] = {cuda!r}\n")
        self.distribution("torch", version)

    def distribution(self, name: str, version: str) -> None:
        info = self.packages / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def __call__(self, *args: str, expect: int | None, env: Mapping[str, str] | None = None) -> Outcome:
        return self.project.upshift(
            "doctor", *args, expect=expect, env={"COLUMNS": "120", **self.environment, **(env or {})}
        )


@pytest.fixture
def doctor(project: Project, fake_nvml: MakeNvml, cuda_library: Path) -> Callable[..., Doctor]:
    """Makes a machine, as ``fake_nvml`` does."""
    return lambda *args, **options: Doctor(project, fake_nvml(*args, **options), cuda_library)


def said(outcome: Outcome) -> str:
    """What it printed, with lines and blanks run together."""
    return " ".join(outcome.out.split())


def test_a_machine_on_which_all_is_well(doctor: Callable[..., Doctor]) -> None:
    here = doctor(2, driver="580.65.06", cuda="13.0")
    here.torch()
    text = said(here(expect=0))
    for line in (
        "✓ NVIDIA 2 × NVIDIA H100 80GB HBM3, 85.9 GB, compute capability 9.0",
        "✓ NVIDIA driver 580.65.06, which runs CUDA up to 13.0",
        "✓ device files /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0, …: can be opened",
        "✓ CUDA starts, runs CUDA up to 13.0, and shows 2 devices",
        "✓ PyTorch 2.13.0+cu130, built for cuda 13.0, sees 2 devices",
        "Nothing here would stop a step on GPUs.",
    ):
        assert line in text
    assert "✗" not in text


def test_a_machine_without_devices_gives_a_step_none_and_nothing_is_wrong_with_that(project: Project) -> None:
    outcome = project.upshift("doctor", env={"UPSHIFT_DEVICE_ROOT": str(project.folder)})
    text = said(outcome)
    assert (
        "! devices none: a step that asks for GPUs runs on the CPU here, and says so; --strict refuses it"
        in text
    )
    assert (
        "Nothing is wrong here, but there is no GPU: a step on GPUs would not get what it asks for." in text
    )
    assert "✗" not in text
    told = json.loads(
        project.upshift("doctor", "--json", env={"UPSHIFT_DEVICE_ROOT": str(project.folder)}).out
    )
    assert told["ok"] is True
    assert [check["name"] for check in told["checks"] if check["status"] == "absent"] == ["devices"]
    assert not project.home.exists()  # nothing is changed


def test_a_device_on_the_bus_without_a_driver_is_named(project: Project) -> None:
    trees.write(
        project.folder / "root",
        {f"sys/bus/pci/devices/0000:01:00.0/{name}": value
         for name, value in (("vendor", "0x10de"), ("class", "0x030200"))},
    )  # fmt: skip
    text = said(project.upshift("doctor", expect=1, env={"UPSHIFT_DEVICE_ROOT": "root"}))
    assert "A device of NVIDIA is in this machine (0000:01:00.0), and has no driver: install it." in text


PROBLEMS: dict[str, tuple[Callable[[Doctor], object], str, str]] = {
    "a wheel for CPUs": (
        lambda here: here.torch(**CPU),
        "✗ PyTorch 2.13.0+cpu is built for CPUs only: it cannot use the 2 GPUs of this machine",
        "→ pip install --force-reinstall 'torch==2.13.*' --index-url https://download.pytorch.org/whl/cu126",
    ),
    "a CUDA that is newer than the driver": (
        lambda here: (here.torch(devices=0), here.environment.update(CUDA_STANDIN_VERSION="12040")),
        "2.13.0+cu130 is built for CUDA 13.0, and the NVIDIA driver runs CUDA up to 12.4",
        "whl/cu126. Or update the NVIDIA driver to 580 or newer.",
    ),
    "a GPU that the wheel has no kernels for": (
        lambda here: here.torch(architectures=("sm_70", "sm_80")),
        "has no kernels for the NVIDIA H100 80GB HBM3, which is of compute capability 9.0",
        "→ pip install",
    ),
    "a framework that cannot be imported": (
        lambda here: here.torch(more="raise ImportError('libcudnn.so.9: cannot open shared object file')"),
        "✗ PyTorch 2.13.0+cu130, import torch: ImportError: libcudnn.so.9: cannot open shared object file",
        "→ python -c 'import torch' shows more.",
    ),
    "a file that is missing": (
        lambda here: os.unlink(here.machine.root / "dev/nvidia-uvm"),
        "✗ device files there is no /dev/nvidia-uvm on this machine",
        "→ sudo modprobe nvidia-uvm, or sudo nvidia-modprobe -u -c=0, makes it.",
    ),
    "a driver that is not ready": (
        lambda here: here.environment.update(CUDA_STANDIN_INIT="802"),
        "✗ CUDA the NVIDIA driver is not ready (CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized)",
        "nvidia-fabricmanager",
    ),
    "a driver that fails": (
        lambda here: here.environment.update(CUDA_STANDIN_INIT="999"),
        "✗ CUDA does not start: CUDA_ERROR_UNKNOWN: unknown error",
        "→ nvidia-smi and dmesg may tell more.",
    ),
    "no library of the driver": (
        lambda here: here.environment.update(
            LD_LIBRARY_PATH=here.environment["LD_LIBRARY_PATH"].partition(":")[0]
        ),
        "✗ CUDA there is no libcuda.so.1, the driver's library, in this environment",
        "ldconfig",
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_what_would_stop_a_step_on_gpus_is_named_with_its_remedy(
    doctor: Callable[..., Doctor], case: str
) -> None:
    break_it, sentence, remedy = PROBLEMS[case]
    here = doctor(2, driver="580.65.06", cuda="13.0")
    break_it(here)
    text = said(here(expect=1))
    assert sentence in text
    assert remedy in text


def test_what_follows_from_a_missing_file_is_no_problem_of_its_own(doctor: Callable[..., Doctor]) -> None:
    here = doctor(1, driver="580.65.06", cuda="13.0")
    here.torch(devices=0)
    os.unlink(here.machine.root / "dev/nvidia-uvm")
    here.environment.update(CUDA_STANDIN_INIT="999")
    text = said(here(expect=1))
    assert text.count("✗") == 1 and "1 problem:" in text
    assert "! CUDA does not start, as of the above: CUDA_ERROR_UNKNOWN: unknown error" in text
    assert "! PyTorch 2.13.0+cu130, built for cuda 13.0, sees no devices, as of the above" in text


def test_halves_of_a_driver_that_differ(doctor: Callable[..., Doctor]) -> None:
    here = doctor(1, errors={"nvmlInitWithFlags": VERSION_MISMATCH})
    here.environment["CUDA_STANDIN_INIT"] = "803"
    text = said(here(expect=1))
    assert "✗ devices none that can be used (NVIDIA): a step that asks for GPUs runs on the CPU here" in text
    assert "kernel module and its library are of different versions" in text
    assert "restart the machine" in text


def test_a_library_that_hangs_or_crashes_is_told_and_the_rest_goes_on(doctor: Callable[..., Doctor]) -> None:
    here = doctor(1, crash="nvmlDeviceGetCount_v2")
    text = said(here(expect=1))
    assert "✗ NVIDIA its library could not be asked: it was killed by SIGSEGV" in text
    assert "nvidia-smi" in text and "restart the machine" in text
    assert "✓ CUDA starts" in text


def test_one_framework_that_sees_everything_is_enough(doctor: Callable[..., Doctor]) -> None:
    here = doctor(1, driver="580.65.06", cuda="13.0")
    here.torch()
    fake_tensorflow(here.packages, cuda=None)
    here.distribution("tensorflow", "2.18.0")
    text = said(here(expect=0))
    assert "! TensorFlow 2.18.0 is built for CPUs only" in text
    assert "✓ PyTorch" in text


def test_who_else_uses_the_gpus_is_told(doctor: Callable[..., Doctor]) -> None:
    busy = Gpu(processes={os.getpid(): 3 << 30})
    text = said(doctor([busy, Gpu()])(expect=None, env={"PYTHONPATH": ""}))
    assert f"! GPU 0 (NVIDIA H100 80GB HBM3) in use by process {os.getpid()}" in text
    assert "GPU 1" not in text


def test_what_a_shell_hides_is_told(doctor: Callable[..., Doctor]) -> None:
    text = said(doctor(2)(expect=None, env={"CUDA_VISIBLE_DEVICES": "1", "PYTHONPATH": ""}))
    set_to = "! CUDA_VISIBLE_DEVICES is set to '1': steps get devices from among those"
    assert f"{set_to}, without 1 × NVIDIA H100 80GB HBM3" in text


def test_slices_are_shown(doctor: Callable[..., Doctor]) -> None:
    here = doctor([Gpu(instances=[Instance(), Instance()]), Gpu()])
    here.torch(**CPU)
    text = said(here(expect=1))
    assert "✓ NVIDIA 2 × slice 1g.10gb of NVIDIA H100 80GB HBM3, 10.7 GB, compute capability 9.0 ✓" in text
    assert "✓ NVIDIA NVIDIA H100 80GB HBM3, 85.9 GB, compute capability 9.0 ✓" in text
    assert "it cannot use the GPU and 2 slices of this machine" in text


def test_devices_of_other_vendors_are_shown(project: Project) -> None:
    trees.amd(project.folder / "root", 2)
    text = said(project.upshift("doctor", env={"UPSHIFT_DEVICE_ROOT": "root", "COLUMNS": "120"}, expect=None))
    assert "✓ AMD 2 × AMD Instinct MI300X OAM" in text


def test_a_home_that_every_user_can_enter_is_told(project: Project) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        home = Path(folder, "home")
        home.mkdir()
        said = {}
        for mode in (0o700, 0o2770, 0o755, 0o777):
            home.chmod(mode)
            out = project.upshift("doctor", "--json", expect=None, env={"UPSHIFT_HOME": str(home)}).out
            (check,) = [check for check in json.loads(out)["checks"] if check["name"] == "home"]
            said[mode] = (check["status"], check["text"].partition("; ")[2], check["remedy"])
    remedy = f"chmod 700 {home}, or share it with a group only: mode 2770."
    every = "every user of this machine can"
    assert said == {
        0o700: ("ok", "", None),
        0o2770: ("ok", "", None),
        0o755: ("warning", f"{every} read what is in it: values, parameters, logs", remedy),
        0o777: ("warning", f"{every} change what is in it: values, parameters, logs", remedy),
    }


def test_a_folder_that_cannot_be_written_is_named(project: Project) -> None:
    home = project.folder / "a-file"
    home.write_text("")
    told = json.loads(
        project.upshift("doctor", "--json", expect=1, env={"UPSHIFT_HOME": str(home / "home")}).out
    )
    (check,) = [check for check in told["checks"] if check["name"] == "home"]
    assert check["status"] == "problem"
    assert check["text"] == f"{home}/home: {home} cannot be written"
    assert check["remedy"] == "Set UPSHIFT_HOME to a folder that you may write to."


def test_as_json(doctor: Callable[..., Doctor]) -> None:
    here = doctor(1, driver="580.65.06", cuda="13.0")
    here.torch(**CPU)
    told = json.loads(here("--json", expect=1).out)
    assert told["target"] == "local" and told["ok"] is False
    (check,) = [check for check in told["checks"] if check["group"] == "frameworks"]
    assert check["status"] == "problem" and check["name"] == "PyTorch"
    assert set(check) == {"group", "name", "status", "text", "remedy"}
    assert {check["status"] for check in told["checks"]} <= {"ok", "warning", "problem"}


def test_a_target_that_there_is_not_is_refused(project: Project) -> None:
    outcome = project.upshift("doctor", "clutser", expect=2)
    assert "no target is named 'clutser'" in outcome.err


def test_a_targets_own_store_is_looked_at(project: Project) -> None:
    (project.folder / "upshift.toml").write_text('[targets.big]\nbackend = "local"\nstore = "elsewhere"\n')
    told = json.loads(project.upshift("doctor", "big", "--json").out)
    (store,) = [check for check in told["checks"] if check["name"] == "store"]
    assert store["text"].startswith("elsewhere, made by the first run")


def test_a_narrow_terminal_without_unicode_is_still_readable(project: Project) -> None:
    trees.write(
        project.folder / "root",
        {f"sys/bus/pci/devices/0000:01:00.0/{name}": value
         for name, value in (("vendor", "0x10de"), ("class", "0x030200"))},
    )  # fmt: skip
    env = {"COLUMNS": "40", "PYTHONIOENCODING": "ascii", "UPSHIFT_DEVICE_ROOT": "root"}
    out = project.upshift("doctor", expect=1, env=env).out
    assert max(map(len, out.splitlines())) <= 40
    assert "  X devices\n" in out and "    -> A device of NVIDIA is in this" in out
    assert "\\" not in out
