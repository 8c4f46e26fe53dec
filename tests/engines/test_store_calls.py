"""How many requests a trivial task takes of a store in a bucket, counted by the store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_kit import containers_removed

from batch_here import batch_here
from buckets import KEYS, BucketHere
from counted import Requests, kind_of
from kubernetes_here import registry_with_python
from kubernetes_scripted import scripted
from project import Project
from ray_here import nodes_apart, ray_here
from slurm_here import slurm_here

MAPPED = {"local": 6, "slurm": 40, "ray": 3, "kubernetes": 16, "aws-batch": 4}
"""Tasks of a mapped step, which are an array where there are such."""
MOST = 6.0
"""Requests for a trivial task, wherever it runs."""

TRIVIAL = """
@step(cache=False)
def first() -> int:
    return 1

@step(cache=False)
def then(x: int) -> int:
    return x + 1

@step(cache=False)
def each(x: int) -> int:
    return x + 1

@pipeline
def trivial(n: int):
    return each.map(x=list(range(n))), then(then(first()))
"""


@pytest.fixture(params=MAPPED)
def target(
    request: pytest.FixtureRequest, bucket: BucketHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, int]]:
    """A place in upshift.toml, all of whose nodes have one folder, and how many tasks are mapped there."""
    node = str(tmp_path / "node")
    monkeypatch.setenv("UPSHIFT_STORE", f"{bucket.address}/team")
    name, options = request.param, ""
    if name == "slurm":
        monkeypatch.setenv("UPSHIFT_NODE_HOME", node)
        monkeypatch.setenv("SLURM_CONF", slurm_here().environment["SLURM_CONF"])
    if name == "ray":
        options = f'address = "{ray_here().address}", {nodes_apart(node)}'
    if name == "aws-batch":
        docker, label, registry = map(request.getfixturevalue, ("docker", "session_label", "registry"))
        image = request.getfixturevalue("image_maker").push("batch/counted:1", environment=KEYS)
        login = {"DOCKER_CONFIG": str(registry.login)}
        with batch_here(login) as here, containers_removed(docker, label):
            monkeypatch.setenv("AWS_ENDPOINT_URL", here.endpoint)
            said = {**here.options, "image": image}
            options = ", ".join(f'{name} = "{value}"' for name, value in said.items())
            place = f'backend = "aws-batch"\nregistry = "{registry.address}/batch"\n'
            yield f"{place}options = {{ {options} }}\n", MAPPED[name]
        return
    if name != "kubernetes":
        yield f'backend = "{name}"\noptions = {{ {options} }}\n', MAPPED[name]
        return
    with scripted() as server, registry_with_python() as registry:
        server.put("secrets", "ml", {"metadata": {"name": "s3"}, "stringData": dict(KEYS)})
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        options = f'image = "{registry.name}/python:3.11", secrets = ["s3"]'
        yield f'backend = "kubernetes"\noptions = {{ {options} }}\n', MAPPED[name]


def of_steps(requests: list[str]) -> dict[str, Counter[str]]:
    """What was asked for each step, by kind, without what comes as time passes: further bulletins, usage."""
    found: dict[str, Counter[str]] = {}
    for line in requests:
        step = re.search(r"/(?:tasks|live)/(\w+)[/.]", line)
        passing = line.endswith(".series") or ("/live/" in line and not line.endswith("/00000001"))
        if step is not None and not passing:
            found.setdefault(step[1].rstrip("_0123456789"), Counter())[kind_of(line)] += 1
    return found


def test_a_trivial_task_takes_at_most_six_requests(
    target: tuple[str, int], requests: Requests, tmp_path: Path
) -> None:
    said, mapped = target
    project = Project(tmp_path / "project", tmp_path / "home")
    project.write(f"[targets.there]\n{said}", "upshift.toml", header="")
    project.run(TRIVIAL, "--on", "there", "-p", f"n={mapped}", timeout=300)
    assert project.show()["status"] == "completed"
    asked = requests.lines()
    found = of_steps(asked)
    assert found["first"].total() <= MOST, found["first"]
    assert found["then"].total() / 2 <= MOST, found["then"]
    # Whose a task is, the engine asks only where Slurm tells of an end before anybody tells of the task.
    is_array = found["each"]["PUT list of an array"]
    asks = found["each"]["GET claim"] if is_array else 0
    assert found["each"].total() - is_array - asks <= MOST * mapped, found["each"]
    if not is_array:
        return
    # What is over is removed together, and a look is one for all tasks.
    assert sum(line.startswith("POST") for line in asked) <= 4
