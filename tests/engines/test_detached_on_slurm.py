"""``--detach`` on a real Slurm: the engine is a job, and whoever submitted it may go."""

from __future__ import annotations

import json
import os
import re
import select
from pathlib import Path

import pytest

from project import Outcome, Project
from slurm_here import SlurmHere, slurm_here

WAITS = """
    import os

    NOW = "as submitted"

    @step(cache=False, retries=0, secrets={"TOKEN": "env:TOKEN"})
    def wait(word: str) -> str:
        with open(BEGUN, "w") as begun:
            begun.write(os.environ["SLURM_JOB_ID"])
        print("it goes", open(GATE).read(), flush=True)
        return f"{word} {NOW} {len(os.environ['TOKEN'])}"

    @step(on="local", cache=False)
    def here(said: str) -> str:
        return f"{said}, in job {os.environ['SLURM_JOB_ID']}"

    @pipeline
    def example(word: str = "x"):
        return here(wait(word))
"""


@pytest.fixture
def slurm(upshift_home: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmHere:
    found = slurm_here()
    monkeypatch.setenv("SLURM_CONF", found.environment["SLURM_CONF"])
    monkeypatch.setenv("TOKEN", "never-to-be-seen")
    return found


@pytest.fixture
def project(slurm: SlurmHere, tmp_path: Path) -> Project:
    made = Project(tmp_path / "project", tmp_path / "home")
    configure(made)
    gates = {name: str(made.fifo(name.lower())) for name in ("BEGUN", "GATE")}
    made.write(WAITS.replace("BEGUN", repr(gates["BEGUN"])).replace("GATE", repr(gates["GATE"])))
    return made


def configure(project: Project, detach: str = "") -> None:
    store = project.folder.parent / "store"
    project.write(
        f'store = "{store}"\n[targets.cluster]\nbackend = "slurm"\n'
        f'options = {{ time = "10m", detach = {{ {detach} }} }}\n',
        "upshift.toml",
        header="",
    )


def job_of(outcome: Outcome) -> str:
    """The job that a command has said the engine to be."""
    found = re.search(r"its engine is job (\d+) of Slurm", outcome.err)
    assert found, outcome.text
    return found[1]


def submit(project: Project, *options: str) -> str:
    return job_of(project.upshift("run", "pipeline.py", "--on", "cluster", "--detach", *options))


def read_once(fifo: Path) -> str:
    """What somebody writes into a named pipe; not for ever, if nobody does."""
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        ready = select.poll()
        ready.register(reader, select.POLLIN)
        assert ready.poll(120_000), "nobody has begun"
        os.set_blocking(reader.fileno(), True)
        return reader.read()


def begun(project: Project) -> str:
    """The job of the step, once it has begun."""
    return read_once(project.folder / "begun")


def go_on(project: Project) -> None:
    (project.folder / "gate").write_text("on")


def status(project: Project) -> str:
    found: str = json.loads(project.upshift("runs", "--json").out)[0]["status"]
    return found


def test_a_laptop_may_be_closed_and_the_run_followed_from_another(project: Project, slurm: SlurmHere) -> None:
    engine = submit(project, "-p", "word=hello", "-t", "nightly")
    project.write("raise SystemExit('edited')")
    assert begun(project) != engine
    assert status(project) == "running"
    assert "wait" in project.upshift("top", "--once").out
    run = project.show()["id"]
    other = Project(project.folder, project.folder.parent / "other")
    assert other.show(run)["status"] == "running"
    refused = other.upshift("resume", run, "--same-code", expect=2)
    assert f"another engine owns run {run}" in refused.err
    go_on(project)
    assert "[wait] it goes on\n" in other.upshift("logs", run, "-f").out
    for one in (project, other):
        assert status(one) == "completed"
    value = other.python("-c", "import upshift; print(upshift.get_run('latest').output)").out
    assert value == f"hello as submitted 16, in job {engine}\n"
    log = project.upshift("logs", run, "--engine", "-f").out
    assert "wait: completed in" in log and "here: completed in" in log
    written = [file.read_bytes() for file in project.folder.parent.rglob("*") if file.is_file()]
    assert not any(b"never-to-be-seen" in content for content in written)


def test_a_run_whose_engine_was_cancelled_is_resumed_and_keeps_its_job(
    project: Project, slurm: SlurmHere
) -> None:
    engine = submit(project)
    job = begun(project)
    slurm.run("scancel", engine)
    stopped = project.upshift("logs", "latest", "--engine", "-f").out
    assert "was asked to stop, and ends" in stopped
    words = " ".join(project.upshift("show", "latest").out.split())
    assert "· interrupted" in words and "wait still runs" in words
    assert f"lost: job {engine} of Slurm: somebody cancelled the job" in words
    job_of(project.upshift("resume", "latest", "--detach"))
    go_on(project)
    assert "it goes on" in project.upshift("logs", "latest", "-f").out
    (attempt,) = project.tasks("wait")[0]["attempts"]
    assert attempt["status"] == "completed"
    assert slurm.run("squeue", "--states=all", "--noheader", "--format=%T", f"--jobs={job}") == "COMPLETED"


def test_a_run_that_was_cancelled_is_followed_to_its_end_once_it_is_resumed(project: Project) -> None:
    submit(project)
    begun(project)
    project.upshift("cancel", "latest")
    project.upshift("logs", "latest", "--engine", "-f")
    assert project.tasks("wait")[0]["status"] == "cancelled"
    job_of(project.upshift("resume", "latest", "--detach"))
    assert project.tasks("wait")[0]["status"] == "pending"
    follower = project.start("logs", "latest", "-f")
    begun(project)
    assert project.tasks("wait")[0]["status"] == "running"
    go_on(project)
    out, err = follower.communicate(timeout=100)
    assert "it goes on" in out, out + err
    assert status(project) == "completed"


def test_an_engine_that_waits_holds_its_run_until_it_is_withdrawn(project: Project, slurm: SlurmHere) -> None:
    configure(project, 'extra = ["--begin=now+1hour"], time = "30m"')
    engine = submit(project)
    assert status(project) == "pending"
    for options in ((), ("--detach",)):
        refused = project.upshift("resume", "latest", *options, expect=2).err
        assert f"It is job {engine} of Slurm, which waits: BeginTime." in refused
    assert "its engine had not begun" in project.upshift("cancel", "latest").out
    state = ("squeue", "--states=all", "--noheader", "--format=%T", f"--jobs={engine}")
    assert slurm.run(*state) == "CANCELLED"
    assert status(project) == "cancelled"

    lost = job_of(project.upshift("resume", "latest", "--detach"))
    slurm.run("scancel", lost)
    followed = project.upshift("logs", "latest", "-f")
    assert "its engine is gone" in followed.err
    assert f"lost: job {lost} of Slurm" in project.upshift("show", "latest").out
    configure(project)
    project.upshift("resume", "latest", "--detach")
    begun(project)
    go_on(project)
    assert "it goes on" in project.upshift("logs", "latest", "-f").out
    assert status(project) == "completed"


def test_a_target_that_cannot_take_the_engine_refuses_it_and_nothing_is_recorded(project: Project) -> None:
    def refused(detach: str) -> str:
        configure(project, detach)
        return project.upshift("run", "pipeline.py", "--on", "cluster", "--detach", expect=2).err

    assert "this cluster has no partition 'nowhere'" in refused('partition = "nowhere"')
    assert "cannot grant what the engine of the run requests" in refused('memory = "100TB"')
    assert "detach has no option 'cpus'" in refused("cpus = 2")
    assert project.upshift("runs", "--json").out == "[]\n"
