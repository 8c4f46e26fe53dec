"""Steps as jobs of a real Ray: what they get, how they end, and what the engine knows of that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.contract_kit import Ground
from cut_wire import CutWire
from project import Project
from ray_here import RayHere, ray_here, ray_of_its_own
from upshift.backends.base import Ended, Job, Started, Waiting
from upshift.engine.attempts import judge
from upshift.errors import RequestRefused
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Failure

LONG = 120.0
"""Seconds after which what was promised is not believed in any more."""
LICENCE = {"licence": 1}
"""Of which the cluster has one: whoever has it lets others wait."""

WAITING = """
    import os, time

    @step(cache=False, grace=30)
    def wait(until: str) -> str:
        print("it waits", flush=True)
        while not os.path.exists(until):
            time.sleep(0.05)
        print("it goes on", flush=True)
        return "done"

    @pipeline
    def example(until: str):
        return wait(until)
"""


@pytest.fixture(scope="module", autouse=True)
def one_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runtime is unpacked once for all of these tests."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def ray(one_home: Path, upshift_home: Path, monkeypatch: pytest.MonkeyPatch) -> RayHere:
    """The shared cluster, as this process and what it starts find it."""
    here = ray_here()
    monkeypatch.setenv("UPSHIFT_HOME", str(one_home))
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", here.address)
    return here


@pytest.fixture
def project(ray: RayHere, one_home: Path, tmp_path: Path) -> Project:
    made = Project(tmp_path / "project", one_home)
    made.write(
        f"""
[targets.cluster]
backend = "ray"
options = {{ address = "{ray.address}" }}

[targets.licensed]
backend = "ray"
options = {{ address = "{ray.address}", resources = {{ licence = 1 }}, env_vars = {{ TONE = "low" }} }}

