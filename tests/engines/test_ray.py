"""Steps as jobs of a real Ray: what they get, how they end, and what the engine knows of that."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import upshift
from buckets import BucketHere
from contract.contract_kit import Ground
from cut_wire import CutWire
from project import Project
from ray_here import RayHere, nodes_apart, ray_here, ray_of_its_own
from upshift.backends.base import Ended, Job, Started, Waiting
from upshift.engine.targets import judge
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


MEETING = """
    import os
    from upshift import RaySettings, current, run_with_torchrun

    TWO, LOW = ResourceSettings(num_nodes=2, memory="300MB"), RaySettings(env_vars={"TONE": "low"})

    @run_with_torchrun(nproc_per_node=2)
    @step(secrets={"TOKEN": "env:MY_TOKEN"}, settings={"resources": TWO, "ray": LOW})
    def train() -> list:
        print("this is", current.rank, os.environ["TONE"], os.environ["TOKEN"])
        names = ("UPSHIFT_NODE", "UPSHIFT_ORDER", "RAY_JOB_CONFIG")
        return [current.world_size, [name for name in os.environ if name.startswith(names)]]

    @pipeline
    def example():
        return train()
"""

REDUCING = """
    import torch
    from upshift import current, run_with_accelerate, run_with_torchrun

    @run_with_torchrun(nproc_per_node=1, nnodes=3)
    @step
    def by_torch() -> float:
        torch.distributed.init_process_group("gloo")
        total = torch.tensor(float(current.rank + 1))
        torch.distributed.all_reduce(total)
        torch.distributed.destroy_process_group()
        return float(total)

    @run_with_accelerate(num_processes=2, num_machines=2, cpu=True)
    @step
    def by_accelerate() -> float:
        from accelerate import Accelerator
        accelerator = Accelerator()
        return float(accelerator.reduce(torch.tensor(float(accelerator.process_index + 1))))

    @pipeline
    def example():
        return by_torch(), by_accelerate()
"""

TRAINING = """
    from upshift import FlowSpec, current, parallel

    class Training(FlowSpec):
        @step
        def start(self):
            self.next(self.train, num_parallel=2)

        @parallel
        @step
        def train(self):
            self.place = [current.parallel.node_index, current.parallel.main_ip]
            self.next(self.join)

        @step
        def join(self, inputs):
            self.places = [one.place for one in inputs]
            self.next(self.end)

        @step
        def end(self):
            pass
"""

ELASTIC = """
    import json, os, time
    from upshift import current, run_with_torchrun

    @run_with_torchrun(nproc_per_node=1, nnodes="2:3")
    @step(cache=False, retries=1)
    def train(told: str) -> int:
        if current.attempt > 1:
            print("goes on as", current.rank, "of", current.world_size)
            return len(list(current.checkpoint.latest.iterdir()))
        with current.checkpoint.save() as saved:
            (saved / str(current.rank)).touch()
        with open(told, "w") as pipe:
            pipe.write(json.dumps([current.rank, os.getppid()]) + "\\n")
        time.sleep(1000)

    @pipeline
    def example(told: str):
        return train(told)
"""


SILENT = """
    import json, os, time
    from upshift import current, run_with_torchrun

    @run_with_torchrun(nproc_per_node=1, nnodes=2)
    @step(cache=False)
    def train(told: str) -> None:
        with open(told, "w") as pipe:
            pipe.write(json.dumps([current.rank, os.getppid()]) + "\\n")
        time.sleep(1000)

    @pipeline
    def example(told: str):
        train(told)
