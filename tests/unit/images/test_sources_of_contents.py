"""Which source is asked for what is in an image, and which one counts."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import pytest

from upshift.errors import ImageError
from upshift.images.base import Parent, Reference
from upshift.images.containers.engine import ContainerEngine
from upshift.images.parents.contents import contents_of

SITE = "usr/local/lib/python3.11/site-packages"
FILES = {
    "usr/local/bin/python3": "ELF",
    "usr/local/lib/python3.11/os.py": "",
    f"{SITE}/six-1.16.0.dist-info/METADATA": "",
}


def archive(files: Mapping[str, str]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return plain.getvalue()


class Layers:
    """Stands for a registry: layers, and which of them were read."""

    def __init__(self, *layers: bytes) -> None:
        self.blobs = {f"sha256:{hashlib.sha256(layer).hexdigest()}": layer for layer in layers}
        self.read: list[str] = []

    def blob(self, reference: Reference, digest: str) -> Iterator[bytes]:
        self.read.append(digest)
        if digest not in self.blobs:
            raise ImageError(f"no layer {digest}")
        yield self.blobs[digest]


@attrs.frozen(kw_only=True)
class Engine(ContainerEngine):
    """An engine whose containers write what they are told."""

    output: str
    status: int
    asked: list[list[str]] = attrs.field(factory=list)

    def run(self, args: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.asked.append(list(args))
        return subprocess.CompletedProcess(args, self.status, self.output, "")


def engine(output: str, status: int = 0) -> Engine:
    return Engine(
        name="docker",
        command=("docker",),
        version="20.10",
        platform="linux/amd64",
        buildkit=True,
        output=output,
        status=status,
    )


def parent(name: str, layers: Layers | None = None, **more: Any) -> Parent:
    said: dict[str, Any] = {"environment": {"PATH": "/usr/local/bin:/usr/bin"}, **more}
    digest = "sha256:" + hashlib.sha256(name.encode()).hexdigest()
    return Parent(
        reference=Reference.parse(name),
        digest=digest,
        platform="linux/amd64",
        layers=tuple(layers.blobs) if layers else (),
        **said,
    )


def test_an_unknown_image_has_its_layers_read_and_a_known_one_not() -> None:
    layers = Layers(archive(FILES))
    found = contents_of(parent("team/base:1", layers), registries=layers)  # type: ignore[arg-type]
    assert found.packages == {"six": "1.16.0"} and found.source == "its layers"
    known = Layers(archive({}))
    contents_of(parent("python:3.11-slim", known), registries=known)  # type: ignore[arg-type]
    assert known.read == []


def test_an_image_that_packages_are_laid_on_is_known_whole() -> None:
    name = (
        "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-gpu-py312-cu126-ubuntu22.04-ec2"
    )
    layers = Layers(archive(FILES))
    for_checks = contents_of(parent(name, layers), registries=layers)  # type: ignore[arg-type]
    assert for_checks.site_packages is None and layers.read == []
    for_building = contents_of(parent(name, layers), registries=layers, whole=True)  # type: ignore[arg-type]
    assert for_building.site_packages == f"/{SITE}" and layers.read
    complete = Layers(archive({}))
    image = parent("python:3.12-slim", complete)
    contents_of(image, registries=complete, whole=True)  # type: ignore[arg-type]
    assert complete.read == []


def test_the_configuration_says_cuda_whatever_files_there_are() -> None:
    layers = Layers(archive(FILES))
    image = parent("team/gpu:1", layers, environment={"PATH": "/usr/local/bin", "CUDA_VERSION": "12.4.1"})
    assert contents_of(image, registries=layers).cuda == "12.4"  # type: ignore[arg-type]


def test_a_layer_that_cannot_be_read_is_an_error_and_nothing_of_it_is_kept() -> None:
    layers = Layers(archive(FILES))
    image = parent("team/half:1", layers)
    whole, layers.blobs = layers.blobs, {}
    with pytest.raises(ImageError, match="no layer"):
        contents_of(image, registries=layers)  # type: ignore[arg-type]
    layers.blobs = whole
    assert contents_of(image, registries=layers).packages == {"six": "1.16.0"}  # type: ignore[arg-type]


def test_an_image_of_the_engine_is_asked_itself_though_a_table_knows_it() -> None:
    said = {
        "python": "3.11.9",
        "marks": ["/usr/local/bin/python3.11", f"/{SITE}/torch-2.9.0+cu128.dist-info"],
        "texts": {"/etc/os-release": 'ID=debian\nVERSION_ID="12"\n'},
        "links": {"/usr/local/bin/python3": "/usr/local/bin/python3.11"},
    }
    docker = engine("some warning\n" + json.dumps(said) + "\n")
    found = contents_of(parent("python:3.11-slim", in_engine=True), registries=None, engine=docker)
    assert (found.python, found.packages, found.cuda) == ("3.11.9", {"torch": "2.9.0+cu128"}, "12.8")
    assert (found.glibc, found.source) == ("2.36", "a look into the image")
    [asked] = docker.asked
    assert asked[4:9] == ["--pull", "never", "--network", "none", "--entrypoint"]


def test_an_image_of_the_engine_without_python_says_so() -> None:
    found = contents_of(parent("team/bare:1", in_engine=True), registries=None, engine=engine("", 127))
    assert found.python == "" and found.packages == {}


@pytest.mark.parametrize("output", ["", "Traceback …", '{"python": 3}', "[]"])
def test_a_look_that_fails_says_nothing(output: str) -> None:
    image = parent("python:3.11-slim", in_engine=True, environment={"PYTHON_VERSION": "3.11.15"})
    found = contents_of(image, registries=None, engine=engine(output, 1))
    assert (found.python, found.source) == ("3.11.15", "the table of known images")


def test_an_image_for_another_platform_is_not_started() -> None:
    docker = engine("")
    image = Parent(
        reference=Reference.parse("team/arm:1"), digest="sha256:1", platform="linux/arm64", in_engine=True
    )
    contents_of(image, registries=None, engine=docker)
    assert docker.asked == []
