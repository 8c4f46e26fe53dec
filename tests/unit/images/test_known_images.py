"""What is known of images by their names, and which official one is the nearest."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from upshift.images.base import Contents, Parent, Reference
from upshift.images.gpu_checks import OFFICIAL, nearest
from upshift.images.parents.contents import contents_of
from upshift.images.parents.known import cuda_of, known, minor, rocm_of
from upshift.runtime.accelerators import compatibility


def parent(name: str, environment: Mapping[str, str] | None = None, **more: object) -> Parent:
    return Parent(
        reference=Reference.parse(name),
        digest="sha256:" + "0" * 64,
        platform="linux/amd64",
        environment=environment or {},
        **more,  # type: ignore[arg-type]
    )


def contents(name: str, **environment: str) -> Contents:
    return contents_of(parent(name, environment), registries=None)


def test_pytorch_says_python_cuda_and_packages_by_its_tag() -> None:
    found = contents("pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime", PYTORCH_VERSION="2.1.0")
    assert (found.python, found.cuda) == ("3.10", "12.1")
    assert found.packages == {"torch": "2.1.0+cu121"}
    assert not found.complete and "accelerate" in found.lacks
    assert found.interpreter == "/opt/conda/bin/python3"
    assert found.glibc == "2.31"
    assert found.source == "the table of known images"


def test_newer_images_of_pytorch_have_ubuntus_python() -> None:
    found = contents("pytorch/pytorch:2.14.1-cuda12.6-cudnn9-runtime")
    assert found.interpreter == "/usr/bin/python3"
    assert found.site_packages == "/usr/local/lib/python3.12/dist-packages"


def test_the_images_of_the_seeds() -> None:
    old = contents("pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime")
    assert (old.python, old.cuda) == ("3.7", "11.3")
    assert old.packages == {"torch": "1.12.1+cu113"}
    latest = contents("tensorflow/tensorflow:latest-gpu", CUDA_VERSION="12.3.0")
    assert (latest.python, latest.cuda) == ("3.11", "12.3")
    assert "torch" in latest.lacks


@pytest.mark.parametrize(
    ("name", "environment", "python", "cuda", "glibc"),
    [
        ("python:3.11-slim", {"PYTHON_VERSION": "3.11.15"}, "3.11.15", "", None),
        ("python:3.12.4-slim-bookworm", {}, "3.12.4", "", "2.36"),
        ("python:slim", {"PYTHON_VERSION": "3.14.7"}, "3.14.7", "", None),
        ("python:3.11-alpine3.20", {}, "3.11", "", ""),
        ("nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04", {"CUDA_VERSION": "12.4.1"}, "", "12.4", "2.35"),
        ("nvcr.io/nvidia/cuda:11.8.0-base-ubuntu20.04", {}, "", "11.8", "2.31"),
        ("tensorflow/tensorflow:2.13.0-gpu", {"CUDA_VERSION": "11.8.0"}, "3.8", "11.8", "2.31"),
        ("tensorflow/tensorflow:2.15.0", {}, "3.11", "", "2.35"),
        (
            "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-gpu-py312-cu126-ubuntu22.04-ec2",
            {},
            "3.12",
            "12.6",
            "2.35",
        ),
        ("public.ecr.aws/deep-learning-containers/pytorch:2.11.0-cu130-amzn2023", {}, "3.12", "13.0", "2.34"),
        (
            "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.6.0-cpu-py312-ubuntu22.04-ec2",
            {},
            "3.12",
            "",
            "2.35",
        ),
        (
            "us-docker.pkg.dev/deeplearning-platform-release/gcr.io/"
            "huggingface-pytorch-training-cu121.2-3.transformers.4-42.ubuntu2204.py310",
            {},
            "3.10",
            "12.1",
            "2.35",
        ),
        ("gcr.io/deeplearning-platform-release/pytorch-cpu.2-1.py310", {}, "3.10", "", None),
        (
            "mcr.microsoft.com/azureml/minimal-ubuntu22.04-py39-cuda11.8-gpu-inference",
            {},
            "3.9",
            "11.8",
            "2.35",
        ),
        ("mcr.microsoft.com/azureml/minimal-ubuntu22.04-py39-cpu-inference", {}, "3.9", "", "2.35"),
        ("rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0", {}, "3.12", "", "2.39"),
    ],
)
def test_images_known_by_name(
    name: str, environment: dict[str, str], python: str, cuda: str, glibc: str | None
) -> None:
    found = contents(name, **environment)
    assert (found.python, found.cuda, found.glibc) == (python, cuda, glibc)


def test_other_vendors_are_told_apart() -> None:
    assert contents("rocm/pytorch:rocm7.2_ubuntu24.04_py3.12_pytorch_release_2.9.1").stacks["amd"] == "7.2"
    neuron = contents(
        "public.ecr.aws/neuron/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04"
    )
    assert (neuron.stacks["neuron"], neuron.cuda) == ("2.30.0", "")
    assert contents("python:3.12-slim").stacks == {"amd": "", "neuron": ""}


@pytest.mark.parametrize(
    "name",
    [
        "registry.example.org/mirror/pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
        "localhost:5000/library/python:3.11-slim",
        "docker.io/somebody/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
    ],
)
def test_a_mirror_is_not_taken_for_what_it_is_called(name: str) -> None:
    assert known(Reference.parse(name)) is None


@pytest.mark.parametrize(
    "name",
    [
        "pytorch/pytorch:latest",
        "pytorch/pytorch:9.9.9-cuda20.0-cudnn9-runtime",
        "python:3.12-windowsservercore",
        "nvidia/cuda:12.4.1-runtime-rockylinux9",
        "tensorflow/tensorflow:nightly",
    ],
)
def test_a_tag_that_says_nothing_is_not_guessed_at(name: str) -> None:
    assert known(Reference.parse(name)) is None


def test_which_registries_want_a_login_is_known() -> None:
    found = known(
        Reference.parse(
            "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.9.0-gpu-py312-cu130-ubuntu22.04-ec2"
        )
    )
    assert found is not None and found.private
    public = known(Reference.parse("public.ecr.aws/deep-learning-containers/pytorch:2.11.0-cu130-amzn2023"))
    assert public is not None and public.private is None


def test_the_configuration_says_what_no_table_knows() -> None:
    found = contents("somebody/gpu:1", CUDA_VERSION="11.8.0", PYTORCH_VERSION="2.0.1")
    assert (found.cuda, found.packages, found.complete) == ("11.8", {"torch": "2.0.1"}, False)
    assert found.source == "its configuration"


def test_distributions_are_told_by_labels_and_history() -> None:
    ubuntu = {"org.opencontainers.image.ref.name": "ubuntu", "org.opencontainers.image.version": "24.04"}
    assert contents_of(parent("me/x:1", labels=ubuntu), registries=None).glibc == "2.39"
    history = {"history": [{"created_by": "# debian.sh --arch 'amd64' out/ 'trixie' '@1'"}]}
    assert contents_of(parent("me/x:1", config=history), registries=None).glibc == "2.41"
    assert contents_of(parent("me/x:1", config={"history": "?"}), registries=None).glibc is None


def test_every_known_image_names_a_source_with_a_date() -> None:
    for name in (
        "python:3.12-slim",
        "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
        "nvidia/cuda:12.4.1-base-ubuntu22.04",
        "tensorflow/tensorflow:2.15.0",
        "rocm/pytorch:rocm7.2_ubuntu24.04_py3.12_pytorch_release_2.9.1",
        "mcr.microsoft.com/azureml/minimal-ubuntu22.04-py39-cpu-inference",
        "gcr.io/deeplearning-platform-release/pytorch-cpu.2-1.py310",
    ):
        found = known(Reference.parse(name))
        assert found is not None and re.search(r"read on 20\d\d-\d\d-\d\d$", found.source), name


def test_official_images_are_known_images_with_the_same_contents() -> None:
    assert len({image.reference for image in OFFICIAL}) == len(OFFICIAL)
    for image in OFFICIAL:
        found = known(Reference.parse(image.reference))
        assert found is not None, image.reference
        assert (found.contents.python, found.contents.cuda) == (image.python, image.cuda)
        torch = (found.contents.packages or {}).get("torch")
        assert torch is not None and torch.startswith(f"{image.torch}+cu"), image.reference


def test_official_images_have_a_cuda_that_there_are_wheels_of() -> None:
    for image in OFFICIAL:
        wheels = compatibility.TORCH_WHEELS["x86_64"].get(minor(image.torch))
        assert wheels is None or image.cuda in wheels, image.reference


@pytest.mark.parametrize(
    ("wanted", "reference"),
    [
        ({}, "pytorch/pytorch:2.14.1-cuda12.6-cudnn9-runtime"),
        ({"driver": "595.45.04"}, "pytorch/pytorch:2.14.1-cuda13.2-cudnn9-runtime"),
        ({"driver": "580.65.06"}, "pytorch/pytorch:2.14.1-cuda13.0-cudnn9-runtime"),
        ({"driver": "535.104.05"}, "pytorch/pytorch:2.14.1-cuda12.6-cudnn9-runtime"),
        ({"driver": "470.82.01"}, "pytorch/pytorch:2.7.1-cuda11.8-cudnn9-runtime"),
        ({"torch": "1.12.1+cu113"}, "pytorch/pytorch:1.13.1-cuda11.6-cudnn8-runtime"),
        ({"torch": "2.1.0"}, "pytorch/pytorch:2.1.2-cuda11.8-cudnn8-runtime"),
        ({"torch": "2.1.0", "driver": "550.54.14"}, "pytorch/pytorch:2.1.2-cuda12.1-cudnn8-runtime"),
        ({"architectures": ("12.0",)}, "pytorch/pytorch:2.14.1-cuda13.0-cudnn9-runtime"),
        ({"architectures": ("7.0",)}, "pytorch/pytorch:2.14.1-cuda12.6-cudnn9-runtime"),
        ({"architectures": ("9.0",), "torch": "1.12.1"}, "pytorch/pytorch:2.1.2-cuda11.8-cudnn8-runtime"),
        ({"python": "3.11"}, "pytorch/pytorch:2.9.1-cuda12.6-cudnn9-runtime"),
        ({"cuda": "12.4"}, "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime"),
        ({"cuda": "12.4", "python": "3.12"}, "pytorch/pytorch:2.14.1-cuda12.6-cudnn9-runtime"),
        ({"cuda": "12.4", "driver": "470.82.01"}, "pytorch/pytorch:2.7.1-cuda11.8-cudnn9-runtime"),
        ({"cuda": "12"}, "pytorch/pytorch:2.14.1-cuda12.6-cudnn9-runtime"),
    ],
)
def test_the_nearest_official_image(wanted: dict[str, object], reference: str) -> None:
    found = nearest(**wanted)  # type: ignore[arg-type]
    assert found is not None and found.reference == reference


def test_nothing_is_recommended_where_nothing_fits() -> None:
    assert nearest(driver="418.87.00") is None
    assert nearest(python="3.9") is None
    assert nearest(platform="linux/arm64") is None
    assert nearest(architectures=["unknown"]) is not None


def test_local_versions_say_the_build() -> None:
    assert [cuda_of(v) for v in ("2.1.0+cu121", "2.1.0+cpu", "2.1.0+rocm6.1", "2.1.0", "2.1.0+git1")] == [
        "12.1",
        "",
        "",
        None,
        None,
    ]
    assert rocm_of("2.9.0+rocm6.4") == "6.4" and rocm_of("2.9.0+cu126") is None
