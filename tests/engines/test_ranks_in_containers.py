"""Steps of several processes in a container: they meet, one fails for all, and a module has its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import upshift
from containers import CONF, EngineWithImage, engine_with_image
from project import Project


@pytest.fixture(scope="module")
def docker_with_image() -> Iterator[EngineWithImage]:
    yield from engine_with_image("docker")


@pytest.fixture(scope="module")
def podman_with_image() -> Iterator[EngineWithImage]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(CONF))
        yield from engine_with_image("podman")


@pytest.fixture(params=["docker", "podman"])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """A project whose steps run in containers of an engine. None may be left."""
    monkeypatch.setenv("CONTAINERS_CONF", str(CONF))
    made: EngineWithImage = request.getfixturevalue(f"{request.param}_with_image")
    project = Project(tmp_path / "project", upshift_home)
    (project.folder / "upshift.toml").write_text(
        f'default_target = "box"\n[targets.box]\nbackend = "{made.engine.name}"\n'
        f'[targets.box.options]\nimage = "{made.image}"\n'
    )
    yield project
    assert made.left() == []


MEETING = """
import os, socket
import upshift
from upshift import run_with_torchrun

@run_with_torchrun(nproc_per_node=3)
@step
def act(words: list[str]) -> list[str]:
    rank, size = upshift.current.rank, upshift.current.world_size
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), str(size))
    print("this is", words[rank])
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank:
        sock = socket.socket()
        while sock.connect_ex(where):
            sock = socket.socket()
        sock.sendall(words[rank].encode())
        sock.close()
        return None
    with socket.create_server(where) as server:
        heard = [server.accept()[0].makefile().read() for _ in range(size - 1)]
    return sorted([words[0], *heard])

@pipeline
def example():
    return act(["a", "b", "c"])
"""


def test_ranks_meet_in_one_container(project: Project) -> None:
    outcome = project.run(MEETING, timeout=100)
    assert upshift.get_run("latest").output == ["a", "b", "c"]
    for rank, word in enumerate("abc"):
        assert f"[act] [rank {rank}] this is {word}\n" in outcome.out
    attempt = project.attempt("act")
    assert attempt["granted"]["processes"] == 3
    ranks = attempt["seen"]["ranks"]
    assert [(rank["rank"], rank["local_rank"], rank["world_size"]) for rank in ranks] == [
        (0, 0, 3),
        (1, 1, 3),
        (2, 2, 3),
    ]


def test_the_first_that_fails_ends_all(project: Project) -> None:
    code = """
import contextlib, os, signal
import upshift
from upshift import run_with_torchrun

@run_with_torchrun(nproc_per_node=2)
@step
def act() -> None:
    with contextlib.suppress(FileExistsError):
        os.mkfifo("/tmp/waits")  # both are in one container
    if upshift.current.rank == 1:
        open("/tmp/waits").read()  # until the other one is at its last line
        raise LookupError("the rank that fails")
    open("/tmp/waits", "w").close(), signal.pause()

@pipeline
def example():
    return act()
"""
    outcome = project.run(code, expect=1, timeout=100)
    assert "LookupError: the rank that fails" in outcome.err
    attempt = project.attempt("act")
    assert (attempt["reason"], attempt["error"]["rank"]) == ("user-error", 1)
    (stack,) = attempt["stacks"]
    assert stack["where"] == "pipeline.py:15" and f'File "{project.folder}/pipeline.py"' in stack["text"]


def test_a_module_has_the_arguments_of_its_script(project: Project) -> None:
    code = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--factor", type=int, default=2)
FACTOR = parser.parse_args().factor

@step
def act(x: int) -> int:
    return x * FACTOR

@pipeline
def example(x: int = 4):
    return act(x)

if __name__ == "__main__":
    print("gave", example().output)
"""
    project.write(code)
    assert "gave 12" in project.python("pipeline.py", "--factor", "3", timeout=100).out
    project.upshift("run", "pipeline.py", "--param", "x=5", timeout=100)
    assert upshift.get_run("latest").output == 10