"""


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


def test_a_step_on_several_nodes_is_one_job_with_one_result_and_a_log_of_each_rank(
    project: Project, ray: RayHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "sesame-open")
    project.write(MEETING)
    said = project.upshift("run", "pipeline.py", "--on", "cluster").err
    assert "train: started, 4 processes on 2 nodes" in said
    assert upshift.get_run("latest").output == [4, []]
    job = ray.jobs("train")[-1]
    assert (job["status"], job["metadata"]["nodes"]) == ("SUCCEEDED", "2")
    for rank in range(4):
        assert (
            project.upshift("logs", "latest", "train", "--rank", str(rank)).out == f"this is {rank} low ***\n"
        )
    attempt = attempt_of(project)
    assert [attempt[record]["nodes"] for record in ("asked", "granted", "seen", "used")] == [2, 2, 2, 2]
    hosts = {one["host"] for record in ("granted", "seen", "used") for one in attempt[record]["by_node"]}
    assert len(hosts) == 2 and all(host.startswith("127.0.18.") for host in hosts)
    assert "sesame" not in json.dumps(ray.ask("/api/jobs/"))


def test_a_node_counts_as_lost_after_the_silence_that_its_target_says(project: Project, ray: RayHere) -> None:
    project.write(SILENT)
    told = project.fifo("told")
    target = f'backend = "ray"\nnodes_silence = "2s"\noptions = {{ address = "{ray.address}" }}\n'
    (project.folder / "upshift.toml").write_text(f"[targets.cluster]\n{target}")
    with Running(project, "run", "pipeline.py", "--on", "cluster", "--param", f"told={told}") as run:
        ranks = supervisors(told, 2, run)
        os.kill(ranks[1], signal.SIGSTOP)
        said = run.end(1)
    assert re.search(
        r"\(infrastructure\): node 1 \(127\.0\.18\.\d\) is gone: nothing has come from it for", said
    )
    assert attempt_of(project)["reason"] == "infrastructure"
    until(lambda: not any(map(alive, ranks.values())), "both supervisors leave")


def supervisors(told: Path, count: int, run: Running) -> dict[int, int]:
    """The process of each rank's supervisor, once so many ranks have told theirs."""
    found: dict[int, int] = {}
    # Open for writing, too: what one rank says is not cut off by another one's end.
    with open(os.open(told, os.O_RDWR), "rb", buffering=0) as pipe:
        while len(found) < count:
            assert select.select([pipe], [], [], LONG)[0], run.said
            found.update(json.loads(line) for line in os.read(pipe.fileno(), 4096).splitlines())
    return found


def test_secrets_are_handed_over_in_a_file_that_nobody_else_can_read_and_that_is_gone_then(
    project: Project, ray: RayHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "sesame-open")
    flag = project.folder / "go"
    project.write(WAITING.replace("grace=30", 'grace=30, secrets={"TOKEN": "env:MY_TOKEN"}, on="licensed"'))
    holds = Watching(project.folder / "ground", resources=LICENCE)
    handle, _ = holds.started("wait")
    with Running(project, "run", "pipeline.py", "--param", f"until={flag}") as run:
        (order,) = until(lambda: list(project.home.rglob("*.order.0")), "its job is submitted")
        assert order.stat().st_mode & 0o777 == 0o600
        assert b"sesame" not in order.read_bytes()
        (job,) = until(
            lambda: [j for j in ray.jobs("wait") if j["submission_id"] != handle][-1:], "it is there"
        )
        assert "sesame" not in json.dumps(job)
        holds.watched.cancel(handle, grace=0)
        run.until_it_says("[wait] it waits")
        assert not order.exists()
        flag.touch()
        run.end()
    holds.ground.close()
    for file in (project.home / "store").rglob("*"):
        assert not file.is_file() or b"sesame-open" not in file.read_bytes(), file


def test_ranks_of_torch_and_accelerate_reduce_over_nodes(project: Project) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    project.write(REDUCING)
    project.upshift("run", "pipeline.py", "--on", "cluster")
    assert upshift.get_run("latest").output == (6.0, 3.0)


def test_a_flow_has_a_process_on_each_node_and_joins_what_they_set(project: Project) -> None:
    project.write(TRAINING)
    project.upshift("run", "pipeline.py", "--on", "cluster")
    places = upshift.get_run("latest").output.places
    assert [index for index, _ in places] == [0, 1] and len({main for _, main in places}) == 1


def test_more_nodes_than_have_what_is_asked_for_are_refused_and_the_nodes_are_named(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "sesame-open")
    project.write(MEETING.replace("num_nodes=2", "num_nodes=4"))
    said = project.upshift("run", "pipeline.py", "--on", "cluster", expect=2).err
    assert "asked 4 nodes, gets 3: no more nodes of the cluster have what is asked for on each" in said
    assert "127.0.18.3 with 8 CPUs" in said
    project.write(MEETING.replace("num_nodes=2", 'num_nodes=3, accelerator="H200:4"'))
    assert "asked 3 nodes, gets 2" in project.upshift("run", "pipeline.py", "--on", "cluster", expect=2).err


