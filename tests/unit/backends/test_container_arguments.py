"""What Docker and Podman are told of a container."""

from __future__ import annotations

import attrs
import pytest

from upshift.backends.docker.container import (
    Container,
    Mount,
    cdi_arguments,
    gpus_argument,
    labels_of,
    name_of,
    run_arguments,
)
from upshift.model.spec import Code, EntryPoint, TaskId, TaskSpec

LARGE = Container(
    name="upshift-train-1-0123456789ab",
    image="registry.example.org/ml/train@sha256:0123",
    program="/usr/local/bin/python3",
    arguments=("/upshift/code/abc", "--report", "/srv/store/runs/r/tasks/train/0.1.spec.json"),
    labels={"dev.upshift.run": "r", "dev.upshift.task": "train"},
    environment={"HOME": "/upshift/home", "USER": "o'neil $x"},
    mounts=(
        Mount(source="/srv/store", target="/srv/store"),
        Mount(source='/data, "old"', target="/data", read_only=True),
    ),
    user="1000:100",
    groups=(27, 112),
    cpus=2.5,
    memory=300_000_000,
    shared_memory=64_000_000,
    gpus=("--gpus", "device=GPU-1"),
    network="ours",
    hostname="box",
    more=("--add-host", "db:10.0.0.7"),
)


def test_what_has_spaces_commas_and_quotes_stays_one_word() -> None:
    words = run_arguments(LARGE, "docker")
    mounts = [words[i + 1] for i, word in enumerate(words) if word == "--mount"]
    assert mounts[1] == 'type=bind,"source=/data, ""old""",target=/data,readonly'
    assert "USER=o'neil $x" in words
    image = words.index(LARGE.image)
    assert words[image + 1 :] == list(LARGE.arguments)
    assert words[image - 2 : image] == list(LARGE.more)  # the user's come last, and so win


def test_podman_keeps_ids_and_labels_of_files_as_they_are() -> None:
    small = attrs.evolve(LARGE, keep_id=True, groups=(), cpus=None, memory=None, shared_memory=None)
    words = run_arguments(small, "podman")
    assert words[5:9] == ["--log-driver", "k8s-file", "--log-opt", "max-size=16m"]
    assert words[words.index("--userns") + 1] == "keep-id"
    assert words[words.index("--security-opt") + 1] == "label=disable"
    assert not {"--cpus", "--memory", "--memory-swap", "--shm-size", "--group-add"} & set(words)


def test_several_gpus_are_one_value_for_docker_and_several_for_cdi() -> None:
    assert gpus_argument(["GPU-1"]) == ("--gpus", "device=GPU-1")
    assert gpus_argument(["GPU-1", "MIG-2"]) == ("--gpus", '"device=GPU-1,MIG-2"')
    assert cdi_arguments(["nvidia.com/gpu=0", "nvidia.com/gpu=1"]) == (
        *("--device", "nvidia.com/gpu=0"),
        *("--device", "nvidia.com/gpu=1"),
    )


def spec(step: str = "train", *, index: int | None = None, attempt: int = 1, store: str = "/s") -> TaskSpec:
    return TaskSpec(
        task=TaskId(run="20260101-000000-aaaa", step=step, index=index),
        attempt=attempt,
        pipeline="p",
        entry=EntryPoint(module="m", qualname="f"),
        code=Code(project="/p"),
        store=store,
    )


def test_every_attempt_of_every_store_has_a_name_of_its_own() -> None:
    names = [
        name_of(s)
        for s in (
            *(spec(), spec(attempt=2), spec(index=0), spec(index=1), spec(store="/t")),
            *(spec("train-0"), spec("a/b"), spec("a-b")),
        )
    ]
    assert len(set(names)) == len(names)
    assert name_of(spec(index=3)).startswith("upshift-train-3-1-")


@pytest.mark.parametrize("step", ["x" * 300, "süß", "--", ".", "a b$c"])
def test_a_name_is_one_that_engines_take(step: str) -> None:
    name = name_of(spec(step))
    assert len(name) < 80 and all(c.isascii() and (c.isalnum() or c in "-_.") for c in name)


def test_labels_say_whose_it_is() -> None:
    assert labels_of(spec(index=3, attempt=2)) == {
        "dev.upshift.run": "20260101-000000-aaaa",
        "dev.upshift.task": "train[3]",
        "dev.upshift.attempt": "2",
        "dev.upshift.store": "/s",
    }
