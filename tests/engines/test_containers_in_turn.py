"""Tasks of a mapped step that share a container: what they share, what ends with each, and what is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from boxes import Waiting, containers, own_folders, project_on

import upshift
from containers import CONF, EngineWithImage, engine_with_image
from contract.contract_kit import Ground, Watched
from project import Project
from upshift.backends.base import Ended, Job
from upshift.backends.docker.container import serving

ONE_AT_A_TIME = f'ResourceSettings(cpu_count={len(os.sched_getaffinity(0))}, memory="150MB")'
CONTAINER = 'int(open("/proc/1/stat").read().split()[21]) * 2**40 + os.stat("/proc/self/ns/pid").st_ino'
"""What tells two containers apart from inside: when each began, and its namespace."""


@pytest.fixture(scope="module")
def docker_with_image() -> Iterator[EngineWithImage]:
    yield from engine_with_image("docker")


@pytest.fixture(scope="module")
def podman_with_image() -> Iterator[EngineWithImage]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(CONF))
        yield from engine_with_image("podman")


@pytest.fixture
def project(tmp_path: Path, upshift_home: Path, docker_with_image: EngineWithImage) -> Iterator[Project]:
    """A project with a target ``box`` whose steps run in containers of Docker. None may be left."""
    yield project_on(docker_with_image, tmp_path / "project", upshift_home)
    assert docker_with_image.left() == []
    assert own_folders(upshift_home) == []


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> EngineWithImage:
    """Each engine in turn."""
    monkeypatch.setenv("CONTAINERS_CONF", str(CONF))
    made: EngineWithImage = request.getfixturevalue(f"{request.param}_with_image")
    return made


@pytest.fixture
def either(engine: EngineWithImage, tmp_path: Path, upshift_home: Path) -> Iterator[Project]:
    """A project as above, of each engine in turn."""
    yield project_on(engine, tmp_path / "project", upshift_home)
    assert engine.left() == []
    assert own_folders(upshift_home) == []


@pytest.fixture
def watched(
    tmp_path: Path, upshift_home: Path, docker_with_image: EngineWithImage
) -> Iterator[tuple[Watched, EngineWithImage]]:
    """A backend that is handed one job after the other."""
    ground = Ground("docker", tmp_path, image=docker_with_image.image)
    yield ground.open(), docker_with_image
    ground.close()
    assert docker_with_image.left() == []
    assert own_folders(upshift_home) == []


def test_tasks_of_one_container_find_nothing_of_each_other(either: Project) -> None:
    (either.folder / "helper.py").write_text("SEEN = []\n")
    either.run(
        f"""
        import helper, os, pathlib, subprocess

        @step(cache=False, retries=0, settings={{"resources": {ONE_AT_A_TIME}}})
        def spoil(i: int) -> list:
            processes = [name for name in os.listdir("/proc") if name.isdigit()]
            found = [
                f"SEEN {{helper.SEEN}}" * bool(helper.SEEN),
                "variable" * ("LEFT" in os.environ),
                f"folder {{os.getcwd()}}" * ("spoilt" in os.listdir()),
                f"home {{os.listdir(pathlib.Path.home())}}" * bool(os.listdir(pathlib.Path.home())),
                f"tmp {{os.listdir('/tmp')}}" * os.path.exists("/tmp/left"),
                f"upshift {{os.listdir('/upshift')}}" * os.path.exists("/upshift/left"),
                f"processes {{processes}}" * (len(processes) > 3),
            ]
            helper.SEEN.append(i)
            os.environ["LEFT"] = "here"
            pathlib.Path("helper.py").write_text("SEEN = ['in a file']")
            pathlib.Path("spoilt").touch()
            for folder in ("/tmp/left", "/upshift/left", os.path.expanduser("~/left/deep")):
                pathlib.Path(folder).mkdir(parents=True)
            os.chmod("/tmp/left", 0)
            os.symlink("/etc", "/tmp/link")
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            os.chdir("/")
            return [[word for word in found if word], {CONTAINER}]

        @pipeline
        def example():
            return spoil.map(range(4))
        """,
        *("--on", "box"),
    )
    found, where = zip(*upshift.get_run("latest").output, strict=True)
    assert list(found) == [[]] * 4
    assert len(set(where)) < 4


@pytest.mark.parametrize("place", ["/dev/shm/left", *["/var/tmp/left"] * (os.getuid() == 0)])
def test_a_container_in_which_a_task_has_left_something_serves_no_other_one(
    project: Project, place: str
) -> None:
    project.run(
        f"""
        import os, pathlib

        @step(cache=False, retries=0, settings={{"resources": {ONE_AT_A_TIME}}})
        def leave(i: int) -> int:
            place = pathlib.Path("{place}")
            assert not place.exists()
            place.parent.mkdir(exist_ok=True)
            place.write_text("here")
            return {CONTAINER}

        @pipeline
        def example():
            return leave.map(range(3))
        """,
        *("--on", "box"),
    )
    assert len(set(upshift.get_run("latest").output)) == 3


BAD = f"""
import os, signal, threading
import upshift

@step(cache=False, retries=1, timeout=20, settings={{"resources": {ONE_AT_A_TIME}}})
def work(i: int) -> list[int]:
    if upshift.current.attempt == 1:
        if i == 1:
            raise ValueError("bad")
        if i == 3:
            held = []
            while True:
                held.append(bytearray(10_000_000))
        if i == 5:
            os.kill(-1, signal.SIGKILL)  # the supervisor, too
            threading.Event().wait()
    return [i, {CONTAINER}]