def test_nodes_that_are_waited_for_too_long_are_given_up_and_the_job_is_stopped(
    project: Project, watching: Callable[..., Watching], ray: RayHere
) -> None:
    holds = watching(resources=LICENCE)  # a CPU of the head
    handle, _ = holds.started("wait")
    project.write(
        """
        from upshift import run_with_torchrun

        @run_with_torchrun(nnodes=3)
        @step(on="hasty", settings={"resources": ResourceSettings(cpu_count=8)})
        def train() -> None: ...

        @pipeline
        def example():
            train()
        """
    )
    hasty = (
        f'[targets.hasty]\nbackend = "ray"\nstart_within = "5s"\noptions = {{ address = "{ray.address}" }}\n'
    )
    (project.folder / "upshift.toml").write_text(hasty)
    said = project.upshift("run", "pipeline.py", expect=1).err
    assert "the nodes do not have 8 CPUs on each of 3 nodes free yet" in said
    assert attempt_of(project)["reason"] == "infrastructure"
    (job,) = ray.jobs("train")[-1:]
    until(lambda: ray.job(job["submission_id"])["status"] == "STOPPED", "it is stopped")
    groups = ray.ask("/api/v0/placement_groups?limit=1000")["data"]["result"]["result"]
    assert {g["state"] for g in groups if g["name"] == job["submission_id"]} <= {"REMOVED"}
    holds.watched.cancel(handle, grace=0)
    holds.watched.until(Ended, handle)


@pytest.fixture(scope="module")
def own_ray() -> Iterator[RayHere]:
    """A cluster whose nodes tests take away."""
    with ray_of_its_own() as made:
        yield made


def lose(own: RayHere, address: str) -> None:
    """Take a node away."""
    (raylet,) = children(own.node(address), "raylet")
    os.kill(raylet, signal.SIGKILL)


@pytest.fixture
def with_bucket(bucket: BucketHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayHere]:
    """Such a cluster whose nodes have folders and credentials of their own, and share a bucket only."""
    monkeypatch.setenv("UPSHIFT_STORE", f"{bucket.address}/team")
    with ray_of_its_own(port=8395, net=20) as made:
        yield made


@pytest.mark.timeout(240)
@pytest.mark.parametrize("where", ["own_ray", "with_bucket"])
def test_a_step_that_will_do_with_fewer_nodes_goes_on_without_the_one_that_is_lost(
    where: str, project: Project, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    own: RayHere = request.getfixturevalue(where)
    project.write(ELASTIC)
    told = project.fifo("told")
    apart = f", {nodes_apart(f'{tmp_path}/$UPSHIFT_NODE_NAME')}" if where == "with_bucket" else ""
    target = f'options = {{ address = "{own.address}"{apart} }}\n'
    (project.folder / "upshift.toml").write_text(f'[targets.own]\nbackend = "ray"\n{target}')
    with Running(project, "run", "pipeline.py", "--on", "own", "--param", f"told={told}") as run:
        ranks = supervisors(told, 3, run)
        gone = own.workers[-1]
        lose(own, gone)
        said = run.end()
    assert "[rank 1] goes on as 1 of 2" in said and f"({gone}) is gone" in said
    assert project.python("-c", "import upshift; print(upshift.get_run('latest').output)").out == "3\n"
    attempts = shown(project)["steps"][0]["tasks"][0]["attempts"]
    assert [one["granted"]["nodes"] for one in attempts] == [3, 2]
    assert attempts[0]["reason"] == "infrastructure"
    until(lambda: not any(map(alive, ranks.values())), "the supervisors of the first attempt leave")


@pytest.mark.timeout(240)
def test_a_node_that_is_lost_is_told_as_such(own_ray: RayHere, watching: Callable[..., Watching]) -> None:
    one = watching(address=own_ray.address, labels={"rack": "r1"})
    handle, job = one.started("wait")
    lose(own_ray, own_ray.workers[0])
    failure = one.failure(handle, job)
    assert failure.reason == "infrastructure"
    assert "its node was lost" in failure.message, failure.message
    # What the cluster has lost it does not promise any more.
    with pytest.raises(RequestRefused, match="label rack=r1"):
        watching(address=own_ray.address, labels={"rack": "r1"}).watched.asked()


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


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


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


def test_an_engine_may_be_a_job_of_rays_which_gets_no_secret(project: Project) -> None:
    project.write("""
        @step(cache=False)
        def f() -> str:
            print("it runs")
            return "done"

        @step(secrets={"TOKEN": "env:TOKEN"})
        def g(x: str) -> str:
            return x

        @pipeline
        def plain():
            return f()

        @pipeline
        def secret():
            return g(f())
    """)
    detached = ("--on", "cluster", "--detach")
    said = project.upshift("run", "pipeline.py:secret", *detached, env={"TOKEN": "abcdef"}, expect=2).err
    assert "secret TOKEN (env:TOKEN) cannot be brought to an engine on 'cluster'" in said
    said = project.upshift("run", "pipeline.py:plain", *detached).err
    assert "its engine is job engine-plain-" in said
    assert "[f] it runs\n" in project.upshift("logs", "latest", "-f").out
    assert "f: completed in" in project.upshift("logs", "latest", "--engine", "-f").out
