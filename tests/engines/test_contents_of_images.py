"""What is found in a real image: by the engine that has it, and by its layers in a registry."""

from __future__ import annotations

import gzip
import hashlib
import io
import platform
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from image_kit import ImageMaker
from registries import LoopbackRegistry

from upshift.errors import ImageError
from upshift.images.base import Contents, Lock, LockedPackage, Parent, Reference
from upshift.images.checks import replaced
from upshift.images.containers.engine import ContainerEngine
from upshift.images.parents.contents import contents_of
from upshift.images.registries.client import Registries

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
PLATFORM = "linux/amd64"


class NothingToRead:
    """Stands for registries that must not be asked for a layer."""

    def blob(self, reference: Reference, digest: str) -> Iterator[bytes]:
        raise AssertionError(f"layer {digest} was read again")


def read(name: str, registries: Registries | None = None) -> tuple[Parent, Contents]:
    with Registries() as own:
        parent = own.parent(Reference.parse(name), PLATFORM)
        return parent, contents_of(parent, registries=registries or own)


def layer(folder: Path, files: dict[str, bytes]) -> tuple[Path, str]:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    file = folder / f"layer-{len(list(folder.iterdir()))}.tar.gz"
    file.write_bytes(gzip.compress(plain.getvalue(), mtime=0))
    return file, f"sha256:{hashlib.sha256(plain.getvalue()).hexdigest()}"


def test_layers_say_which_python_and_packages_an_image_has(base_image_name: str) -> None:
    _, found = read(base_image_name)
    assert found.python is not None and found.python.startswith(HERE)
    assert found.interpreter is not None and found.interpreter.endswith("/bin/python3")
    assert found.packages is not None and "pip" in found.packages and found.complete
    assert found.cuda == "" and found.source == "its layers"
    assert found.site_packages is not None and found.site_packages.endswith("-packages")


def test_the_engine_and_the_layers_say_the_same(engine: ContainerEngine, base_image_name: str) -> None:
    _, by_layers = read(base_image_name)
    insecure = ["--tls-verify=false"] if engine.name == "podman" else []
    engine.run(["pull", *insecure, base_image_name])
    parent = engine.inspect(Reference.parse(base_image_name))
    assert parent is not None
    found = contents_of(parent, registries=None, engine=engine)
    assert found.source == "a look into the image"
    assert found.python == platform.python_version()
    same = attrs.evolve(found, source=by_layers.source, python=by_layers.python, glibc=by_layers.glibc)
    assert same == by_layers
    assert found.glibc == by_layers.glibc or by_layers.glibc is None


def test_what_the_engine_said_of_an_image_is_kept(docker: ContainerEngine, base_image_name: str) -> None:
    docker.run(["pull", base_image_name])
    parent = docker.inspect(Reference.parse(base_image_name))
    assert parent is not None
    first = contents_of(parent, registries=None, engine=docker)
    broken = attrs.evolve(docker, command=("/nonexistent",))
    assert contents_of(parent, registries=None, engine=broken) == first


def test_layers_are_read_once(base_image_name: str) -> None:
    parent, first = read(base_image_name)
    assert contents_of(parent, registries=NothingToRead()) == first  # type: ignore[arg-type]


def test_a_shared_layer_is_read_once_for_all_images(
    image_maker: ImageMaker, registry: LoopbackRegistry, tmp_path: Path, base_image_name: str
) -> None:
    _, below = read(base_image_name)
    site = (below.site_packages or "").lstrip("/")
    name = image_maker.push(
        "team/with-torch:1",
        layers=(layer(tmp_path, {f"{site}/torch-2.1.0+cu121.dist-info/METADATA": b"Name: torch"}),),
    )

    class OnlyNew:
        def __init__(self, registries: Registries) -> None:
            self.registries = registries
            self.digests: list[str] = []

        def blob(self, reference: Reference, digest: str) -> Iterator[bytes]:
            self.digests.append(digest)
            return self.registries.blob(reference, digest)

    with Registries() as registries:
        parent = registries.parent(Reference.parse(name), PLATFORM)
        counting = OnlyNew(registries)
        found = contents_of(parent, registries=counting)  # type: ignore[arg-type]
    assert counting.digests == [parent.layers[-1]]
    assert found.packages is not None and found.packages["torch"] == "2.1.0+cu121"
    assert found.cuda == "12.1"


def test_a_package_that_a_later_layer_removes_is_not_there(
    image_maker: ImageMaker, registry: LoopbackRegistry, tmp_path: Path, base_image_name: str
) -> None:
    _, below = read(base_image_name)
    site = (below.site_packages or "").lstrip("/")
    name = image_maker.push(
        "team/without-torch:1",
        layers=(
            layer(
                tmp_path,
                {
                    f"{site}/torch-2.1.0+cu121.dist-info/METADATA": b"",
                    f"{site}/six-1.0.dist-info/RECORD": b"",
                },
            ),
            layer(tmp_path, {f"{site}/.wh.torch-2.1.0+cu121.dist-info": b""}),
        ),
    )
    _, found = read(name)
    assert found.packages is not None
    assert "torch" not in found.packages and found.packages["six"] == "1.0"


def test_a_requirement_that_replaces_the_torch_of_an_unknown_image_is_found(
    image_maker: ImageMaker, tmp_path: Path, base_image_name: str
) -> None:
    _, below = read(base_image_name)
    site = (below.site_packages or "").lstrip("/")
    name = image_maker.push(
        "team/gpu:1",
        environment={"CUDA_VERSION": "12.1.1"},
        layers=(layer(tmp_path, {f"{site}/torch-2.1.0+cu121.dist-info/METADATA": b"Name: torch"}),),
    )
    _, found = read(name)
    lock = Lock(packages=(LockedPackage(name="torch", version="2.15.0"),))
    assert found.packages is not None
    assert replaced(found.packages, lock) == {"torch": ("2.1.0+cu121", "2.15.0")}


def test_a_layer_that_is_no_archive_is_an_error_with_its_name(
    image_maker: ImageMaker, registry: LoopbackRegistry, tmp_path: Path
) -> None:
    nonsense = tmp_path / "nonsense.gz"
    nonsense.write_bytes(gzip.compress(b"no archive at all" * 100))
    name = image_maker.push("team/broken:1", layers=((nonsense, "sha256:" + "0" * 64),))
    with pytest.raises(ImageError, match=r"layer sha256:[0-9a-f]{64} is damaged"):
        read(name)


def test_a_cuda_image_is_known_by_its_environment(cuda_images: dict[str, str]) -> None:
    _, found = read(cuda_images["nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04"])
    assert found.cuda == "12.4"
    assert found.python is not None and found.python.startswith(HERE)
