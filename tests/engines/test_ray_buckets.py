"""Runs on a real Ray whose nodes share nothing with the engine but a bucket."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from buckets import BucketHere
from project import Project
from ray_here import RayHere, nodes_apart, ray_here
from server_before import Harm, before
from talking import TALKING, is_whole, until_printed_by_both
from upshift.runs.checking import check_store
from upshift.runtime.storage.objects import open_objects

PATIENCE = 120.0

TRAINING = """
import os
from upshift import current, run_with_torchrun

TWO = {"resources": {"num_nodes": 2}}

@step(cache=False, retries=1)
def train() -> list[str]:
    latest = current.checkpoint.latest
    if latest is not None:
        return sorted(path.read_text() for path in latest.iterdir())
    with current.checkpoint.save() as folder:
        (folder / "epoch").write_text("1")
    os._exit(1)

@run_with_torchrun(nproc_per_node=1)
@step(cache=False, secrets={"TOKEN": "env:MY_TOKEN"}, settings=TWO)
def together(known: list[str]) -> list[int]:
    print("rank", current.rank, "knows", *known, "and", os.environ["TOKEN"], len(os.environ["TOKEN"]))
    return [current.world_size]

@pipeline
def training():
    return together(train())
"""

WAITING = """
import os, sys, time

@step(cache=False, grace=20)
def wait(until: str) -> str:
    print("it waits", flush=True)
    while not os.path.exists(until):
        time.sleep(0.05)
    print("it goes on", flush=True)
    return sys.prefix

@pipeline
def example(until: str):
    return wait(until)
"""


@pytest.fixture(scope="module")
def one_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where nodes keep the runtime for all of these tests."""
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> RayHere:
    found = ray_here()
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", found.address)
    return found


