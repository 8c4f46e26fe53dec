"""Real engines and a real registry. ``make engines`` installs and starts what is needed here.

Every image of these tests carries a label of the session, which containers and what is built on it
inherit; at the end of the session, what carries it is removed.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import base_image
import pytest
from image_kit import SESSION_LABEL, ImageMaker, Workshop
from registries import LoopbackRegistry, running

from upshift.errors import UpshiftError
from upshift.images.building.builder import Destination
from upshift.images.containers.engine import ContainerEngine, find_engine
from upshift.images.registries.client import Registries

HERE = Path(__file__).parent
_DEBIANS_DOCKER = "/usr/bin/docker"

CUDA = {
    "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04": (
        {
            "NVARCH": "x86_64",
            "NVIDIA_REQUIRE_CUDA": "cuda>=12.4 brand=tesla,driver>=470,driver<471",
            "NV_CUDA_CUDART_VERSION": "12.4.127-1",
            "CUDA_VERSION": "12.4.1",
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
        {
            "maintainer": "NVIDIA CORPORATION <cudatools@nvidia.com>",
            "org.opencontainers.image.version": "22.04",
        },
    ),
    "pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime": (
        {
            "PYTORCH_VERSION": "2.4.0",
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
        {"org.opencontainers.image.version": "22.04"},
    ),
}
"""Stand-ins: the base image with the environment and labels of the real ones."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever test comes first makes the images of the session, which takes long where much else goes on."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def session_label() -> str:
    return uuid.uuid4().hex[:12]


@pytest.fixture(scope="session")
def running_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackRegistry]:
    """The session's registry; nobody is logged in."""
    for program in ("docker-registry", "htpasswd"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: make engines")
    with running(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(scope="session")
def image_maker(running_registry: LoopbackRegistry, session_label: str) -> ImageMaker:
    """What makes more images for tests."""
    layer = base_image.layer()
    plain = hashlib.sha256()
    with gzip.open(layer) as data:
        while block := data.read(1 << 20):
            plain.update(block)
    return ImageMaker(running_registry, layer, f"sha256:{plain.hexdigest()}", session_label)


@pytest.fixture
def registry(running_registry: LoopbackRegistry, monkeypatch: pytest.MonkeyPatch) -> LoopbackRegistry:
    """A registry with a password on loopback, to which this test and what it starts are logged in."""
    monkeypatch.setenv("DOCKER_CONFIG", str(running_registry.login))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(running_registry.login / "config.json"))
    return running_registry


@pytest.fixture(scope="session")
def _base_image(image_maker: ImageMaker) -> str:
    return image_maker.push(f"python:{base_image.MINOR}-slim")


@pytest.fixture
def base_image_name(_base_image: str, registry: LoopbackRegistry) -> str:
    """Full name of an image in the registry with the running Python, pip, a shell and apt."""
    return _base_image


@pytest.fixture(scope="session")
def _cuda_images(image_maker: ImageMaker) -> dict[str, str]:
    return {
        name: image_maker.push(name, environment=environment, labels=labels)
        for name, (environment, labels) in CUDA.items()
    }


@pytest.fixture
def cuda_images(_cuda_images: dict[str, str], registry: LoopbackRegistry) -> dict[str, str]:
    """Official name to full name in the registry of stand-ins for images with CUDA."""
    return _cuda_images


def _found(name: str, command: str | None = None) -> ContainerEngine:
    try:
        return find_engine(name, command=command)
    except UpshiftError as error:
        pytest.skip(f"{error.in_short}: make engines")


def _removed(engine: ContainerEngine, session: str) -> list[str]:
    """Remove the containers of this session; returns what they were."""
    listed = [
        "ps",
        "--all",
        "--filter",
        f"label={SESSION_LABEL}={session}",
        "--format",
        "{{.ID}} {{.Command}}",
    ]
    left = engine.run(listed).stdout.splitlines()
    if left:
        engine.run(["rm", "--force", "--volumes", *(line.split()[0] for line in left)])
    return left


@pytest.fixture(scope="session")
def _clean_up(session_label: str) -> Iterator[Callable[[ContainerEngine], None]]:
    used: dict[str, ContainerEngine] = {}
    yield lambda engine: used.update({engine.name: engine})
    for engine in used.values():
        _removed(engine, session_label)
        listed = [
            "images",
            "--all",
            "--quiet",
            "--no-trunc",
            "--filter",
            f"label={SESSION_LABEL}={session_label}",
        ]
        left: set[str] = set()
        while (images := set(engine.run(listed).stdout.split())) != left:  # those built on others go first
            left = images
            for image in images:
                engine.run(["rmi", "--force", image], check=False)  # may have gone with another one


@pytest.fixture
def docker(_clean_up: Callable[[ContainerEngine], None], session_label: str) -> Iterator[ContainerEngine]:
    """Docker, as it is on the ``PATH``. A test that leaves a container behind fails."""
    engine = _found("docker")
    _clean_up(engine)
    yield engine
    left = _removed(engine, session_label)
    assert not left, f"containers left behind: {left}"


@pytest.fixture
def docker_buildkit(docker: ContainerEngine, monkeypatch: pytest.MonkeyPatch) -> ContainerEngine:
    """Docker with BuildKit: the one on the ``PATH``, or else Debian's own."""
    monkeypatch.delenv("DOCKER_BUILDKIT", raising=False)
    engine = docker if docker.buildkit else _found("docker", _DEBIANS_DOCKER)
    if not engine.buildkit:
        pytest.skip("no docker command with BuildKit here")
    return engine


@pytest.fixture
def docker_legacy(docker: ContainerEngine, monkeypatch: pytest.MonkeyPatch) -> ContainerEngine:
    """Docker with the builder that it had before BuildKit."""
    monkeypatch.setenv("DOCKER_BUILDKIT", "0")
    return _found("docker")


@pytest.fixture
def podman(
    _clean_up: Callable[[ContainerEngine], None], session_label: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ContainerEngine]:
    """Podman, set up for machines without systemd. A test that leaves a container behind fails."""
    monkeypatch.setenv("CONTAINERS_CONF", str(HERE / "containers.conf"))
    engine = _found("podman")
    _clean_up(engine)
    yield engine
    left = _removed(engine, session_label)
    assert not left, f"containers left behind: {left}"


@pytest.fixture
def workshop(
    engine: ContainerEngine, base_image_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Workshop]:
    """Makes images for tasks that run in the engine, in a project of its own."""
    project = tmp_path / "project"
    project.mkdir()
    destination = Destination(platform=engine.platform, engine=engine)
    with Registries() as registries:
        yield Workshop(destination, registries, base_image_name, project, request.node.name)


@pytest.fixture(params=["docker_legacy", "docker_buildkit", "podman"])
def engine(request: pytest.FixtureRequest) -> ContainerEngine:
    """Each of the engines in turn, Docker with both of its builders."""
    found: ContainerEngine = request.getfixturevalue(request.param)
    return found
