"""Docker's daemon is stopped in the middle of a run, or is not there at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_away import Between

import upshift
from containers import EngineWithImage, engine_with_image
from project import Project

CODE = """
@step
def wait(path: str) -> str:
    with open(path + "/started", "w") as pipe:
        pipe.write("here")
    with open(path + "/go") as pipe:
        return pipe.read()

@pipeline
def example(path: str):
    return wait(path)
"""


@pytest.fixture(scope="module")
def docker_with_image() -> Iterator[EngineWithImage]:
    yield from engine_with_image("docker")


@pytest.fixture
def between(
    tmp_path: Path, docker_with_image: EngineWithImage, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Between]:
    """What commands of this test take for Docker's socket."""
    made = Between(tmp_path / "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", made.address)
    yield made
    monkeypatch.delenv("DOCKER_HOST")
    if made.path.exists():
        made.stop()
    assert docker_with_image.left() == []


@pytest.fixture
def project(
    tmp_path: Path,
    upshift_home: Path,
    docker_with_image: EngineWithImage,
    between: Between,
) -> Project:
    """A project whose Docker is ``between``; its step tells in a pipe that it has started, and waits."""
    project = Project(tmp_path / "project", upshift_home)
    pipes = project.folder / "pipes"
    pipes.mkdir()
    for name in ("started", "go"):
        os.mkfifo(pipes / name)
    (project.folder / "upshift.toml").write_text(
        f'[targets.box]\nbackend = "docker"\nmounts = {{ "/pipes" = "{pipes}" }}\n'
        f'options = {{ image = "{docker_with_image.image}" }}\n'
    )
    project.write(CODE)
    return project


def test_a_step_goes_on_while_the_daemon_is_away_and_its_result_counts(
    project: Project, between: Between
) -> None:
    engine = project.start("run", "pipeline.py", "--on", "box", "--param", "path=/pipes")
    assert (project.folder / "pipes" / "started").read_text() == "here"
    between.stop()
    assert engine.stderr is not None
    told = ""
    while "waits for Docker" not in told:
        line = engine.stderr.readline()
        assert line, told
        told += line
    (project.folder / "pipes" / "go").write_text("made meanwhile")
    between.start()
    out, err = engine.communicate(timeout=60)
    assert engine.returncode == 0, out + told + err
    assert upshift.get_run("latest").output == "made meanwhile"
    assert len(project.tasks("wait")[0]["attempts"]) == 1


def test_a_step_that_still_runs_when_the_daemon_is_back_is_watched_on(
    project: Project, between: Between
) -> None:
    engine = project.start("run", "pipeline.py", "--on", "box", "--param", "path=/pipes")
    assert (project.folder / "pipes" / "started").read_text() == "here"
    between.stop()
    between.start()
    (project.folder / "pipes" / "go").write_text("made later")
    out, err = engine.communicate(timeout=60)
    assert engine.returncode == 0, out + err
    assert upshift.get_run("latest").output == "made later"


def test_without_a_daemon_nothing_runs_and_the_way_to_start_it_is_told(
    project: Project, between: Between
) -> None:
    between.stop()
    outcome = project.upshift("run", "pipeline.py", "--on", "box", "--param", "path=/pipes", expect=None)
    assert outcome.code != 0
    assert "Docker is installed, but its daemon does not answer" in outcome.err
    assert "sudo systemctl start docker" in outcome.err


def test_an_engine_on_another_machine_is_refused(project: Project) -> None:
    outcome = project.upshift(
        *("run", "pipeline.py", "--on", "box", "--param", "path=/pipes"),
        env={"DOCKER_HOST": "tcp://10.0.0.7:2375"},
        expect=None,
    )
    assert outcome.code == 2
    assert "DOCKER_HOST=tcp://10.0.0.7:2375 names an engine on another machine" in outcome.err
