"""Finding an engine and speaking to it: programs of this name stand in, which say what real ones said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from upshift.errors import ImageError, UsageError
from upshift.images.base import Reference
from upshift.images.containers.engine import ContainerEngine, find_engine

DOCKER = {
    "Client": {"Version": "28.2.2", "Os": "linux", "Arch": "amd64"},
    "Server": {"Version": "20.10.24+dfsg1", "Os": "linux", "Arch": "amd64"},
}
PODMAN = {"Client": {"Version": "4.3.1", "OsArch": "linux/arm64"}}
DOWN = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
NOT_ALLOWED = (
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
    'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/version": dial unix /var/run/docker.sock: connect: '
    "permission denied"
)

Program = Callable[..., Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a program on the ``PATH``, where there is nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("DOCKER_BUILDKIT", raising=False)

    def put(
        name: str,
        says: object = "",
        *,
        errors: str = "",
        status: int = 0,
        buildx: bool = False,
        body: str = "",
    ) -> Path:
        said = tmp_path / f"{name}.said"
        said.write_text(says if isinstance(says, str) else json.dumps(says))
        (tmp_path / f"{name}.errors").write_text(errors)
        path = folder / name
        path.write_text(
            f'#!/bin/sh\n[ "$1" = buildx ] && exit {0 if buildx else 1}\n{body}\n'
            f"/bin/cat '{said}'\n/bin/cat '{said.with_suffix('.errors')}' >&2\nexit {status}\n"
        )
        path.chmod(0o755)
        return path

    return put


def test_the_engine_says_what_it_is(program: Program) -> None:
    path = program("docker", DOCKER)
    engine = find_engine()
    assert engine == ContainerEngine(
        name="docker", command=(str(path),), version="20.10.24", platform="linux/amd64", buildkit=False
    )
    assert engine.title == "Docker 20.10.24"


@pytest.mark.parametrize(
    ("client", "server", "buildx", "wanted", "has"),
    [
        ("28.2.2", "28.2.2", True, None, True),
        ("28.2.2", "28.2.2", False, None, False),  # the plugin is missing
        ("20.10.24+dfsg1", "20.10.24", False, None, True),  # it was built in
        ("19.03.1", "19.03.1", False, None, False),  # it did not take RUN --mount yet
        ("28.2.2", "19.03.1", True, None, False),
        ("28.2.2", "28.2.2", True, "0", False),  # the user does not want it
        ("28.2.2", "28.2.2", True, "1", True),
    ],
)
def test_whether_docker_has_buildkit(
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    client: str,
    server: str,
    buildx: bool,
    wanted: str | None,
    has: bool,
) -> None:
    said = {"Client": {"Version": client}, "Server": {"Version": server, "Os": "linux", "Arch": "amd64"}}
    program("docker", said, buildx=buildx)
    if wanted is not None:
        monkeypatch.setenv("DOCKER_BUILDKIT", wanted)
    assert find_engine("docker").buildkit is has


def test_podman_is_found_where_there_is_no_docker(program: Program) -> None:
    program("podman", PODMAN)
    engine = find_engine()
    assert (engine.name, engine.version, engine.platform, engine.buildkit) == (
        "podman",
        "4.3.1",
        "linux/arm64",
        False,
    )


def test_podman_that_is_called_docker_is_podman(program: Program) -> None:
    program("docker", PODMAN)
    assert find_engine("docker").name == "podman"


def test_podman_is_taken_where_docker_does_not_run(program: Program) -> None:
    program("docker", {"Client": DOCKER["Client"]}, errors=DOWN, status=1)
    with pytest.raises(ImageError, match="its daemon does not answer"):
        find_engine()
    program("podman", PODMAN)
    assert find_engine().name == "podman"
    with pytest.raises(ImageError, match="its daemon does not answer"):
        find_engine("docker")


def test_no_engine_is_installed(program: Program) -> None:
    with pytest.raises(ImageError) as caught:
        find_engine()
    assert str(caught.value) == (
        "no container engine is installed\n"
        "  why:   There is no 'docker' and no 'podman' on the PATH.\n"
        "  fix:   Install one (on Debian and Ubuntu: docker.io, or podman). Without any, images can be built "
        "for other machines, and steps run on this machine itself (target local)."
    )
    with pytest.raises(ImageError, match="Podman is not installed"):
        find_engine("podman")


def test_a_name_that_is_no_engine(program: Program) -> None:
    with pytest.raises(UsageError, match="no container engine is called 'dokcer'") as caught:
        find_engine("dokcer")
    assert "Did you mean 'docker'" in str(caught.value)


@pytest.mark.parametrize("says", [{"Client": DOCKER["Client"], "Server": None}, ""])
def test_a_daemon_that_does_not_run(program: Program, says: object) -> None:
    program("docker", says, errors=DOWN, status=1)
    with pytest.raises(ImageError) as caught:
        find_engine("docker")
    assert caught.value.what == "Docker is installed, but its daemon does not answer"
    assert caught.value.why == DOWN
    assert "sudo systemctl start docker" in (caught.value.fix or "")


def test_a_user_who_may_not_use_the_socket(program: Program) -> None:
    program("docker", {"Client": DOCKER["Client"]}, errors=NOT_ALLOWED, status=1)
    with pytest.raises(ImageError) as caught:
        find_engine("docker")
    assert caught.value.what == "this user may not use Docker"
    assert "sudo usermod -aG docker $USER" in (caught.value.fix or "")


def test_a_program_that_is_no_engine(program: Program) -> None:
    program("docker", "hello\n")
    with pytest.raises(ImageError, match="docker version failed") as caught:
        find_engine("docker")
    assert caught.value.why == "hello"


def test_a_program_that_cannot_be_started(program: Program) -> None:
    path = program("docker", DOCKER)
    engine = find_engine("docker")
    path.unlink()
    with pytest.raises(ImageError, match="cannot be started"):
        engine.run(["ps"])
    with pytest.raises(ImageError, match="cannot be started"):
        engine.stream(["ps"], print)


def test_an_engine_that_does_not_answer_in_time(program: Program, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    program("docker", DOCKER)
    engine = find_engine("docker")
    program("docker", body=f"exec /bin/cat '{tmp_path / 'never'}'")
    with pytest.raises(ImageError, match=r"docker did not answer within 0.2 s: ps --all"):
        engine.run(["ps", "--all"], timeout=0.2)


@pytest.mark.parametrize("as_list", [True, False], ids=["podman", "docker"])
def test_what_an_engine_says_of_an_image(program: Program, as_list: bool) -> None:
    said = {
        "Id": "f" * 64,
        "RepoTags": ["base:1"],
        "RepoDigests": ["other.example/base@sha256:" + "1" * 64, "r.example/ml/base@sha256:" + "2" * 64],
        "Os": "linux",
        "Architecture": "arm64",
        "Variant": "v8",
        "Size": 123,
        "Config": {
            "Env": ["A=1=2", "B="],
            "Labels": {"l": "1"},
            "User": "1000",
            "Entrypoint": ["/e"],
            "WorkingDir": "/w",
        },
    }
    program("docker", DOCKER)
    engine = find_engine("docker")
    program("docker", [said] if as_list else said)
    parent = engine.inspect(Reference.parse("r.example/ml/base:1"))
    assert parent is not None
    assert parent.digest == "sha256:" + "2" * 64  # as it is called where it was asked for
    assert (parent.platform, parent.environment, parent.labels) == (
        "linux/arm64",
        {"A": "1=2", "B": ""},
        {"l": "1"},
    )
    assert (parent.user, parent.bytes) == ("1000", 123)
    local = engine.inspect("base:1")
    assert local is not None and local.digest == "sha256:" + "f" * 64  # it is from no registry of this name


@pytest.mark.parametrize("said", ["Error: No such image: base:1", "Error: base:1: image not known"])
def test_an_image_that_is_not_there(program: Program, said: str) -> None:
    program("docker", DOCKER)
    engine = find_engine("docker")
    program("docker", errors=said, status=1)
    assert engine.inspect("base:1") is None


def test_a_daemon_that_has_gone_is_no_missing_image(program: Program) -> None:
    program("docker", DOCKER)
    engine = find_engine("docker")
    program("docker", errors=DOWN, status=1)
    with pytest.raises(ImageError, match="its daemon does not answer"):
        engine.inspect("base:1")


def test_lines_come_as_they_are_written_and_what_they_raise_ends_the_command(
    program: Program, tmp_path: Path
) -> None:
    class Enough(Exception):
        pass

    os.mkfifo(tmp_path / "never")
    program("docker", DOCKER)
    engine = find_engine("docker")
    program(
        "docker",
        body=f"trap 'echo tidied > {tmp_path}/tidied; exit 1' INT\nexec 3<>'{tmp_path / 'never'}'\n"
        "echo one; echo two >&2\nread word <&3",
    )
    seen: list[str] = []

    def on_line(line: str) -> None:
        seen.append(line)
        if line == "two":
            raise Enough

    with pytest.raises(Enough):
        engine.stream(["build"], on_line)
    assert seen == ["one", "two"]
    assert (tmp_path / "tidied").read_text() == "tidied\n"


def test_a_command_gets_its_variables_and_its_input(program: Program) -> None:
    program("docker", DOCKER)
    engine = find_engine("docker")
    program("docker", body="/bin/cat; echo $MORE; echo $0 >&2")
    lines: list[str] = []
    status, last = engine.stream(["x"], lines.append, environment={"MORE": "more"})
    assert (status, lines[:1], list(last)) == (0, ["more"], lines)
    assert engine.run(["x"], input="text\n").stdout.startswith("text\n")


def test_a_full_disk_is_named(program: Program) -> None:
    program("docker", DOCKER)
    engine = find_engine("docker")
    program("docker", errors="write /var/lib/docker/tmp/x: no space left on device", status=1)
    with pytest.raises(ImageError, match="the disk on which Docker keeps its images is full") as caught:
        engine.run(["pull", "x"])
    assert "upshift image prune" in (caught.value.fix or "")


def test_layers_that_an_old_docker_cannot_read_are_named(program: Program) -> None:
    program("docker", DOCKER)
    engine = find_engine("docker")
    said = (
        "failed to register layer: Error processing tar file(exit status 1): archive/tar: invalid tar header"
    )
    program("docker", errors=said, status=1)
    with pytest.raises(ImageError, match="Docker cannot read a layer of the image") as caught:
        engine.run(["pull", "x"])
    assert "zstd" in (caught.value.fix or "")