[targets.impatient]
backend = "ray"
start_within = "1s"
options = {{ address = "{ray.address}", resources = {{ licence = 1 }} }}
""",
        "upshift.toml",
        header="",
    )
    return made


class Watching:
    """A ground whose jobs are of a target with these options, and their ends as the engine judges them."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.ground = Ground("ray", folder, options=options)
        self.watched = self.ground.open()

    def submit(self, function: str, **fields: Any) -> tuple[str, Job]:
        job = self.ground.job(function, **fields)
        return self.watched.submit(job), job

    def started(self, function: str, **fields: Any) -> tuple[str, Job]:
        """Submit a job, and wait until its step runs."""
        handle, job = self.submit(function, **fields)
        self.watched.until(Started, handle)
        return handle, job

    def failure(self, handle: str, job: Job) -> Failure:
        """Why it failed, as the engine sees it."""
        ended = self.watched.until(Ended, handle)
        task, number = job.spec.task, job.spec.attempt
        verdict = judge(task, number, self.ground.store.read_result(task, number), ended)
        assert verdict.failure is not None
        return verdict.failure


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Callable[..., Watching]]:
    made: list[Watching] = []

    def make(**options: Any) -> Watching:
        made.append(Watching(tmp_path / f"ground-{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.ground.close()


def shown(project: Project) -> Any:
    return json.loads(project.upshift("show", "latest", "--json").out)


def attempt_of(project: Project) -> Any:
    return shown(project)["steps"][0]["tasks"][0]["attempts"][-1]


def until(there: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LONG
    while not (found := there()):
        assert time.monotonic() < deadline, f"not in {LONG:g} s: {what}"
        time.sleep(0.05)
    return found


class Running:
    """A run in the background; its output is in a file."""

    def __init__(self, project: Project, *arguments: str) -> None:
        self._said = project.folder / "said.txt"
        with open(self._said, "ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "upshift", *arguments],
                cwd=project.folder,
                env=project.environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def until_it_says(self, text: str) -> None:
        until(lambda: text in self.said or self.process.poll() is not None, f"{text!r}")
        assert text in self.said, self.said

    def end(self, expect: int = 0) -> str:
        assert self.process.wait(LONG) == expect, self.said
        return self.said

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def waiting(project: Project, *options: str) -> tuple[Running, Path]:
    """A run of one step that goes on until a file is there."""
    flag = project.folder / "go"
    project.write(WAITING)
    started = Running(project, "run", "pipeline.py", "--on", "cluster", "--param", f"until={flag}", *options)
    return started, flag


def test_steps_run_as_jobs_with_what_they_ask_for_and_hand_on_their_results(
    project: Project, ray: RayHere
) -> None:
    project.write("""
        import os

        @step(settings={"resources": ResourceSettings(cpu_count=2, memory="600MB"),
                        "ray": {"labels": {"rack": "r1"}}})
        def first() -> dict:
            print("here")
            return {"order": [name for name in os.environ if "ORDER" in name + os.environ[name]],
                    "tone": os.environ.get("TONE")}

        @step(on="licensed")
        def second(found: dict) -> None:
            print(found, os.environ["TONE"])

        @pipeline
        def example():
            return second(first())
    """)
    out = project.upshift("run", "pipeline.py", "--on", "cluster")
    assert "[first] here" in out.out and "[second] {'order': [], 'tone': None} low" in out.out
    attempts = [step["tasks"][0]["attempts"][0] for step in shown(project)["steps"]]
    assert [attempt["backend"] for attempt in attempts] == ["ray", "ray"]
    job = ray.jobs("first")[-1]
    assert job["metadata"]["asks"] == "2 CPUs, 600 MB of memory, label rack=r1"
    assert job["driver_agent_http_address"].startswith("http://127.0.18.2:")
    assert list((project.home / "store").rglob("live/*")) == []


def test_a_request_that_no_node_can_meet_is_refused_and_the_largest_one_is_named(project: Project) -> None:
    project.write("""
        @step(settings={"resources": ResourceSettings(accelerator="H200:5")})
        def train() -> None: ...

        @pipeline
        def example():
            train()
    """)
    refused = project.upshift("run", "pipeline.py", "--on", "cluster", expect=2).err
    assert "5 × H200" in refused
    assert "its largest node is 127.0.18." in refused and "with 8 CPUs" in refused and "4 × H200" in refused


def test_what_no_node_has_is_refused_before_anything_runs(watching: Callable[..., Watching]) -> None:
    with pytest.raises(RequestRefused, match="no node of the cluster has 2 × licence"):
        watching(resources={"licence": 2}).watched.asked()
    with pytest.raises(RequestRefused, match="label rack=r9"):
        watching(labels={"rack": "r9"}).watched.asked()


def test_cancelling_a_run_lets_its_steps_end(project: Project, ray: RayHere) -> None:
    run, _ = waiting(project)
    with run:
        run.until_it_says("[wait] it waits")
        run.process.send_signal(signal.SIGINT)
        run.end(130)
    assert attempt_of(project)["status"] == "cancelled"
    until(lambda: ray.jobs("wait")[-1]["status"] == "SUCCEEDED", "its supervisor leaves")


def test_an_engine_that_was_killed_finds_its_jobs_again_and_none_runs_twice(
    project: Project, ray: RayHere
) -> None:
    run, flag = waiting(project)
    with run:
        run.until_it_says("[wait] it waits")
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
    before = ray.jobs("wait")
    with Running(project, "resume", "latest") as resumed:
        resumed.until_it_says("still running since")
        flag.touch()
        assert "it goes on" in resumed.end()
    assert [job["submission_id"] for job in ray.jobs("wait")] == [job["submission_id"] for job in before]


def test_what_waits_too_long_is_given_up_with_what_it_waited_for(
    project: Project, watching: Callable[..., Watching]
) -> None:
    holds = watching(resources=LICENCE)
    handle, _ = holds.started("wait")
    project.write("""
        @step(on="impatient")
        def licensed() -> int:
            return 1

        @pipeline
        def example():
            licensed()
    """)
    said = project.upshift("run", "pipeline.py", expect=1)
    assert "no node has 1 CPU, 1 × licence free yet" in said.err
    assert attempt_of(project)["reason"] == "infrastructure"
    holds.watched.cancel(handle, grace=0)
    holds.watched.until(Ended, handle)


def test_a_job_that_somebody_stops_is_cancelled(watching: Callable[..., Watching], ray: RayHere) -> None:
    one = watching()
    handle, job = one.started("wait")
    ray.stop(handle)
    failure = one.failure(handle, job)
    assert failure.reason == "cancelled"
    assert "somebody stopped the job" in failure.message


def test_a_job_that_waits_can_be_cancelled_and_never_begins(
    watching: Callable[..., Watching], ray: RayHere
) -> None:
    one, other = watching(resources=LICENCE), watching(resources=LICENCE)
    holds, _ = one.started("wait")
    handle, job = other.submit("add", inputs={"a": 1, "b": 2})
    assert "no node has 1 CPU, 1 × licence free yet" in other.watched.until(Waiting, handle).why
    other.watched.cancel(handle, grace=600)
    assert other.failure(handle, job).reason == "cancelled"
    one.watched.cancel(holds, grace=0)
    one.watched.until(Ended, holds)
    # Ray starts it all the same once it has what it asked for, or stops it then.
    until(lambda: ray.job(handle)["status"] not in ("PENDING", "RUNNING"), "it ends")
    assert other.ground.store.read_result(job.spec.task, 1) is None


def test_memory_beyond_that_of_a_step_is_out_of_memory(watching: Callable[..., Watching]) -> None:
    one = watching()
    granted = one.watched.asked(memory="200MB").granted
    failure = one.failure(*one.submit("fill", request=ResourceSettings(memory="200MB"), granted=granted))
    assert failure.reason == "out-of-memory"


def test_a_node_that_does_not_see_the_interpreter_says_so(
    watching: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = watching()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    failure = one.failure(*one.submit("add", inputs={"a": 1, "b": 2}))
    assert failure.reason == "infrastructure"
    assert "exit code 127" in failure.message and "/nowhere/python" in failure.message


def test_what_ended_while_nobody_watched_keeps_its_cause(
    watching: Callable[..., Watching], ray: RayHere
) -> None:
    one = watching()
    handle, job = one.started("wait")
    one.watched.backend.close()
    ray.stop(handle)
    until(lambda: ray.job(handle)["status"] == "STOPPED", "it has ended")
    one.watched = one.ground.open()
    assert one.watched.attach(handle, job) is None  # it is watched, and its end follows
    assert "somebody stopped the job" in one.failure(handle, job).message


def test_a_process_of_rays_that_is_killed_ends_its_job(watching: Callable[..., Watching]) -> None:
    one = watching()
    handle, job = one.started("wait")
    (of_ray,) = {parent_of(pid) for pid in of_job(one, job)} - set(of_job(one, job))
    os.kill(of_ray, signal.SIGKILL)
    failure = one.failure(handle, job)
    assert failure.reason == "infrastructure"
    assert "Ray's process beside it died" in failure.message
    until(lambda: not of_job(one, job), "what it had started has ended")


def test_a_node_that_is_lost_is_told_as_such(watching: Callable[..., Watching]) -> None:
    with ray_of_its_own() as own:
        one = watching(address=own.address, labels={"rack": "r1"})
        handle, job = one.started("wait")
        node = own.job(handle)["driver_agent_http_address"].split("/")[2].rpartition(":")[0]
        (raylet,) = children(own.node(node), "raylet")
        os.kill(raylet, signal.SIGKILL)
        failure = one.failure(handle, job)
        assert failure.reason == "infrastructure"
        assert "its node was lost" in failure.message, failure.message
        # What the cluster has lost it does not promise any more.
        with pytest.raises(RequestRefused, match="label rack=r1"):
            watching(address=own.address, labels={"rack": "r1"}).watched.asked()


def test_while_the_dashboard_is_away_jobs_go_on_and_others_wait(
    watching: Callable[..., Watching], ray: RayHere, tmp_path: Path
) -> None:
    with CutWire(ray.address.removeprefix("http://"), after=1, times=0) as wire:
        one = watching(address=f"http://{wire.address}")
        running, _ = one.started("until_there", inputs={"path": str(tmp_path / "go")})
        wire.left = 10**9
        later, another = one.submit("add", inputs={"a": 1, "b": 2})
        assert "Ray does not answer" in one.watched.until(Waiting, later).why
        # What runs is heard of through the store.
        (tmp_path / "go").touch()
        assert one.watched.until(Ended, running).reason is None
        wire.left = 0
        one.watched.until(Ended, later)
        result = one.ground.store.read_result(another.spec.task, 1)
        assert result is not None and result.status == "completed"
        one.ground.close()


def test_devices_that_ray_hands_out_and_that_are_not_there_are_no_devices(
    watching: Callable[..., Watching],
) -> None:
    one = watching()
    request = ResourceSettings(accelerator="H200:2")
    granted = one.watched.asked(accelerator="H200:2").granted
    failure = one.failure(*one.submit("wait", request=request, granted=granted, strict=True))
    assert failure.reason == "hardware", failure.message
    assert "the scheduler has granted 2 GPUs" in failure.message


def of_job(one: Watching, job: Job) -> list[int]:
    """The supervisor of a job, and the process of its step."""
    path = os.path.join(one.ground.store.address, job.spec_path)
    return [pid for pid, line in lines_of_processes() if "--scheduled" in line and line[-1] == path]


def children(parent: int, name: str) -> list[int]:
    """The processes of this name that one has started, or what it has started."""
    found = []
    for pid, line in lines_of_processes():
        above = pid
        while above > 1 and above != parent:
            above = parent_of(above)
        if above == parent and line and Path(line[0]).name == name:
            found.append(pid)
    return found


def parent_of(pid: int) -> int:
    """Its parent; 1 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 1


def lines_of_processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                yield int(entry.name), (entry / "cmdline").read_text().rstrip("\0").split("\0")
            except OSError:
                continue
