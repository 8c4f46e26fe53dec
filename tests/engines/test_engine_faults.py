"""What goes wrong with a real engine: no permission, a daemon that goes in the middle, a full disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_kit import containers_removed
from registries import LoopbackRegistry

from upshift.errors import ImageError
from upshift.images.base import Contents, Destination, Ingredients, Progress, Recipe
from upshift.images.containers.builder import EngineBuilder
from upshift.images.containers.engine import ContainerEngine, find_engine
from upshift.images.reference import Reference
from upshift.images.registries.client import Registries

DAEMON = "/var/run/docker.sock"


def test_a_user_without_permission_is_told_so(docker: ContainerEngine, tmp_path: Path) -> None:
    if os.geteuid() != 0 or os.environ.get("DOCKER_HOST"):
        pytest.skip("only root can ask as another user, and of the daemon on this machine")
    wrapper = tmp_path / "docker"
    as_nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/nonexistent DOCKER_CONFIG="
    wrapper.write_text(f'#!/bin/sh\nexec {as_nobody} {docker.command[0]} "$@"\n')
    wrapper.chmod(0o755)
    with pytest.raises(ImageError, match="this user may not use Docker") as caught:
        find_engine("docker", command=str(wrapper))
    assert "permission denied" in (caught.value.why or "")


def test_a_daemon_that_is_not_there(docker: ContainerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
        with pytest.raises(ImageError, match="its daemon does not answer"):
            find_engine("docker")
        with pytest.raises(ImageError, match="its daemon does not answer"):
            docker.describe("image")


class Stoppable:
    """A daemon that can be stopped: a socket before the one of the real daemon."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._path = path
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def stop(self) -> None:
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            theirs = socket.socket(socket.AF_UNIX)
            theirs.connect(DAEMON)
            self._open += [ours, theirs]
            for source, to in ((ours, theirs), (theirs, ours)):
                thread = threading.Thread(target=self._copy, args=(source, to))
                self._threads.append(thread)
                thread.start()

    def _copy(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                to.sendall(block)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def stoppable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stoppable]:
    """The daemon is reached through a socket in this folder while the block runs."""
    if not os.path.exists(DAEMON):
        pytest.skip(f"no daemon at {DAEMON}: make engines")
    daemon = Stoppable(folder / "docker.sock")
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{folder / 'docker.sock'}")
        yield daemon
    daemon.close()


@pytest.mark.parametrize("kind", ["docker_legacy", "docker_buildkit"])
def test_a_daemon_that_stops_while_it_builds(
    request: pytest.FixtureRequest,
    kind: str,
    base_image_name: str,
    session_label: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine: ContainerEngine = request.getfixturevalue(kind)
    text = f"FROM {base_image_name}\nRUN echo at-work-{kind} && sleep 1000\n"
    said = Ingredients(recipe=Recipe(parent=None, platform=engine.platform, dockerfile=text))
    builder = EngineBuilder(engine, Destination(platform=engine.platform, engine=engine), None)
    with containers_removed(engine, session_label), stoppable(tmp_path, monkeypatch) as daemon:

        def tell(progress: Progress) -> None:
            if progress.text.startswith("at-work"):
                daemon.stop()

        with pytest.raises(ImageError) as caught:
            builder.build(said, None, Contents(), tell=tell)
    assert caught.value.what == "Docker is installed, but its daemon does not answer"
    assert builder.find(said, None, Contents()) is None


@pytest.fixture
def small_disk(podman: ContainerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Podman keeps its images on a disk of 100 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", disk], check=False)
    if mounted.returncode != 0:
        pytest.skip("only root may mount a small disk")
    storage = tmp_path / "storage.conf"
    storage.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{disk}/graph"\nrunroot = "{tmp_path}/run"\n'
    )
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(storage))
    yield disk
    mounts = Path("/proc/self/mountinfo").read_text().split("\n")
    points = [line.split()[4] for line in mounts if line and line.split()[4].startswith(str(tmp_path))]
    for point in sorted(points, reverse=True):
        subprocess.run(["umount", point], check=True)


def test_a_disk_that_is_full(
    podman: ContainerEngine, small_disk: Path, base_image_name: str, registry: LoopbackRegistry
) -> None:
    assert shutil.disk_usage(small_disk).total <= 100 << 20
    with Registries() as registries:
        parent = registries.parent(Reference.parse(base_image_name), podman.platform)
    recipe = Recipe(parent=base_image_name, platform=podman.platform, environment={"A": "1"})
    builder = EngineBuilder(podman, Destination(platform=podman.platform, engine=podman), None)
    with pytest.raises(ImageError) as caught:
        builder.build(Ingredients(recipe=recipe), parent, Contents(), tell=lambda progress: None)
    assert caught.value.what == "the disk on which Podman keeps its images is full"
    assert builder.find(Ingredients(recipe=recipe), parent, Contents()) is None
