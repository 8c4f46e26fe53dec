"""Which tasks may share a container, and how free ones are handed out."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

import upshift.backends.docker.container as folders
from upshift.backends.docker.container import OwnFolder
from upshift.backends.docker.launching import ContainerLaunch, Key, Pool, key_of
from upshift.backends.docker.offers import read_options
from upshift.config import DockerSettings
from upshift.model.configuration import Target
from upshift.model.settings.step import StepSettings
from upshift.model.spec import Code, Device, EntryPoint, Hardware, TaskId, TaskSpec
from upshift.model.spec import Launch as Ranks

SPEC = TaskSpec(
    task=TaskId(run="r", step="train", index=3),
    attempt=1,
    pipeline="p",
    entry=EntryPoint(module="m", qualname="f"),
    code=Code(project="/p", paths=(".",)),
    store="/store",
    granted=Hardware(cpu_count=2, memory=10**9),
    image="image@sha256:1",
)


def key(spec: TaskSpec, **options: Any) -> Key | None:
    return key_of(spec, read_options(Target(name="box", backend="docker", options=options), "docker"))


def test_tasks_of_one_mapped_step_that_get_the_same_may_share() -> None:
    other = attrs.evolve(SPEC, task=attrs.evolve(SPEC.task, index=4))
    assert key(SPEC) is not None
    assert key(SPEC) == key(other)


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(SPEC, task=TaskId(run="other", step="train", index=3)),
        attrs.evolve(SPEC, task=TaskId(run="r", step="other", index=3)),
        attrs.evolve(SPEC, granted=Hardware(cpu_count=2, memory=2 * 10**9)),
        attrs.evolve(SPEC, image="image@sha256:2"),
        attrs.evolve(SPEC, interpreter="/opt/python"),
        attrs.evolve(SPEC, store="/other"),
    ],
    ids=["run", "step", "grant", "image", "interpreter", "store"],
)
def test_what_a_container_is_made_of_tells_tasks_apart(other: TaskSpec) -> None:
    assert key(other) is not None
    assert key(other) != key(SPEC)


@pytest.mark.parametrize(
    "alone",
    [
        attrs.evolve(SPEC, task=TaskId(run="r", step="train")),
        attrs.evolve(SPEC, attempt=2),
        attrs.evolve(SPEC, user="1000"),
        attrs.evolve(SPEC, launch=Ranks(launcher="torchrun", per_node=2)),
        attrs.evolve(
            SPEC, granted=Hardware(gpus=(Device(vendor="nvidia", index=0, uuid="GPU-1", model="H100"),))
        ),
        attrs.evolve(SPEC, settings=StepSettings(docker=DockerSettings(reuse_container=False))),
    ],
    ids=["not mapped", "retry", "user", "ranks", "gpu", "not wanted"],
)
def test_where_sharing_is_in_doubt_a_task_has_a_container_for_itself(alone: TaskSpec) -> None:
    assert key(alone) is None


def test_arguments_of_the_user_may_do_away_with_any_bound_so_nothing_is_shared() -> None:
    assert key(SPEC, arguments=["--privileged"]) is None


@pytest.fixture
def launch(upshift_home: Path) -> ContainerLaunch:
    return ContainerLaunch(name="box", arguments=(), order=b"", own=OwnFolder("box"), key=("train",))


def test_a_task_waits_for_the_container_of_one_that_has_just_completed(launch: ContainerLaunch) -> None:
    pool = Pool()
    pool.expect(("train",))
    assert pool.expects(("train",))
    taken: list[ContainerLaunch | None] = []
    taking = threading.Thread(target=lambda: taken.append(pool.take(("train",))))
    taking.start()
    assert pool.settle(("train",), launch, expected=True, spoilt=False)
    taking.join()
    assert taken == [launch]
    assert not pool.expects(("train",))


def test_nobody_waits_where_none_will_be_free(launch: ContainerLaunch) -> None:
    pool = Pool()
    pool.expect(("train",))
    assert not pool.settle(("train",), None, expected=True, spoilt=False)
    assert pool.take(("train",)) is None
    assert not pool.expects(("train",))


def test_a_step_whose_tasks_leave_something_behind_has_a_container_for_each(launch: ContainerLaunch) -> None:
    pool = Pool()
    assert pool.reusable(("train",)) == ("train",)
    pool.expect(("train",))
    pool.settle(("train",), None, expected=True, spoilt=True)
    assert pool.reusable(("train",)) is None
    assert pool.reusable(("other",)) == ("other",)


def test_a_pool_that_is_closed_takes_none_back(launch: ContainerLaunch) -> None:
    pool = Pool()
    assert pool.settle(("train",), launch, expected=False, spoilt=False)
    pool.close()
    assert not launch.own.path.exists()
    assert not pool.settle(("train",), launch, expected=False, spoilt=False)


def test_an_own_folder_is_emptied_but_for_what_is_mounted_in_it(upshift_home: Path, tmp_path: Path) -> None:
    own = OwnFolder("box")
    store, data = tmp_path / "store", tmp_path / "data"
    for folder in (store, data):
        folder.mkdir()
        (folder / "precious").touch()
    own.mounts("/tmp/at/store", tmp_path, {"/upshift/home/data": str(data)})
    (own.path / "home" / "data").mkdir()
    (own.path / "tmp" / "at" / "left").mkdir()
    (own.path / "home" / "link").symlink_to(data)
    (own.code / "abc").mkdir()
    (own.code / "abc" / "m.py").touch()
    (own.path / "home" / ".cache").mkdir(mode=0)
    own.said.touch()
    assert own.clear()
    assert sorted(str(path.relative_to(own.path)) for path in own.path.rglob("*")) == [
        "code",
        "home",
        "home/data",
        "runtime",
        "said",
        "tmp",
        "tmp/at",
        "tmp/at/store",
    ]
    assert (data / "precious").exists() and (store / "precious").exists()
    assert [oct((own.path / part).stat().st_mode & 0o7777) for part in ("home", "tmp")] == ["0o1777"] * 2
    own.remove()


def test_an_own_folder_whose_mount_point_was_replaced_serves_nobody_else(
    upshift_home: Path, tmp_path: Path
) -> None:
    own = OwnFolder("box")
    own.mounts("/tmp/at/store", tmp_path, {})
    shutil.rmtree(own.path / "tmp" / "at")
    (own.path / "tmp" / "at").symlink_to("/etc")
    assert not own.clear()
    own.remove()


def test_the_container_that_serves_an_attempt_is_found_by_it(upshift_home: Path) -> None:
    own = OwnFolder("box")
    own.serve("upshift-train-3-1")
    assert folders.serving("upshift-train-3-1") == "box"
    assert folders.serving("upshift-train-4-1") is None
    own.serve(None)
    assert folders.serving("upshift-train-3-1") is None
    own.remove()
