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
from image_kit import Workshop, containers_removed
from registries import LoopbackRegistry

from upshift.errors import ImageError
from upshift.images.base import Progress
from upshift.images.building.builder import Destination
from upshift.images.containers.engine import ContainerEngine, find_engine
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


@pytest.mark.parametrize("engine", ["docker_legacy", "docker_buildkit"], indirect=True)
def test_a_daemon_that_stops_while_it_builds(
    workshop: Workshop, session_label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"FROM {workshop.parent}\nRUN echo at-work-{workshop.name} && sleep 1000\n"
    (workshop.project / "Dockerfile").write_text(text)
    with containers_removed(workshop.engine, session_label), stoppable(tmp_path, monkeypatch) as daemon:

        def tell(progress: Progress) -> None:
            if progress.text.startswith("at-work"):
                daemon.stop()

        prepared = workshop.prepared(dockerfile="Dockerfile")
        with pytest.raises(ImageError) as caught:
            prepared.make(tell)
    assert caught.value.what == "Docker is installed, but its daemon does not answer"
    assert workshop.prepared(dockerfile="Dockerfile").image is None


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
    podman: ContainerEngine,
    small_disk: Path,
    base_image_name: str,
    registry: LoopbackRegistry,
    tmp_path: Path,
) -> None:
    assert shutil.disk_usage(small_disk).total <= 100 << 20
    destination = Destination(platform=podman.platform, engine=podman)
    with Registries() as registries:
        workshop = Workshop(destination, registries, base_image_name, tmp_path, "full")
        error = workshop.fails(environment={"A": "1"})
    assert error.what == "the disk on which Podman keeps its images is full"
