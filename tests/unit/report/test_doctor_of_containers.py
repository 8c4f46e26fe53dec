"""What a checkup says of a container engine, by what the engine says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upshift.errors import MissingExtra
from upshift.model.configuration import Target
from upshift.report.doctor import Check, verdict
from upshift.report.doctor.checkup import containers
from upshift.report.terminal import Page

DOCKER = {
    "version": {
        "Client": {"Version": "20.10.24"},
        "Server": {"Version": "20.10.24", "Os": "linux", "Arch": "amd64"},
    },
    "info": {"MemoryLimit": True, "CpuCfsQuota": True, "Runtimes": {"runc": {}}, "SecurityOptions": []},
}
PODMAN = {
    "version": {"Client": {"Version": "4.3.1", "OsArch": "linux/amd64"}},
    "info": {"host": {"cgroupControllers": ["cpu", "memory"], "cgroupVersion": "v2", "security": {}}},
}
Look = Callable[..., dict[str, Check]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """A checkup of an engine whose command line says what a test wants, on a machine of the test's own."""
    programs, root = tmp_path / "bin", tmp_path / "root"
    programs.mkdir()
    (root / "dev").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("UPSHIFT_DEVICE_ROOT", str(root))
    for name in ("DOCKER_BUILDKIT", "DOCKER_AUTH_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def checkup(
        name: str,
        said: dict[str, Any] | None,
        *,
        gpus: bool = False,
        registry: str | None = None,
        options: dict[str, Any] | None = None,
        images: str = "abc\n",
        run: tuple[int, str] = (0, ""),
        **info: Any,
    ) -> dict[str, Check]:
        if said is not None:
            for word, answer in {**said, "info": {**said["info"], **info}}.items():
                (tmp_path / f"{word}.json").write_text(json.dumps(answer))
            (tmp_path / "images.json").write_text(images)
            script = programs / name
            script.write_text(
                f'#!/bin/sh\n[ "$1" = run ] && echo "{run[1]}" >&2 && exit {run[0]}\n'
                f'exec /bin/cat "{tmp_path}/$1.json"\n'
            )
            script.chmod(0o755)
        if gpus:
            for node in ("nvidiactl", "nvidia0"):
                (root / "dev" / node).touch()
        target = Target(name=name, backend=name, registry=registry, options=options or {})
        return {check.name: check for check in containers(target)}

    return checkup


def test_an_engine_on_which_all_is_well(look: Look) -> None:
    found = look("docker", DOCKER)
    assert found["engine"].text == "Docker 20.10.24, linux/amd64"
    assert {check.status for check in found.values()} == {"ok"}
    assert list(found) == [
        "engine",
        "containers",
        "packages",
        "limits",
    ]  # and no word on GPUs, of which there are none
    assert verdict(list(found.values()), Page()) == "Nothing here would stop a step in a container."


def test_whether_a_container_starts_is_tried(look: Look) -> None:
    assert look("podman", PODMAN)["containers"].text == "one was started, and has ended"
    lacks = look("podman", PODMAN, run=(127, "true: no such file"))["containers"]
    assert lacks.status == "ok", "an image without this program was started"
    none = look("podman", PODMAN, images="")["containers"]
    assert (none.status, none.text) == ("ok", "none was tried: no image is there to start one of")
    refused = look("podman", PODMAN, run=(126, "runc: error setting rlimit type 7"))["containers"]
    assert refused.status == "problem" and "error setting rlimit type 7" in refused.text
    assert "default_ulimits" in (refused.remedy or "")


def test_an_engine_that_is_not_installed_says_how_to_get_one(look: Look) -> None:
    found = look("docker", None)
    assert list(found) == ["engine"]
    assert found["engine"].status == "problem" and "not installed" in found["engine"].text
    assert "docker.io" in (found["engine"].remedy or "")
    assert verdict(list(found.values()), Page()).startswith("1 problem: a step in a container would not run")


def test_an_engine_on_another_machine_is_a_problem(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@box")
    engine = look("docker", DOCKER)["engine"]
    assert engine.status == "problem" and "ssh://me@box" in engine.text
    assert engine.remedy == "Unset DOCKER_HOST, or run Upshift on that machine."


def test_packages_that_nothing_can_install_are_told(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(why: str) -> str:
        raise MissingExtra(f"{why}: uv is not installed", fix="pip install 'upshift[images]'")

    monkeypatch.setattr("upshift.report.doctor.checkup.find_uv", missing)
    packages = look("docker", DOCKER)["packages"]
    assert (packages.status, packages.remedy) == ("warning", "pip install 'upshift[images]'")


@pytest.mark.parametrize(
    ("name", "said", "info", "words"),
    [
        ("docker", DOCKER, {"MemoryLimit": False}, "of memory cannot be set"),
        (
            "podman",
            PODMAN,
            {"host": {"cgroupVersion": "v1", "cgroupControllers": ["cpu"], "security": {"rootless": True}}},
            "of memory and CPUs cannot be set",
        ),
    ],
)
def test_limits_that_an_engine_cannot_set_are_a_problem(
    look: Look, name: str, said: dict[str, Any], info: dict[str, Any], words: str
) -> None:
    limits = look(name, said, **info)["limits"]
    assert limits.status == "problem" and words in limits.text and limits.remedy


def test_how_containers_get_gpus(look: Look, tmp_path: Path) -> None:
    folder = tmp_path / "root/etc/cdi"
    folder.mkdir(parents=True)
    none = look("docker", DOCKER, gpus=True)["GPUs"]
    assert none.status == "problem" and "nvidia-ctk runtime configure" in (none.remedy or "")
    assert look("docker", DOCKER, Runtimes={"nvidia": {}})["GPUs"].text == "by --gpus"
    (folder / "other.yaml").write_text("kind: example.org/device\ndevices:\n  - name: all\n")
    none = look("podman", PODMAN)["GPUs"]
    assert none.status == "problem" and "nvidia-ctk cdi generate" in (none.remedy or "")
    (folder / "nvidia.yaml").write_text('cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n  - name: "0"\n')
    assert look("podman", PODMAN)["GPUs"].text == f"by CDI: {folder}/nvidia.yaml"
    assert look("docker", DOCKER, CDISpecDirs=[str(folder)])["GPUs"].text.startswith("by CDI")


def test_a_registry_that_is_down_and_credentials_that_are_not_there(look: Look) -> None:
    found = look("docker", DOCKER, registry="127.0.0.1:9/ml")
    assert found["credentials"].text == "none, for 127.0.0.1:9"
    assert found["registry"].status == "problem" and "127.0.0.1:9/ml/upshift" in found["registry"].text
    assert found["registry"].remedy


def test_a_credential_is_named_by_where_it_is_and_never_shown(look: Look, tmp_path: Path) -> None:
    secret = "dXNlcjpodXNoLWh1c2g="  # user:hush-hush
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"auths": {"127.0.0.1:9": {"auth": secret}}}))
    found = look("docker", DOCKER, registry="127.0.0.1:9/ml")
    assert found["credentials"].text == f"from {file}, for 127.0.0.1:9"
    assert not any(word in repr(found) for word in ("hush-hush", secret))


def test_a_registry_whose_name_makes_no_sense(look: Look) -> None:
    found = look("docker", DOCKER, registry="https://registry.example.org")
    assert found["registry"].status == "problem" and "scheme" in found["registry"].text


def test_little_disk_space_for_images(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage(10**9))
    disk = look("docker", DOCKER, DockerRootDir=str(tmp_path))["disk"]
    assert disk.status == "problem" and "1 GB free" in disk.text
    assert disk.remedy == "upshift image prune removes images that Upshift has built."


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free
