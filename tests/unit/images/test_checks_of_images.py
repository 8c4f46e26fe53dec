"""What is said of an image before it is built: each check by its text."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

import attrs
import pytest

from upshift.images.base import (
    ERROR,
    NOTE,
    WARNING,
    Contents,
    Finding,
    Ingredients,
    Lock,
    LockedPackage,
    Needs,
    Parent,
    Recipe,
    Reference,
)
from upshift.images.checks import check, nothing_keeps, replaced, replacement
from upshift.images.parents.contents import contents_of

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


def locked(**packages: str) -> Lock:
    return Lock(
        packages=tuple(
            LockedPackage(name=name.replace("_", "-"), version=version) for name, version in packages.items()
        )
    )


def checked(
    image: str = "team/image:1",
    brings: Mapping[str, str] | None = None,
    *,
    contents: Contents | None = None,
    environment: Mapping[str, str] | None = None,
    recipe: Mapping[str, Any] | None = None,
    origins: Mapping[str, str] | None = None,
    accept: Iterable[str] = (),
    today: date = date(2026, 12, 1),
    platform: str = "linux/amd64",
    **needs: Any,
) -> tuple[Finding, ...]:
    """What is found where the requirements resolved to ``brings``."""
    parent = Parent(
        reference=Reference.parse(image),
        digest="sha256:" + "0" * 64,
        platform="linux/amd64",
        environment=environment or {},
    )
    known = contents or contents_of(parent, registries=None)
    made = Recipe(parent=image, platform=platform, requirements=tuple(brings or ()), **(recipe or {}))
    ingredients = Ingredients(recipe=made, origins=origins or {}, accept=tuple(accept))
    lock = locked(**brings) if brings else None
    found = check(ingredients, parent, known, lock, Needs(**needs), today=today)
    assert all(finding.evidence and finding.fix for finding in found)
    return found


def said(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(finding.severity, finding.what) for finding in findings]


def test_an_image_that_fits_has_nothing_against_it() -> None:
    image = "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime"
    brings = {"accelerate": "1.12.0", "torchvision": "0.21.0"}
    assert checked(image, brings, gpus=NVIDIA, driver="550.54.14", launchers=ACCELERATE) == ()


def test_the_image_of_the_seeds_has_an_old_python() -> None:
    [finding] = checked("pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime", gpus=NVIDIA)
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
    recipe = Recipe(parent="pytorch/pytorch:1.12.1", platform="linux/amd64", requirements=("torch==2.6.0",))
    found = check(Ingredients(recipe=recipe), None, Contents(), None, Needs())
    assert said(found) == [(ERROR, "pytorch/pytorch:1.12.1 has Python 3.7; steps need 3.10 or newer.")]


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


@pytest.mark.parametrize(
    "brings",
    [
        {"torch": "2.6.0", "nvidia_cuda_runtime_cu12": "12.4.127"},
        {"torch": "2.6.0+cu124"},
        {"tensorflow": "2.17.0", "nvidia_cuda_runtime_cu12": "12.3.101"},
        {"cupy_cuda12x": "13.3.0"},
    ],
)
def test_requirements_that_bring_cuda_are_as_good_as_an_image_with_it(brings: dict[str, str]) -> None:
    assert checked("python:3.11-slim", brings, gpus=NVIDIA, driver="550.54.14") == ()


@pytest.mark.parametrize("torch", ["2.6.0+cpu", "2.6.0"])
def test_a_torch_built_without_cuda_is_none_for_a_gpu_step(torch: str) -> None:
    [finding] = checked("python:3.11-slim", {"torch": torch}, gpus=NVIDIA)
    what = "A GPU of NVIDIA is asked for, and the PyTorch of the requirements is built without CUDA."
    assert (finding.severity, finding.what, finding.field) == (ERROR, what, "requirements")


def test_an_old_torch_brings_its_cuda_inside() -> None:
    assert checked("python:3.11-slim", {"torch": "1.12.1"}, gpus=NVIDIA, driver="535.104.05") == ()


def test_cuda_that_the_driver_does_not_run_is_refused_with_what_does() -> None:
    [finding] = checked("pytorch/pytorch:2.14.1-cuda13.0-cudnn9-runtime", gpus=NVIDIA, driver="535.104.05")
    assert finding.severity == ERROR
    assert "The NVIDIA driver 535.104.05 does not run CUDA 13.0" in finding.what
    assert finding.evidence is not None and "CUDA 13 needs a driver from 580 on" in finding.evidence
    assert finding.fix is not None
    assert "2.14.1-cuda12.6" in finding.fix and "update the driver to 580" in finding.fix


def test_a_wheel_whose_cuda_the_driver_does_not_run_has_another_index() -> None:
    brings = {"torch": "2.14.1", "nvidia_cuda_runtime": "13.0.96"}
    [finding] = checked("python:3.11-slim", brings, gpus=NVIDIA, driver="535.104.05")
    assert (
        finding.what == "The NVIDIA driver 535.104.05 does not run CUDA 13.0, which the requirements bring."
    )
    assert finding.fix is not None and "https://download.pytorch.org/whl/cu126" in finding.fix


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
    assert (
        check(Ingredients(recipe=recipe), None, Contents(), None, Needs(gpus=NVIDIA, launchers=ACCELERATE))
        == ()
    )


def test_an_image_that_cannot_be_read_is_judged_by_its_name() -> None:
    def unread(name: str, **needs: Any) -> list[str]:
        recipe = Recipe(parent=name, platform="linux/amd64")
        return [f.what for f in check(Ingredients(recipe=recipe), None, Contents(), None, Needs(**needs))]

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
    assert checked(contents=SLIM, brings={"torch": "2.9.0+rocm6.4"}, gpus=frozenset({"amd"})) == ()
    [neuron] = checked(contents=SLIM, gpus=frozenset({"neuron"}))
    assert "has no Neuron SDK" in neuron.what
    assert checked(contents=SLIM, brings={"torch_neuronx": "2.9.0"}, gpus=frozenset({"neuron"})) == ()
    assert checked(contents=SLIM, gpus=frozenset({"tpu"})) == ()


def test_another_platform_is_refused() -> None:
    assert checked(contents=SLIM, platform="linux/amd64/v2") == ()
    findings = checked(contents=SLIM, platform="linux/arm64")
    assert said(findings) == [(ERROR, "team/image:1 is for linux/amd64; the tasks run on linux/arm64.")]
    [finding] = checked(contents=SLIM, platform="linux/arm64", origins={"platform": "p.py:1 (@step)"})
    assert finding.what == "team/image:1 is for linux/amd64; platform= of the settings says linux/arm64."
    assert 'platform="linux/amd64"' in (finding.fix or "")


HAVE = {"torch": "2.1.0+cu121", "numpy": "1.26.4"}


def test_a_framework_of_the_image_that_requirements_would_replace_is_refused_with_what_keeps_it() -> None:
    assert replaced(HAVE, locked(torchvision="0.16.0", numpy="2.1.0")) == {}
    assert replaced(HAVE, locked(torch="2.14.1")) == {"torch": ("2.1.0+cu121", "2.14.1")}
    keeping = locked(torchvision="0.16.0", timm="1.0.9")
    found = replacement("torch", "2.1.0+cu121", "2.14.1", asked=None, keeping=keeping)
    assert said([found]) == [(ERROR, "The requirements bring torch 2.14.1 over the image's 2.1.0+cu121.")]
    assert found.fix == (
        'Add "torch==2.1.0" to requirements; then they bring torchvision==0.16.0 and timm==1.0.9.'
    )
    nothing = nothing_keeps(found, "torch", "2.1.0+cu121")
    assert nothing.fix is not None and "another torch" in nothing.fix


def test_another_framework_that_is_asked_for_is_a_warning() -> None:
    found = replacement("torch", "2.1.0+cu121", "2.3.0", asked="torch==2.3.0", keeping=None)
    assert said([found]) == [(WARNING, "The image's torch 2.1.0+cu121 is replaced by 2.3.0.")]
    assert found.evidence == "requirements say 'torch==2.3.0'"


def test_the_torch_that_is_installed_counts_and_not_the_images() -> None:
    old = Contents(python="3.10", cuda="11.3", packages={"torch": "1.12.1+cu113"})
    assert checked(contents=old, gpus=NVIDIA, architectures=HOPPER, driver="550.54.14") != ()
    new = {"torch": "2.6.0", "nvidia_cuda_runtime_cu12": "12.4.127"}
    assert checked(contents=old, brings=new, gpus=NVIDIA, architectures=HOPPER, driver="550.54.14") == ()


# Forward compatibility, old tables, and what the user overrules

NEW_CUDA = Contents(python="3.12", cuda="13.0", packages={"torch": "2.14.1+cu130"})


def test_an_image_that_brings_libraries_for_older_drivers_is_no_error() -> None:
    [finding] = checked(contents=NEW_CUDA, gpus=NVIDIA, driver="535.104.05")
    assert (finding.severity, finding.name) == (ERROR, "driver-too-old")
    [finding] = checked(contents=attrs.evolve(NEW_CUDA, compat=True), gpus=NVIDIA, driver="535.104.05")
    assert finding.severity == WARNING and "by forward compatibility" in finding.what
    assert finding.evidence is not None and "it has cuda-compat" in finding.evidence
    named = {"NVIDIA_REQUIRE_CUDA": "cuda>=13.0 brand=tesla,driver>=535,driver<536"}
    [finding] = checked(contents=NEW_CUDA, environment=named, gpus=NVIDIA, driver="535.104.05")
    assert finding.severity == NOTE and "NVIDIA_REQUIRE_CUDA names this driver" in (finding.evidence or "")


def test_a_table_that_nobody_has_read_for_long_refuses_nothing() -> None:
    [finding] = checked(contents=NEW_CUDA, gpus=NVIDIA, driver="535.104.05", today=date(2029, 1, 1))
    assert finding.severity == WARNING
    assert finding.evidence is not None and "that table is 25 months old" in finding.evidence
    seen = attrs.evolve(SLIM, python="3.7.1", source="a look into the image")
    [finding] = checked(contents=seen, today=date(2029, 1, 1))
    assert finding.severity == ERROR  # what was seen does not age


def test_what_is_found_can_be_overruled_by_its_name() -> None:
    accept = {"accept": ["no-cuda"], "origins": {"accept": "pipeline.py:7 (@step)"}}
    [finding] = checked(contents=SLIM, gpus=NVIDIA, **accept)
    assert (finding.severity, finding.name) == (WARNING, "no-cuda")
    assert finding.evidence is not None and finding.evidence.endswith("accepted: pipeline.py:7 (@step)")
    [finding] = checked(contents=SLIM, gpus=NVIDIA, accept=["driver-too-old"])
    assert finding.severity == ERROR
    [finding] = checked(contents=attrs.evolve(SLIM, python="3.7.1"), accept=["other-python", "no-cuda"])
    assert (finding.severity, finding.name) == (ERROR, None)  # nothing of ours runs there


def test_an_accelerated_step_needs_accelerate() -> None:
    image = "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime"
    [finding] = checked(image, {"torchvision": "0.16.0"}, launchers=ACCELERATE)
    assert finding.severity == ERROR
    assert (
        finding.what == f"A step is started with accelerate, which is neither in {image} nor in requirements."
    )
    assert finding.fix == 'Add "accelerate" to requirements.'


def test_accelerate_may_come_with_another_package() -> None:
    assert (
        checked(brings={"peft": "0.17.0", "accelerate": "1.12.0"}, contents=SLIM, launchers=ACCELERATE) == ()
    )


def test_accelerate_in_an_image_of_which_not_all_is_known_is_a_warning() -> None:
    partly = Contents(python="3.12", cuda="12.6", packages={"torch": "2.6.0+cu126"}, complete=False)
    [finding] = checked(contents=partly, launchers=ACCELERATE)
    assert finding.severity == WARNING and "requirements do not name" in finding.what
    assert checked(contents=partly, launchers=frozenset({"torchrun"})) == ()


def test_a_user_that_is_not_in_the_image_is_refused() -> None:
    seen = attrs.evolve(SLIM, users=frozenset({"root", "nobody"}))
    [finding] = checked(contents=seen, recipe={"user": "ml:ml"})
    assert said([finding]) == [(ERROR, "team/image:1 has no user ml.")]
    for user in ("nobody", "1234:1234", "65534"):
        assert checked(contents=seen, recipe={"user": user}) == ()
    assert checked(contents=SLIM, recipe={"user": "ml"}) == ()  # nobody has looked


def test_what_the_steps_import_and_nobody_brings() -> None:
    [finding] = checked(contents=SLIM, imports={"numpy": "2.1.0", "pip": "24.0"})
    assert finding.severity == WARNING
    assert finding.what == "The steps import numpy, which is neither in the image nor in requirements."
    assert finding.fix == "Add to requirements: numpy==2.1.0."


def test_what_requirements_bring_along_is_not_missed() -> None:
    brings = {"pandas": "2.2", "numpy": "2.1.0"}
    assert checked(contents=SLIM, brings=brings, imports={"numpy": "2.1.0", "pandas": "2.2"}) == ()


def test_an_image_whose_numpy_cannot_read_what_this_one_pickles_is_told() -> None:
    found = checked(contents=TORCH, imports={"numpy": "2.1.0"})
    assert [finding.severity for finding in found] == [WARNING, NOTE]
    assert found[0].what == (
        "NumPy is 2.1.0 here and 1.26.4 in the image, which reads no pickles of NumPy 2."
    )
    assert [
        f.severity for f in checked(contents=TORCH, brings={"numpy": "2.2.0"}, imports={"numpy": "2.1.0"})
    ] == [NOTE]


def test_other_versions_there_than_here_are_told() -> None:
    [finding] = checked(contents=TORCH, imports={"torch": "2.3.0", "numpy": "1.26.4"})
    assert finding.severity == NOTE
    assert finding.what.endswith("than on this machine: torch 2.3.0 here, 2.1.0+cu121 there.")
    assert checked(contents=TORCH, imports={"torch": "2.1.0"}) == ()


AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-gpu-py312-cu126-ubuntu22.04-ec2"


def test_a_registry_of_a_cloud_says_how_to_log_in_where_it_could_not_be_read() -> None:
    recipe = Recipe(parent=AWS, platform="linux/amd64")
    [note] = check(Ingredients(recipe=recipe), None, Contents(), None, Needs(gpus=NVIDIA))
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
