"""What is said of an image before it is built: each check by its text."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from upshift.images.base import ERROR, NOTE, WARNING, Contents, Finding, Ingredients, Needs, Parent, Recipe
from upshift.images.checking.checks import check
from upshift.images.parents.contents import contents_of
from upshift.images.reference import Reference

NVIDIA = frozenset({"nvidia"})
ACCELERATE = frozenset({"accelerate"})
HOPPER = ("9.0",)
TORCH = Contents(python="3.10.13", cuda="12.1", packages={"torch": "2.1.0+cu121", "numpy": "1.26.4"})
SLIM = Contents(python="3.11.7", cuda="", stacks={"amd": "", "neuron": ""}, packages={"pip": "24.0"})


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a check asked the network")

    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)


def checked(
    image: str = "team/image:1",
    requirements: Iterable[str] = (),
    *,
    contents: Contents | None = None,
    environment: Mapping[str, str] | None = None,
    recipe: Mapping[str, Any] | None = None,
    paths: Mapping[str, Path] | None = None,
    origins: Mapping[str, str] | None = None,
    platform: str = "linux/amd64",
    **needs: Any,
) -> tuple[Finding, ...]:
    parent = Parent(
        reference=Reference.parse(image),
        digest="sha256:" + "0" * 64,
        platform="linux/amd64",
        environment=environment or {},
    )
    known = contents or contents_of(parent, registries=None)
    made = Recipe(parent=image, platform=platform, requirements=tuple(requirements), **(recipe or {}))
    found = check(
        Ingredients(recipe=made, paths=paths or {}, origins=origins or {}), parent, known, Needs(**needs)
    )
    assert all(finding.evidence and finding.fix for finding in found)
    return found


def said(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(finding.severity, finding.what) for finding in findings]


def test_an_image_that_fits_has_nothing_against_it() -> None:
    image = "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime"
    assert (
        checked(image, ["accelerate", "torchvision"], gpus=NVIDIA, driver="550.54.14", launchers=ACCELERATE)
        == ()
    )


def test_the_image_of_the_seeds_has_an_old_python() -> None:
    [finding] = checked("pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime", ["torchvision"], gpus=NVIDIA)
    assert finding.severity == ERROR and finding.field == "parent_image"
    assert (
        finding.what
        == "pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime has Python 3.7; steps need 3.10 or newer."
    )
    assert finding.evidence == "the table of known images"
    assert finding.fix is not None and "pytorch/pytorch:1.13.1-cuda11.6-cudnn8-runtime" in finding.fix
    assert finding.source is not None and re.search(r"read on 20\d\d-\d\d-\d\d$", finding.source)


def test_an_image_of_cuda_gets_the_nearest_cuda() -> None:
    [finding] = checked("nvidia/cuda:12.4.1-runtime-ubuntu22.04", gpus=NVIDIA)
    assert "has no Python" in finding.what
    assert finding.fix is not None and "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime" in finding.fix


def test_what_was_seen_in_an_image_has_no_other_source() -> None:
    seen = attrs.evolve(SLIM, source="a look into the image")
    [finding] = checked("python:3.11-slim", contents=seen, gpus=NVIDIA)
    assert (finding.evidence, finding.source) == ("a look into the image", None)


def test_a_name_tells_what_it_can_where_the_image_cannot_be_read() -> None:
    recipe = Recipe(
        parent="pytorch/pytorch:1.12.1", platform="linux/amd64", requirements=("torch==2.6.0", "torchvision")
    )
    found = check(Ingredients(recipe=recipe), None, Contents(), Needs())
    assert said(found) == [
        (ERROR, "pytorch/pytorch:1.12.1 has Python 3.7; steps need 3.10 or newer."),
        (WARNING, "The image's PyTorch 1.12.1 is replaced by another build."),
    ]


def test_an_old_python_without_cuda_gets_an_image_of_python() -> None:
    [finding] = checked("python:3.8-slim", environment={"PYTHON_VERSION": "3.8.19"})
    assert "has Python 3.8.19" in finding.what
    assert finding.fix == 'parent_image="python:3.12-slim" fits.'


def test_an_image_without_python_is_refused_unless_one_is_installed() -> None:
    image = "nvidia/cuda:12.4.1-runtime-ubuntu22.04"
    [finding] = checked(image, gpus=NVIDIA)
    assert finding.what == f"{image} has no Python." and finding.severity == ERROR
    for packages in (("python3-pip",), ("git", "python3=3.10.6-1~22.04")):
        assert checked(image, gpus=NVIDIA, recipe={"apt_packages": packages}) == ()
    for packages in (("python3-doc",), ("libpython3-stdlib", "python3.11-examples")):
        [finding] = checked(image, gpus=NVIDIA, recipe={"apt_packages": packages})
        assert finding.what == f"{image} has no Python."


def test_the_python_of_a_distribution_has_to_be_one_that_steps_run_with() -> None:
    recipe = {"apt_packages": ("python3",)}
    old = "nvidia/cuda:12.4.1-runtime-ubuntu20.04"
    [finding] = checked(old, gpus=NVIDIA, recipe=recipe)
    assert finding.what.startswith(
        "python3 of the image's distribution is Python 3.8 or 3.9; steps need 3.10"
    )
    assert (finding.severity, finding.field) == (ERROR, "apt_packages")
    jammy = "nvidia/cuda:12.4.1-runtime-ubuntu22.04"
    [finding] = checked(jammy, gpus=NVIDIA, recipe=recipe, python="3.12")
    assert finding.what == "python3 of the image's distribution is Python 3.10; steps need 3.12."
    assert checked(jammy, gpus=NVIDIA, recipe=recipe, python="3.10") == ()


def test_only_packages_that_bring_cuda_do() -> None:
    def found(*packages: str) -> list[tuple[str, str]]:
        return said(
            checked(contents=SLIM, gpus=NVIDIA, driver="525.60.13", recipe={"apt_packages": packages})
        )

    [(severity, what)] = found("gcc-12-offload-nvptx", "python3-pycuda-doc", "cuda-keyring")
    assert severity == ERROR and what == "A GPU of NVIDIA is asked for, and team/image:1 has no CUDA."
    assert found("cuda-runtime-12-0") == []
    assert found("nvidia-cuda-toolkit:amd64") == []
    [(severity, what)] = found("cuda-toolkit-13-0=13.0.1-1")
    assert severity == ERROR
    assert what == "The NVIDIA driver 525.60.13 does not run CUDA 13.0, which apt_packages bring."


def test_a_step_by_value_needs_its_own_minor_version_of_python() -> None:
    [finding] = checked(contents=SLIM, python="3.12")
    assert finding.what == "team/image:1 has Python 3.11.7; a step that travels by value needs 3.12."
    assert checked(contents=SLIM, python="3.11") == ()


def test_a_gpu_step_on_an_image_without_cuda_is_refused() -> None:
    [finding] = checked("python:3.11-slim", gpus=NVIDIA, driver="535.104.05")
    assert finding.severity == ERROR
    assert finding.what == "A GPU of NVIDIA is asked for, and python:3.11-slim has no CUDA."
    assert finding.fix is not None and "pytorch/pytorch:2.14.1-cuda12.6-cudnn9-runtime" in finding.fix
    assert checked("python:3.11-slim") == ()


def test_requirements_that_bring_cuda_are_as_good_as_an_image_with_it() -> None:
    for requirement in ("torch==2.6.0", "tensorflow[and-cuda]==2.17.0", "jax[cuda12]", "cupy-cuda12x"):
        assert checked("python:3.11-slim", [requirement], gpus=NVIDIA, driver="550.54.14") == (), requirement


def test_a_torch_built_without_cuda_is_none_for_a_gpu_step() -> None:
    for lines in (["torch", "--index-url https://download.pytorch.org/whl/cpu"], ["torch==2.6.0+cpu"]):
        [finding] = checked("python:3.11-slim", lines, gpus=NVIDIA)
        assert said([finding]) == [
            (
                ERROR,
                "A GPU of NVIDIA is asked for, and the PyTorch of the requirements is built without CUDA.",
            )
        ]
        assert finding.field == "requirements"


def test_a_torch_from_an_address_is_what_its_name_says() -> None:
    address = "https://example.org/torch-2.6.0%2Bcpu-cp311-cp311-linux_x86_64.whl"
    [finding] = checked("python:3.11-slim", [f"torch @ {address}"], gpus=NVIDIA)
    assert finding.what.endswith("is built without CUDA.")
    from_source = "torch @ git+https://github.com/pytorch/pytorch@v2.6.0"
    assert checked("python:3.11-slim", [from_source], gpus=NVIDIA, driver="470.82.01") == ()


def test_the_build_that_uv_is_told_to_take_counts() -> None:
    def told(build: str) -> list[str]:
        recipe = {"installer_args": (f"--torch-backend={build}",)}
        return [
            f.what for f in checked(contents=SLIM, requirements=["torch==2.9.1"], recipe=recipe, gpus=NVIDIA)
        ]

    assert told("cu126") == []
    [what] = told("cpu")
    assert what.endswith("is built without CUDA.")


def test_the_installers_own_index_counts() -> None:
    for args in (
        ("--index-url", "https://download.pytorch.org/whl/cpu"),
        ("--index-url=https://download.pytorch.org/whl/cpu",),
    ):
        assert checked(contents=SLIM, requirements=["torch"], recipe={"installer_args": args}, gpus=NVIDIA)


def test_cuda_that_the_driver_does_not_run_is_refused_with_what_does() -> None:
    [finding] = checked("pytorch/pytorch:2.14.1-cuda13.0-cudnn9-runtime", gpus=NVIDIA, driver="535.104.05")
    assert finding.severity == ERROR
    assert "The NVIDIA driver 535.104.05 does not run CUDA 13.0" in finding.what
    assert finding.evidence is not None and "CUDA 13 needs a driver from 580 on" in finding.evidence
    assert finding.fix is not None
    assert "2.14.1-cuda12.6" in finding.fix and "update the driver to 580" in finding.fix


def test_a_wheel_whose_cuda_the_driver_does_not_run_has_another_index() -> None:
    [finding] = checked("python:3.11-slim", ["torch"], gpus=NVIDIA, driver="535.104.05")
    assert finding.what == "The NVIDIA driver 535.104.05 does not run CUDA 13, which the requirements bring."
    assert finding.fix is not None and "https://download.pytorch.org/whl/cu126" in finding.fix


def test_what_a_pinned_companion_needs_decides_which_torch_is_installed() -> None:
    lines = ["torch", "torchvision==0.21.0"]  # which needs torch 2.6.0, of CUDA 12.4
    assert checked("python:3.11-slim", lines, gpus=NVIDIA, driver="550.54.14") == ()


def test_cuda_that_is_newer_than_the_drivers_own_is_told() -> None:
    image = "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime"
    [finding] = checked(image, gpus=NVIDIA, driver="535.104.05")
    assert finding.severity == NOTE and "is newer than the driver 535.104.05, of CUDA 12.2" in finding.what
    assert finding.fix is not None and "pytorch/pytorch:2.7.1-cuda11.8-cudnn9-runtime" in finding.fix


def test_kernels_for_the_device_must_be_in_the_wheel() -> None:
    [finding] = checked(
        "pytorch/pytorch:2.9.1-cuda12.6-cudnn9-runtime",
        gpus=NVIDIA,
        driver="580.65.06",
        architectures=("12.0",),
    )
    assert finding.what == "PyTorch 2.9.1+cu126 has no kernels for compute capability 12.0."
    assert (finding.fix is not None and "cuda12.8" in finding.fix) or "cuda13.0" in (finding.fix or "")


def test_a_cuda_that_does_not_know_the_device_is_found() -> None:
    old = Contents(python="3.10", cuda="11.3", packages={"torch": "1.12.1+cu113"})
    [finding] = checked(contents=old, gpus=NVIDIA, architectures=HOPPER, driver="535.104.05")
    assert finding.severity == ERROR
    assert finding.what == "CUDA 11.3, which team/image:1 has, does not know compute capability 9.0."
    bare = Contents(python="3.10", cuda="11.3", packages={})
    [finding] = checked(contents=bare, gpus=NVIDIA, architectures=HOPPER)
    assert finding.severity == WARNING


@pytest.mark.parametrize(
    ("requirement", "driver", "starts"),
    [
        ("cuda>=12.4 brand=tesla,driver>=470,driver<471", "550.54.14", True),
        ("cuda>=12.4 brand=tesla,driver>=470,driver<471", "470.82.01", True),
        ("cuda>=12.4 brand=tesla,driver>=470,driver<471", "525.60.13", False),
        ("cuda>=12.4 brand=tesla,driver>=525,driver<526", "525.60.13", True),
        ("cuda>=12.1", "520.61.05", False),
        ("driver>=535", "550.54.14", True),
        ("driver!=550,cuda<13", "550.54.14", False),
        ("something-new", "525.60.13", True),
        ("driver<525", "525.60.13", False),
        ("driver>525", "525.60.13", False),
        ("driver<=525", "525.60.13", True),
        ("cuda<12.0", "525.60.13", False),
    ],
)
def test_what_an_image_asks_of_the_driver_itself(requirement: str, driver: str, starts: bool) -> None:
    contents = Contents(python="3.11", cuda="11.4", packages={})
    environment = {"NVIDIA_REQUIRE_CUDA": requirement}
    findings = checked(contents=contents, environment=environment, gpus=NVIDIA, driver=driver)
    assert [f.what for f in findings] == (
        [] if starts else [f"team/image:1 does not start with the NVIDIA driver {driver}, by its own word."]
    )


def test_a_driver_that_is_older_than_the_table_is_not_judged_by_it() -> None:
    contents = Contents(python="3.11", cuda="10.2", packages={})
    environment = {"NVIDIA_REQUIRE_CUDA": "cuda>=10.2"}
    found = checked(contents=contents, environment=environment, gpus=NVIDIA, driver="440.33.01")
    assert not [finding for finding in found if "by its own word" in finding.what]


def test_what_an_image_asks_of_the_driver_can_be_switched_off() -> None:
    contents = Contents(python="3.11", cuda="11.4", packages={})
    environment = {"NVIDIA_REQUIRE_CUDA": "cuda>=12.4", "NVIDIA_REQUIRE_DRIVER": "driver>=400"}
    assert len(checked(contents=contents, environment=environment, gpus=NVIDIA, driver="525.60.13")) == 1
    off = {"environment": {"NVIDIA_DISABLE_REQUIRE": "1"}}
    assert (
        checked(contents=contents, environment=environment, recipe=off, gpus=NVIDIA, driver="525.60.13") == ()
    )


def test_driver_capabilities_without_computing_are_told() -> None:
    contents = Contents(python="3.11", cuda="12.4", packages={})
    [finding] = checked(
        contents=contents, environment={"NVIDIA_DRIVER_CAPABILITIES": "video,utility"}, gpus=NVIDIA
    )
    assert finding.severity == WARNING and "no libraries to compute with" in finding.what
    for said_by_image in ("all", "compute,utility"):
        assert (
            checked(contents=contents, environment={"NVIDIA_DRIVER_CAPABILITIES": said_by_image}, gpus=NVIDIA)
            == ()
        )


def test_what_is_not_known_is_not_judged() -> None:
    [finding] = checked(contents=Contents(python="3.11"), gpus=NVIDIA, driver="535.104.05")
    assert (finding.severity, finding.what) == (NOTE, "Whether team/image:1 has CUDA is not known.")
    recipe = Recipe(parent=None, platform="linux/amd64", dockerfile="FROM x")
    assert check(Ingredients(recipe=recipe), None, Contents(), Needs(gpus=NVIDIA, launchers=ACCELERATE)) == ()


def test_an_image_that_cannot_be_read_is_judged_by_its_name() -> None:
    def unread(name: str, **needs: Any) -> list[str]:
        recipe = Recipe(parent=name, platform="linux/amd64")
        return [f.what for f in check(Ingredients(recipe=recipe), None, Contents(), Needs(**needs))]

    [what] = unread("pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime", gpus=NVIDIA)
    assert "has Python 3.7" in what
    assert unread("python:3.12-slim", gpus=NVIDIA) == [
        "A GPU of NVIDIA is asked for, and python:3.12-slim has no CUDA."
    ]
    assert unread("team/image:1", gpus=NVIDIA) == []
    assert unread("No Such Name", gpus=NVIDIA) == []


def test_devices_of_other_vendors_need_their_own_images() -> None:
    [amd] = checked(contents=SLIM, gpus=frozenset({"amd"}))
    assert "has no ROCm" in amd.what and amd.fix is not None and "rocm/pytorch" in amd.fix
    assert (
        checked(
            contents=SLIM,
            requirements=["torch", "--index-url https://download.pytorch.org/whl/rocm6.4"],
            gpus=frozenset({"amd"}),
        )
        == ()
    )
    [neuron] = checked(contents=SLIM, gpus=frozenset({"neuron"}))
    assert "has no Neuron SDK" in neuron.what
    assert checked(contents=SLIM, requirements=["torch-neuronx"], gpus=frozenset({"neuron"})) == ()
    assert checked(contents=SLIM, gpus=frozenset({"tpu"})) == ()


def test_another_platform_is_refused() -> None:
    assert checked(contents=SLIM, platform="linux/amd64/v2") == ()
    findings = checked(contents=SLIM, platform="linux/arm64")
    assert said(findings) == [(ERROR, "team/image:1 is for linux/amd64; the tasks run on linux/arm64.")]
    [finding] = checked(contents=SLIM, platform="linux/arm64", origins={"platform": "p.py:1 (@step)"})
    assert finding.what == "team/image:1 is for linux/amd64; platform= of the settings says linux/arm64."
    assert 'platform="linux/amd64"' in (finding.fix or "")


def test_torchvision_without_a_pin_would_replace_the_torch_of_the_image() -> None:
    [finding] = checked(requirements=["torchvision"], contents=TORCH)
    assert finding.severity == ERROR and finding.field == "requirements"
    assert finding.what == "torchvision without a pin pulls torch 2.15.0 over the image's 2.1.0+cu121."
    assert finding.evidence == "torchvision 0.29.2 needs torch>=2.14.0"
    assert finding.fix == "Say torchvision==0.16.0, which works with torch 2.1.0."


@pytest.mark.parametrize(
    "lines",
    [
        ["torchvision==0.16.0"],
        ["torchvision==0.16.*", "torchaudio==2.1.0"],
        ["torchvision", "torch==2.1.0"],
        ["torchvision", "torch==2.1.0+cu121"],
        ["accelerate", "peft", "torchmetrics", "six"],
        ["torchvision; python_version < '3.9'"],
        ["torchvision; sys_platform == 'win32'"],
        ["bitsandbytes==0.40.0"],
        ["torch>=2.0"],
    ],
)
def test_what_leaves_the_torch_of_the_image_alone(lines: list[str]) -> None:
    assert checked(requirements=lines, contents=TORCH) == ()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("torchvision==0.17.0", "torchvision 0.17.0 pulls torch 2.2.0 over the image's 2.1.0+cu121."),
        ("timm", "torchvision without a pin pulls torch 2.15.0 over the image's 2.1.0+cu121."),
        ("ultralytics", "torchvision without a pin pulls torch 2.15.0 over the image's 2.1.0+cu121."),
        ("xformers", "xformers without a pin pulls torch 2.15.0 over the image's 2.1.0+cu121."),
        ("torchvision>=0.16,<0.18", "torchvision 0.17.2 pulls torch 2.2.2 over the image's 2.1.0+cu121."),
    ],
)
def test_what_would_replace_the_torch_of_the_image(line: str, what: str) -> None:
    assert said(checked(requirements=[line], contents=TORCH)) == [(ERROR, what)]


def test_what_the_image_has_already_stays() -> None:
    image = "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime"
    assert checked(image, ["torchvision", "timm"]) == ()
    [finding] = checked(image, ["torchvision"], recipe={"installer_args": ("--upgrade",)})
    assert "pulls torch" in finding.what


def test_without_dependencies_nothing_is_pulled() -> None:
    assert (
        checked(requirements=["torchvision"], contents=TORCH, recipe={"installer_args": ("--no-deps",)}) == ()
    )


def test_a_parent_that_is_used_as_it_is_installs_nothing() -> None:
    assert checked(requirements=["torchvision"], contents=TORCH, recipe={"skip_build": True}) == ()


def test_constraints_hold(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text("torchvision==0.16.0  # for torch 2.1\n")
    found = checked(
        requirements=["timm", "--constraint constraints.txt"], contents=TORCH, paths={"constraints.txt": file}
    )
    assert found == ()


def test_another_torch_that_is_asked_for_is_a_warning() -> None:
    [finding] = checked(requirements=["torch==2.3.0"], contents=TORCH)
    assert said([finding]) == [(WARNING, "The image's PyTorch 2.1.0+cu121 is replaced by another build.")]
    assert finding.evidence == "requirements say 'torch==2.3.0'"
    [finding] = checked(requirements=["./dist/torch-2.3.0-cp310-cp310-linux_x86_64.whl"], contents=TORCH)
    assert finding.severity == WARNING


def test_requirements_that_cannot_go_together() -> None:
    [finding] = checked(requirements=["torch==2.6.0", "torchvision==0.17.0"], contents=SLIM)
    assert said([finding]) == [
        (ERROR, "torchvision 0.17.0 needs torch==2.2.0, and requirements ask for torch 2.6.0.")
    ]
    assert finding.fix == "Say torchvision==0.21.0, which works with torch 2.6.0."


@pytest.mark.parametrize("contents", [SLIM, attrs.evolve(SLIM, packages={"torch": "2.2.1"})])
@pytest.mark.parametrize(
    ("torch", "other"),
    [
        ("torch==2.2.1", "torchtext"),  # there is one for it, which no table has
        ("torch==2.9.0", "xformers>=0.0.20"),
        ("torch==2.9.0", "torchvision>=0.20"),
    ],
)
def test_for_a_torch_that_is_asked_for_older_releases_are_tried(
    torch: str, other: str, contents: Contents
) -> None:
    found = checked(requirements=[torch, other], contents=contents)
    assert [finding for finding in found if finding.severity == ERROR] == []


def test_a_torch_without_a_wheel_for_the_images_python() -> None:
    found = checked(requirements=["torch==2.1.0"], contents=Contents(python="3.13.1", cuda="", packages={}))
    assert said(found) == [(ERROR, "PyTorch 2.1.0 has no wheel for the image's Python 3.13.")]
    assert checked(requirements=["torch>=2.1"], contents=Contents(python="3.13.1", packages={})) == ()


def test_musl_has_no_wheels_of_torch() -> None:
    [finding] = checked("python:3.12-alpine", ["timm"], environment={"PYTHON_VERSION": "3.12.1"})
    assert finding.what.endswith("the C library musl, for which torch and torchvision have no wheels.")
    assert checked("python:3.12-alpine", ["six"], environment={"PYTHON_VERSION": "3.12.1"}) == ()


def test_an_accelerated_step_needs_accelerate() -> None:
    image = "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime"
    [finding] = checked(image, ["torchvision"], launchers=ACCELERATE)
    assert finding.severity == ERROR
    assert (
        finding.what == f"A step is started with accelerate, which is neither in {image} nor in requirements."
    )
    assert finding.fix == 'Add "accelerate" to requirements.'


@pytest.mark.parametrize("requirement", ["accelerate>=0.20", "peft", "transformers[torch]", "trl"])
def test_accelerate_may_come_with_another_package(requirement: str) -> None:
    assert checked(requirements=[requirement], contents=SLIM, launchers=ACCELERATE) == ()


def test_accelerate_in_an_image_of_which_not_all_is_known_is_a_warning() -> None:
    partly = Contents(python="3.12", cuda="12.6", packages={"torch": "2.6.0+cu126"}, complete=False)
    [finding] = checked(contents=partly, launchers=ACCELERATE)
    assert finding.severity == WARNING and "requirements do not name" in finding.what
    assert checked(contents=partly, launchers=frozenset({"torchrun"})) == ()


def test_what_the_steps_import_and_nobody_brings() -> None:
    [finding] = checked(contents=SLIM, imports={"numpy": "2.1.0", "pip": "24.0"})
    assert finding.severity == WARNING
    assert finding.what == "The steps import numpy, which is neither in the image nor in requirements."
    assert finding.fix == "Add to requirements: numpy==2.1.0."


def test_what_requirements_bring_along_is_not_missed() -> None:
    assert checked(contents=SLIM, requirements=["pandas"], imports={"numpy": "2.1.0", "pandas": "2.2"}) == ()
    [finding] = checked(contents=SLIM, requirements=["not-installed-here"], imports={"numpy": "2.1.0"})
    assert finding.severity == NOTE  # it may come with that


def test_other_versions_there_than_here_are_told() -> None:
    [finding] = checked(contents=TORCH, imports={"torch": "2.3.0", "numpy": "1.26.4"})
    assert finding.severity == NOTE
    assert finding.what.endswith("than on this machine: torch 2.3.0 here, 2.1.0+cu121 there.")
    assert checked(contents=TORCH, imports={"torch": "2.1.0"}) == ()


AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-gpu-py312-cu126-ubuntu22.04-ec2"


def test_a_registry_of_a_cloud_says_how_to_log_in_where_it_could_not_be_read() -> None:
    recipe = Recipe(parent=AWS, platform="linux/amd64")
    [note] = check(Ingredients(recipe=recipe), None, Contents(), Needs(gpus=NVIDIA))
    assert note.severity == NOTE and "is an AWS Deep Learning Container" in note.what
    assert note.fix is not None and note.fix.startswith("aws ecr get-login-password --region us-east-1")
    assert checked(AWS, gpus=NVIDIA, driver="580.65.06") == ()


def test_errors_come_first_and_nothing_is_said_twice() -> None:
    found = checked(
        AWS, gpus=NVIDIA, driver="535.104.05", imports={"torch": "2.1.0"}, launchers=ACCELERATE, python="3.11"
    )
    assert [finding.severity for finding in found] == [ERROR, WARNING, NOTE, NOTE]
    assert len({finding.what for finding in found}) == len(found)


def test_an_image_of_azure_with_an_old_python_is_refused_by_its_name() -> None:
    [finding] = checked(
        "mcr.microsoft.com/azureml/minimal-ubuntu22.04-py39-cuda11.8-gpu-inference", gpus=NVIDIA
    )
    assert "has Python 3.9; steps need 3.10" in finding.what