@pytest.fixture
def store(bucket: BucketHere, monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"{bucket.address}/team"
    monkeypatch.setenv("UPSHIFT_STORE", address)
    return address


@pytest.fixture
def project(ray: RayHere, store: str, one_home: Path, tmp_path: Path) -> Project:
    """A project, and a cluster whose nodes have credentials, a Python and a folder of their own."""
    made = Project(tmp_path / "project", tmp_path / "home")
    apart = nodes_apart(f"{one_home}/$UPSHIFT_NODE_NAME")
    target = f'[targets.cluster]\nbackend = "ray"\noptions = {{ {apart} }}\n'
    made.write(target, "upshift.toml", header="")
    return made


@pytest.fixture
def second(project: Project, tmp_path: Path) -> Project:
    """The same project on a machine that has never seen a run."""
    return Project(project.folder, tmp_path / "second-home")


def whole(store: str) -> None:
    """Nothing that anything in the store names is missing or damaged, and nothing is left of the work."""
    objects = open_objects(store)
    assert check_store(objects).problems == []
    keys = [meta.key for meta in objects.list("")]
    passing = ("checkpoints/", "leases/")
    assert [key for key in keys if "/live/" in key or ".order." in key or key.startswith(passing)] == []


def until_it(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until, f"it never came to this: {what}"
        time.sleep(0.1)


def until_printed(project: Project, line: str) -> None:
    """Wait until a line is in the log on this machine."""
    until_it(lambda: line in project.upshift("logs", "latest", expect=None).out, line)


def test_a_retry_continues_from_its_checkpoint_and_nodes_work_together_with_a_secret(
    project: Project, ray: RayHere, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "never-to-be-seen")
    outcome = project.run(TRAINING, "--on", "cluster")
    assert "continues from checkpoint 1.1" in outcome.out
    for rank in (0, 1):
        assert f"rank {rank} knows 1 and *** 16" in outcome.out
    assert project.attempt("together")["status"] == "completed"
    (job,) = ray.jobs("together")[-1:]
    assert "never-to-be-seen" not in json.dumps(job)
    objects = open_objects(store)
    for meta in objects.list(""):
        found = objects.get(meta.key)
        assert found is None or b"never-to-be-seen" not in bytes(found.data), meta.key
    whole(store)


def test_steps_run_in_the_python_of_ray_and_another_machine_finishes_a_run_whose_engine_was_killed(
    project: Project, second: Project, ray: RayHere, store: str, tmp_path: Path
) -> None:
    project.write(WAITING)
    go = tmp_path / "go"
    engine = project.start("run", "pipeline.py", "--on", "cluster", "-p", f"until={go}")
    until_printed(project, "it waits")
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    run = project.show()["id"]
    go.touch()
    outcome = second.upshift("resume", run)
    assert "it goes on" in second.upshift("logs", run).out, outcome.err
    assert [attempt["number"] for attempt in second.tasks("wait", run)[0]["attempts"]] == [1]
    value = second.python("-c", "import upshift; print(upshift.get_run('latest').output)").out
    assert value.strip().endswith(f".engines/ray-{ray.ask('/api/version')['ray_version']}")
    whole(store)


def test_a_run_is_cancelled_while_its_step_is_on_a_node(project: Project, store: str, tmp_path: Path) -> None:
    project.write(WAITING)
    engine = project.start("run", "pipeline.py", "--on", "cluster", "-p", f"until={tmp_path / 'never'}")
    until_printed(project, "it waits")
    project.upshift("cancel", "latest")
    _, err = engine.communicate()
    assert engine.returncode == 130, err
    assert project.attempt("wait")["status"] == "cancelled"
    whole(store)


def test_an_engine_that_is_a_job_of_rays_brings_itself_and_is_followed_from_anywhere(
    project: Project, second: Project, store: str, tmp_path: Path
) -> None:
    project.write(WAITING)
    go = tmp_path / "go"
    said = project.upshift("run", "pipeline.py", "--on", "cluster", "--detach", "-p", f"until={go}")
    assert "its engine is job engine-example-" in said.err
    follower = second.start("logs", "latest", "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "[wait] it waits\n"
    go.touch()
    out, err = follower.communicate(timeout=PATIENCE)
    assert (out, follower.returncode) == ("[wait] it goes on\n", 0), err
    assert second.show()["status"] == "completed"
    assert "wait: completed in" in second.upshift("logs", "latest", "--engine", "-f").out
    whole(store)


def test_ranks_print_while_the_bucket_does_not_answer(
    project: Project, bucket: BucketHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, told = tmp_path / "gate", tmp_path / "gate.told"
    os.mkfifo(told)
    project.write(TALKING)
    with before(bucket.endpoint) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.address)
        engine = project.start("run", "pipeline.py", "--on", "cluster", "-p", f"gate={gate}")
        until_printed(project, "[rank 1] it waits")
        server.always = Harm(status=503)
        gate.touch()
        until_printed_by_both(told, PATIENCE)
        server.always = None
        out, err = engine.communicate(timeout=PATIENCE)
        assert engine.returncode == 0, out + err
        assert is_whole(project.upshift("logs", "latest").out.splitlines())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("python = 3", "python = 3 is invalid"),
        ("detach = { image = 'x' }", "detach has no option 'image'"),
    ],
)
def test_options_that_mean_nothing_are_refused(project: Project, said: str, why: str) -> None:
    project.write(f'[targets.cluster]\nbackend = "ray"\noptions = {{ {said} }}\n', "upshift.toml", header="")
    assert why in project.run(WAITING, "--on", "cluster", "-p", "until=x", expect=2).err


def test_a_python_environment_of_this_machine_is_refused(project: Project) -> None:
    code = """
        from upshift import PythonEnvironment

        @step(settings={"environment": PythonEnvironment(python="/usr/bin/python3")})
        def f() -> int:
            return 1

        @pipeline
        def example():
            return f()
    """
    refused = project.run(code, "--on", "cluster", expect=2)
    assert "Name a Python of the nodes that has what the step needs" in refused.err