@pipeline
def example():
    return work.map(range(8))
"""


def test_a_task_that_fails_among_many_fails_alone_and_its_container_with_it(project: Project) -> None:
    project.run(BAD, "--on", "box")
    output = upshift.get_run("latest").output
    assert [i for i, _ in output] == list(range(8))
    attempts = [task["attempts"] for task in project.tasks("work")]
    reasons = {i: numbered[0]["reason"] for i, numbered in enumerate(attempts) if len(numbered) > 1}
    assert reasons == {1: "user-error", 3: "out-of-memory", 5: "infrastructure"}
    where = dict(output)
    assert len({where[1], where[3], where[5]}) == 3


def test_a_task_beyond_its_time_is_stopped_alone(project: Project) -> None:
    project.run(
        f"""
        import threading
        import upshift

        @step(cache=False, retries=1, timeout=3, settings={{"resources": {ONE_AT_A_TIME}}})
        def wait(i: int) -> int:
            if i == 1 and upshift.current.attempt == 1:
                threading.Event().wait()
            return i

        @pipeline
        def example():
            return wait.map(range(4))
        """,
        *("--on", "box"),
    )
    assert upshift.get_run("latest").output == [0, 1, 2, 3]
    assert [len(task["attempts"]) for task in project.tasks("wait")] == [1, 2, 1, 1]


MANY = f"""
import os

@step(cache=False, retries=0, settings={{"resources": {ONE_AT_A_TIME}}})
def wait(i: int, path: str) -> int:
    with open(path + "/ran", "a") as file:
        file.write(f"{{i}} ")
    if i == 2:
        with open(path + "/started", "w") as pipe:
            pipe.write("here")
        open(path + "/go").read()
    return i

@pipeline
def example(path: str):
    return wait.map(range(5), path)
"""


def test_after_the_engine_was_killed_no_task_runs_twice_and_none_is_lost(
    either: Project, engine: EngineWithImage
) -> None:
    waiting = Waiting(either, engine, MANY)
    waiting.kill_engine()
    assert containers(engine) == [waiting.container]
    resuming = either.start("resume", "latest")
    waiting.go()
    out, err = resuming.communicate(timeout=60)
    assert resuming.returncode == 0, out + err
    assert upshift.get_run("latest").output == [0, 1, 2, 3, 4]
    assert (waiting.folder / "ran").read_text().split() == ["0", "1", "2", "3", "4"]
    assert [len(task["attempts"]) for task in either.tasks("wait")] == [1] * 5


def test_a_run_that_nobody_owns_is_cancelled_with_the_container_that_was_shared(
    project: Project, docker_with_image: EngineWithImage
) -> None:
    waiting = Waiting(project, docker_with_image, MANY)
    waiting.kill_engine()
    outcome = project.upshift("cancel", "latest")
    assert "1 of its tasks still ran and were stopped" in outcome.text
    assert (waiting.folder / "ran").read_text().split() == ["0", "1", "2"]


def test_runs_at_the_same_time_do_not_share_containers(project: Project) -> None:
    project.write(f"""
import os

@step(cache=False, retries=0)
def where(i: int) -> int:
    return {CONTAINER}

@pipeline
def example():
    return where.map(range(4))
""")
    runs = [project.start("run", "pipeline.py", "--on", "box") for _ in range(2)]
    for run in runs:
        out, err = run.communicate(timeout=60)
        assert run.returncode == 0, out + err
    first, second = (set(upshift.get_run(run.id).output) for run in upshift.list_runs(limit=2))
    assert not first & second


def test_whoever_asks_for_it_has_a_container_for_each_task(project: Project) -> None:
    project.run(
        """
        import os
        from upshift import DockerSettings

        @step(cache=False, retries=0, settings={"docker": DockerSettings(reuse_container=False)})
        def where(i: int) -> str:
            return open("/proc/1/cmdline").read()

        @pipeline
        def example():
            return where.map(range(3))
        """,
        *("--on", "box"),
    )
    assert all("--report" in command for command in upshift.get_run("latest").output)


def test_a_container_that_goes_while_it_is_idle_is_replaced(
    watched: tuple[Watched, EngineWithImage],
) -> None:
    backend, made = watched
    first = backend.run(backend.ground.job("add", inputs={"a": 1, "b": 2}))
    (idle,) = containers(made)
    made.engine.run(["rm", "--force", idle])
    second = backend.run(backend.ground.job("add", inputs={"a": 3, "b": 4}))
    assert first is not None and second is not None
    assert (first.status, second.status) == ("completed", "completed")
    assert idle not in containers(made)


def test_a_container_whose_task_was_cancelled_serves_no_other_one(
    watched: tuple[Watched, EngineWithImage],
) -> None:
    backend, made = watched
    backend.run(_of_one_step(backend, "add", inputs={"a": 1, "b": 2}))
    handle = backend.started(_of_one_step(backend, "wait"))
    shared = serving(handle)
    assert shared in containers(made)
    backend.cancel(handle, grace=0)
    assert backend.until(Ended, handle)
    result = backend.run(_of_one_step(backend, "add", inputs={"a": 3, "b": 4}))
    assert result is not None and result.status == "completed"
    assert shared not in containers(made)


def _of_one_step(backend: Watched, function: str, **fields: Any) -> Job:
    """A job of the contract, as if all functions were one step's."""
    job = backend.ground.job(function, **fields)
    spec = attrs.evolve(job.spec, task=attrs.evolve(job.spec.task, step="same"))
    return Job(spec=spec, spec_path=backend.ground.store.write_spec(spec))
