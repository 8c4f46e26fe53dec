"""GPUs for steps in containers: which ones, for how long, and what is said where there is no way.

A stand-in for NVIDIA's toolkit: a ``docker`` that writes down what ``--gpus`` asks for and leaves it out, in
front of the true one. The driver is a stand-in, too: :mod:`nvml`.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import upshift
from containers import EngineWithImage, engine_with_image
from contract.contract_kit import Ground
from nvml import FakeNvml, Gpu
from project import Project
from upshift.backends.base import Ask, Ended, Waiting
from upshift.backends.docker.launching import LentDevices
from upshift.model.settings.resources import ResourceSettings
from upshift.runtime.accelerators import locks

WITHOUT_GPUS = """#!/bin/sh
# As docker does with NVIDIA's toolkit: it takes --gpus, here and says which.
if [ "$1" = run ]; then
  set -- "$@" END
  while [ "$1" != END ]; do
    if [ "$1" = --gpus ]; then echo "$2" >>"{asked}"; shift; else set -- "$@" "$1"; fi
    shift
  done
  shift
fi
exec {docker} "$@"
"""


@pytest.fixture(scope="module")
def docker_with_image() -> Iterator[EngineWithImage]:
    yield from engine_with_image("docker", {"CUDA_VERSION": "12.4.1"})


class Machine:
    """A project on a machine with GPUs, and what its Docker was asked for."""

    def __init__(self, project: Project, nvml: FakeNvml, asked: Path) -> None:
        self.project = project
        self.nvml = nvml
        self._asked = asked

    @property
    def asked(self) -> list[str]:
        return self._asked.read_text().splitlines() if self._asked.exists() else []


@pytest.fixture
def machine(
    tmp_path: Path,
    upshift_home: Path,
    docker_with_image: EngineWithImage,
    fake_nvml: Callable[..., FakeNvml],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Machine]:
    programs, asked = tmp_path / "programs", tmp_path / "asked"
    programs.mkdir()
    docker = programs / "docker"
    docker.write_text(WITHOUT_GPUS.format(docker=shutil.which("docker"), asked=asked))
    hook = programs / "nvidia-container-runtime-hook"
    hook.write_text("#!/bin/sh\n")
    for program in (docker, hook):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    nvml = fake_nvml([Gpu(uuid="GPU-first"), Gpu(uuid="GPU-second")])
    for name, value in nvml.environment().items():
        monkeypatch.setenv(name, value)
    project = Project(tmp_path / "project", upshift_home)
    (project.folder / "pipes").mkdir()
    for name in ("started", "go"):
        os.mkfifo(project.folder / "pipes" / name)
    (project.folder / "upshift.toml").write_text(
        f'[targets.box]\nbackend = "docker"\nmounts = {{ "/pipes" = "{project.folder}/pipes" }}\n'
        f'options = {{ image = "{docker_with_image.image}", device_wait = "1s" }}\n'
    )
    yield Machine(project, nvml, asked)
    assert docker_with_image.left() == []


HOLDING = """
@step(retries=0, settings={"resources": ResourceSettings(gpu_count=2)})
def hold() -> str:
    with open("/pipes/started", "w") as pipe:
        pipe.write("here")
    with open("/pipes/go") as pipe:
        return pipe.read()

@pipeline
def holding():
    return hold()

@step(retries=0, settings={"resources": ResourceSettings(gpu_count=1)})
def look() -> dict:
    import os
    return {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")}

@pipeline
def looking():
    return look()
"""


def test_a_step_gets_one_gpu_by_its_uuid_and_the_record_names_it(machine: Machine) -> None:
    machine.project.write(HOLDING)
    machine.project.upshift("run", "pipeline.py:looking", "--on", "box")
    (asked,) = machine.asked
    assert asked in ("device=GPU-first", "device=GPU-second")
    uuid = asked.partition("=")[2]
    assert upshift.get_run("latest").output["CUDA_VISIBLE_DEVICES"] == uuid
    assert [gpu["uuid"] for gpu in machine.project.attempt("look")["granted"]["gpus"]] == [uuid]


def test_a_step_without_gpus_sees_none_though_its_image_asks_for_all(machine: Machine) -> None:
    machine.project.run(
        """
        import os

        @step(settings={"resources": ResourceSettings(gpu_count=0)})
        def look() -> tuple:
            return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["NVIDIA_VISIBLE_DEVICES"]

        @pipeline
        def looking():
            return look()
        """,
        *("--on", "box"),
    )
    assert upshift.get_run("latest").output == ("", "void")
    assert machine.asked == []


def test_a_container_keeps_its_gpus_though_its_engine_is_killed(machine: Machine) -> None:
    project = machine.project
    project.write(HOLDING)
    engine = project.start("run", "pipeline.py:holding", "--on", "box")
    assert (project.folder / "pipes" / "started").read_text() == "here"
    assert machine.asked == ['"device=GPU-first,GPU-second"']
    os.killpg(engine.pid, signal.SIGKILL)
    engine.communicate()
    outcome = project.upshift("run", "pipeline.py:looking", "--on", "box", expect=1)
    assert "after 1 s it still waits for 1 × GPU" in outcome.err
    assert len(machine.asked) == 1
    run = next(run.id for run in upshift.list_runs() if run.pipeline == "holding")
    resuming = project.start("resume", run)
    (project.folder / "pipes" / "go").write_text("kept")
    out, err = resuming.communicate(timeout=60)
    assert resuming.returncode == 0, out + err
    project.upshift("run", "pipeline.py:looking", "--on", "box")
    assert len(machine.asked) == 2


def test_who_comes_between_a_hand_over_makes_a_step_wait_and_not_fail(
    machine: Machine, docker_with_image: EngineWithImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[locks.Hold] = []
    hand_over = LentDevices.hand_over

    def too_late(lent: LentDevices) -> None:
        hand_over(lent)
        if not others:
            hold = locks.hold(lent.grant.devices or ())
            assert hold is not None
            others.append(hold)

    monkeypatch.setattr(LentDevices, "hand_over", too_late)
    ground = Ground("docker", tmp_path, image=docker_with_image.image)
    watched = ground.open()
    request = ResourceSettings(gpu_count=2)
    granted = watched.backend.offer(Ask(request=request)).granted
    job = ground.job("add", inputs={"a": 1, "b": 2}, request=request, granted=granted)
    handle = watched.submit(job)
    assert "held by" in watched.until(Waiting, handle).why
    others[0].give_back()
    assert watched.until(Ended, handle).reason is None
    result = ground.store.read_result(job.spec.task, 1)
    assert result is not None and result.status == "completed"
    assert len(machine.asked) == 2
    ground.close()


def test_a_machine_whose_docker_has_no_way_to_give_gpus_says_how_to_get_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.project.write(HOLDING)
    hidden = os.environ["PATH"].partition(":")[2]
    outcome = machine.project.upshift(
        "run", "pipeline.py:looking", "--on", "box", env={"PATH": hidden}, expect=2
    )
    assert "has no way to give a container a GPU" in outcome.err
    assert "nvidia-ctk runtime configure --runtime=docker" in outcome.err
