"""Runs on a real Slurm whose nodes share nothing with the engine but a bucket."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from buckets import BucketHere
from project import Project
from slurm_here import slurm_here
from upshift.runs.checking import check_store
from upshift.runtime.storage.objects import open_objects

PATIENCE = 120.0
NODE = '{"slurm": {"extra": ["--nodelist=%s"]}}'

CHAIN = f"""
import os

@step(cache=False, settings={NODE % "n1"})
def numbers(n: int) -> list[bytes]:
    print("made on", os.environ["SLURMD_NODENAME"])
    return [bytes([x]) * 2_000_000 for x in range(n)]

@step(cache=False, settings={NODE % "n2"})
def size(x: bytes) -> int:
    return len(x) + x[0]

@step(cache=False, on="local")
def total(sizes: list[int]) -> int:
    return sum(sizes)

@pipeline
def chain(n: int = 4):
    return total(size.map(x=numbers(n)))
"""

TRAINING = """
import os
from upshift import current, run_with_torchrun

@step(cache=False, retries=1)
def train() -> list[str]:
    latest = current.checkpoint.latest
    if latest is not None:
        return sorted(path.read_text() for path in latest.iterdir())
    with current.checkpoint.save() as folder:
        (folder / "epoch").write_text("1")
    os._exit(1)

@run_with_torchrun(nproc_per_node=1)
@step(cache=False, settings={"resources": {"num_nodes": 2}})
def together(known: list[str]) -> list[int]:
    print("rank", current.rank, "on", os.environ["SLURMD_NODENAME"], "knows", *known)
    return [current.world_size]

@pipeline
def training():
    return together(train())
"""

WAITING = """
import os, time

@step(cache=False, grace=20)
def wait(until: str) -> str:
    print("it waits", flush=True)
    while not os.path.exists(until):
        time.sleep(0.05)
    print("it goes on", flush=True)
    return os.environ["SLURM_JOB_ID"]

@pipeline
def example(until: str):
    return wait(until)
"""


@pytest.fixture(scope="module")
def one_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where nodes keep the runtime for all of these tests."""
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture
def store(bucket: BucketHere, one_home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store in a bucket, and a cluster each of whose nodes has a folder of its own."""
    address = f"{bucket.address}/team"
    monkeypatch.setenv("UPSHIFT_STORE", address)
    monkeypatch.setenv("UPSHIFT_NODE_HOME", f"{one_home}/$SLURMD_NODENAME")
    monkeypatch.setenv("SLURM_CONF", slurm_here().environment["SLURM_CONF"])
    return address


@pytest.fixture
def project(store: str, tmp_path: Path) -> Project:
    made = Project(tmp_path / "project", tmp_path / "home")
    made.write('[targets.cluster]\nbackend = "slurm"\n', "upshift.toml", header="")
    return made


@pytest.fixture
def second(project: Project, tmp_path: Path) -> Project:
    """The same project on a machine that has never seen a run."""
    return Project(project.folder, tmp_path / "second-home")


def keys(store: str) -> list[str]:
    return [meta.key for meta in open_objects(store).list("")]


def whole(store: str) -> None:
    """Nothing that anything in the store names is missing or damaged, and nothing is left of the work."""
    assert check_store(open_objects(store)).problems == []
    passing = ("checkpoints/", "leases/")
    assert [key for key in keys(store) if "/live/" in key or key.startswith(passing)] == []


def until_printed(project: Project, line: str, run: str = "latest") -> None:
    """Wait until a line is in the log on this machine."""
    until = time.monotonic() + PATIENCE
    while line not in project.upshift("logs", run, expect=None).out:
        assert time.monotonic() < until, f"nobody ever printed {line!r}"


def test_steps_on_different_nodes_hand_on_their_values(
    project: Project, second: Project, store: str, one_home: Path
) -> None:
    outcome = project.run(CHAIN, "--on", "cluster")
    assert "made on n1" in outcome.out
    value = "import upshift; print(upshift.get_run('latest').output)"
    for home in (project, second):
        assert home.python("-c", value).out == "8000006\n"
        assert "made on n1" in home.upshift("logs", "latest", "numbers").out
        assert [step["status"] for step in home.show()["steps"]] == ["completed"] * 3
    whole(store)
    # A node keeps content, and nothing of what it did.
    assert list(one_home.glob("*/buckets/*/runs/*/tasks/*/*")) == []


def test_a_retry_continues_from_its_checkpoint_and_nodes_work_together(project: Project, store: str) -> None:
    outcome = project.run(TRAINING, "--on", "cluster")
    assert "continues from checkpoint 1.1" in outcome.out
    for rank in (0, 1):
        assert f"rank {rank} on n" in outcome.out and "knows 1" in outcome.out
    assert project.attempt("together")["status"] == "completed"
    whole(store)


def test_a_run_whose_engine_was_killed_is_finished_by_another_machine(
    project: Project, second: Project, store: str, tmp_path: Path
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
    assert second.show(run)["status"] == "completed"
    whole(store)


def test_another_machine_shows_what_a_step_prints_though_its_engine_is_dead(
    project: Project, second: Project, store: str, tmp_path: Path
) -> None:
    more = tmp_path / "more"
    project.write(f"""
        import os, time

        @step(cache=False)
        def wait() -> None:
            for path in ({str(more)!r}, {str(tmp_path / "go")!r}):
                print("it waits for", os.path.basename(path), flush=True)
                while not os.path.exists(path):
                    time.sleep(0.05)

        @pipeline
        def example():
            wait()
    """)
    engine = project.start("run", "pipeline.py", "--on", "cluster")
    until_printed(project, "it waits for more")
    run = project.show()["id"]
    until_printed(second, "it waits for more", run)
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    more.touch()
    until_printed(second, "it waits for go", run)
    (tmp_path / "go").touch()
    second.upshift("resume", run)
    whole(store)


def test_a_run_is_cancelled_while_its_step_is_on_a_node(project: Project, store: str, tmp_path: Path) -> None:
    project.write(WAITING)
    engine = project.start("run", "pipeline.py", "--on", "cluster", "-p", f"until={tmp_path / 'never'}")
    until_printed(project, "it waits")
    project.upshift("cancel", "latest")
    _, err = engine.communicate()
    assert engine.returncode == 130, err
    assert project.attempt("wait")["status"] == "cancelled"
    assert json.loads(project.upshift("runs", "--json").out)[0]["status"] == "cancelled"
    whole(store)


def test_another_machine_follows_a_step_that_is_on_a_node(
    project: Project, second: Project, store: str, tmp_path: Path
) -> None:
    project.write(WAITING)
    go = tmp_path / "go"
    engine = project.start("run", "pipeline.py", "--on", "cluster", "-p", f"until={go}")
    until = time.monotonic() + PATIENCE
    while not any(key.endswith("/run.json") for key in keys(store)):
        assert time.monotonic() < until
        time.sleep(0.1)
    follower = second.start("logs", "latest", "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "[wait] it waits\n"
    assert second.show()["status"] == "running"
    go.touch()
    out, err = follower.communicate(timeout=PATIENCE)
    assert (out, follower.returncode) == ("[wait] it goes on\n", 0), err
    engine.communicate(timeout=PATIENCE)
    assert second.upshift("logs", "latest").out == project.upshift("logs", "latest").out
