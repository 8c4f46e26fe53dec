"""Steps as jobs of a real Slurm: what they get, how they end, and what the engine knows of that."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.contract_kit import Ground
from project import Project
from slurm_here import SlurmHere, instead, slurm_here, slurm_of_its_own
from upshift.backends.base import Ended, Job, Started, Waiting
from upshift.engine.targets import judge
from upshift.errors import RequestRefused
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Failure
from wheels import wheel

LONG = 120.0
"""Seconds after which what was promised is not believed in any more."""

WAITING = """
    import os, time

    @step(cache=False, grace=30)
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


SKEWED = """
import os, time

shift = {"n1": -7200, "n2": 7200}.get(os.environ.get("SLURMD_NODENAME"), 0)
now, now_ns = time.time, time.time_ns
time.time = lambda: now() + shift
time.time_ns = lambda: now_ns() + shift * 10**9
"""
"""What makes the clocks of two nodes wrong, for all that Python does there."""


@pytest.fixture(scope="module", autouse=True)
def one_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runtime is unpacked once for all of these tests."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def found(one_home: Path, upshift_home: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmHere:
    """The shared cluster, as commands and this process find it."""
    here = slurm_here()
    monkeypatch.setenv("UPSHIFT_HOME", str(one_home))
    monkeypatch.setenv("SLURM_CONF", here.environment["SLURM_CONF"])
    return here


@pytest.fixture
def slurm(found: SlurmHere) -> SlurmHere:
    return found


@pytest.fixture(scope="module")
def own_slurm() -> Iterator[SlurmHere]:
    """A cluster with accounts, whose daemons tests stop and kill."""
    with slurm_of_its_own(accounting=True) as made:
        yield made


@pytest.fixture
def project(slurm: SlurmHere, one_home: Path, tmp_path: Path) -> Project:
    made = Project(tmp_path / "project", one_home)
    made.write('[targets.cluster]\nbackend = "slurm"\n', "upshift.toml", header="")
    return made


class Watching:
    """A ground whose jobs are of a target with these options, and their ends as the engine judges them."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.ground = Ground("slurm", folder, options=options)
        self.watched = self.ground.open()

    def submit(self, function: str, **fields: Any) -> tuple[str, Job]:
        job = self.ground.job(function, **fields)
        return self.watched.submit(job), job

    def granted(self, function: str, **request: Any) -> tuple[str, Job]:
        """Submit a job that has what it asks for."""
        granted = self.watched.asked(**request).granted
        return self.submit(function, request=ResourceSettings(**request), granted=granted, strict=True)

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


@pytest.fixture(scope="module", autouse=True)
def slow(one_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Jobs whose end takes Slurm or a supervisor half a minute; the other tests run meanwhile."""
    here = slurm_here()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UPSHIFT_HOME", str(one_home))
        patch.setenv("SLURM_CONF", here.environment["SLURM_CONF"])
        watching = Watching(tmp_path_factory.mktemp("slow"))
        handle, limited = watching.submit("wait")
        watching.watched.until(Started, handle)
        # In place of a minute, the least that Slurm knows; "now" is refused where its clock ticks meanwhile.
        here.run("scontrol", "update", f"JobId={here.job(handle.rpartition('-')[0])}", "EndTime=now+2")
        devices, without = watching.granted("wait", gpu_count=2)
    yield {"watching": watching, "limited": (handle, limited), "devices": (devices, without)}
    watching.ground.close()


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
    project: Project, slurm: SlurmHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "never-to-be-seen")
    project.write("""
        import os

        @step(settings={"resources": ResourceSettings(cpu_count=2, memory="600MB"), "slurm": {"time": "7m"}},
              secrets={"TOKEN": "env:TOKEN"})
        def first() -> dict:
            print("here")
            return {"job": os.environ["SLURM_JOB_ID"], "token": len(os.environ["TOKEN"]),
                    "order": os.environ.get("UPSHIFT_ORDER"), "cpus": os.environ["SLURM_CPUS_PER_TASK"]}

        @step(on="local")
        def second(found: dict) -> dict:
            return found

        @pipeline
        def example():
            return second(first())
    """)
    out = project.upshift("run", "pipeline.py", "--on", "cluster")
    assert "[first] here" in out.out
    found = shown(project)
    first, second = found["steps"]
    assert [first["tasks"][0]["attempts"][0]["backend"], second["tasks"][0]["attempts"][0]["backend"]] == [
        "slurm",
        "local",
    ]
    job = slurm.run("scontrol", "--oneliner", "show", "job", slurm.job("first"))
    assert "CPUs/Task=2" in job and "MinMemoryNode=573M" in job and "TimeLimit=00:07:00" in job
    for file in (project.home / "store").rglob("*"):
        assert not file.is_file() or b"never-to-be-seen" not in file.read_bytes(), file
    assert list((project.home / "store").rglob("live/*")) == []
    assert list((project.home / "store").rglob("*.out")) == []


def test_a_request_that_no_node_can_meet_is_refused_and_the_largest_one_is_named(project: Project) -> None:
    project.write("""
        @step(settings={"resources": ResourceSettings(accelerator="H200:5")})
        def train() -> None: ...

        @pipeline
        def example():
            train()
    """)
    refused = project.upshift("run", "pipeline.py", "--on", "cluster", expect=2).err
    assert "5 × H200" in refused and "n1 with 8 CPUs" in refused and "4 × h200" in refused


def test_doctor_says_how_the_cluster_is_and_what_becomes_of_a_step(project: Project) -> None:
    said = json.loads(project.upshift("doctor", "cluster", "--submit", "--json").out)
    found = {check["name"]: check["text"] for check in said["checks"] if check["group"] != "this machine"}
    assert said["ok"]
    assert "answers" in found["access"]
    assert "partition 'main': 3 nodes" in found["queue"]
    assert "12 × h200" in found["devices"]
    assert list(found)[-6:] == ["submitted", "running", "node", "seen", "ended", "store"]
    assert found["node"] in ("n1", "n2", "n3")  # as the cluster calls it
    assert "Python 3" in found["ended"]
    assert "CPU" in found["seen"]


def test_targets_names_what_is_wrong_with_the_options_of_one(project: Project) -> None:
    more = '[targets.odd]\nbackend = "slurm"\noptions = { partition = "gpus" }\n'
    project.write('[targets.cluster]\nbackend = "slurm"\n' + more, "upshift.toml", header="")
    done = project.upshift("targets", expect=1)
    assert "no partition 'gpus'" in done.out


def test_cancelling_a_run_lets_its_steps_end(project: Project, slurm: SlurmHere) -> None:
    run, _ = waiting(project)
    with run:
        run.until_it_says("[wait] it waits")
        run.process.send_signal(signal.SIGINT)
        run.end(130)
    assert attempt_of(project)["status"] == "cancelled"
    until(lambda: slurm.job("wait", "%T") == "COMPLETED", "its supervisor leaves")


def test_an_engine_that_was_killed_finds_its_jobs_again_and_none_runs_twice(
    project: Project, slurm: SlurmHere
) -> None:
    run, flag = waiting(project)
    with run:
        run.until_it_says("[wait] it waits")
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
    before = slurm.job("wait")
    with Running(project, "resume", "latest") as resumed:
        resumed.until_it_says("still running since")
        flag.touch()
        assert "it goes on" in resumed.end()
    assert slurm.job("wait") == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "gpus"}, ["no partition 'gpus'", "main"]),
        ({"partition": "research", "account": "physics"}, ["physics", "research, vision"]),
        ({"constraint": "infiniband"}, ["Invalid feature"]),
        ({"partition": "small", "time": "9m"}, ["time='9m'", "5 min"]),
    ],
)
def test_what_the_site_does_not_know_is_refused_before_anything_runs(
    watching: Callable[..., Watching], options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(RequestRefused) as refused:
        watching(**options).watched.asked()
    for word in words:
        assert word in str(refused.value)


def test_a_job_that_somebody_cancels_is_cancelled(
    watching: Callable[..., Watching], slurm: SlurmHere
) -> None:
    one = watching()
    handle, job = one.submit("wait")
    one.watched.until(Started, handle)
    slurm.run("scancel", f"--name={handle}")
    failure = one.failure(handle, job)
    assert failure.reason == "cancelled"
    assert "somebody cancelled the job" in failure.message


def test_a_job_that_makes_room_for_another_one_is_preempted(
    watching: Callable[..., Watching], slurm: SlurmHere
) -> None:
    one = watching(partition="spare", exclusive=True)
    handle, job = one.submit("wait")
    one.watched.until(Started, handle)
    script = "#!/bin/sh\ntrue\n"
    slurm.run("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", input=script)
    failure = one.failure(handle, job)
    assert failure.reason == "preempted"
    assert "made room for another one" in failure.message


def test_memory_beyond_that_of_a_job_that_asked_for_none_is_out_of_memory(
    watching: Callable[..., Watching],
) -> None:
    one = watching()
    assert one.failure(*one.submit("fill")).reason == "out-of-memory"


def test_why_a_job_waits_is_told_in_slurms_words_and_it_can_be_withdrawn(
    watching: Callable[..., Watching], slurm: SlurmHere
) -> None:
    one = watching(extra=["--begin=now+1hour"])
    handle, job = one.submit("wait")
    assert one.watched.until(Waiting, handle).why == "Slurm has it wait: BeginTime"
    one.watched.cancel(handle, grace=600)
    assert one.failure(handle, job).reason == "cancelled"
    assert slurm.run("squeue", "--noheader", f"--name={handle}") == ""


def test_a_node_that_does_not_see_the_interpreter_says_so(
    watching: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = watching()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    failure = one.failure(*one.submit("add", inputs={"a": 1, "b": 2}))
    assert failure.reason == "infrastructure"
    assert "exit code 127" in failure.message and "/nowhere/python" in failure.message


def test_what_ended_while_nobody_watched_keeps_its_cause(
    watching: Callable[..., Watching], slurm: SlurmHere
) -> None:
    one = watching()
    handle, job = one.submit("wait")
    one.watched.until(Started, handle)
    one.watched.backend.close()
    slurm.run("scancel", f"--name={handle}")
    until(lambda: slurm.run("squeue", "--noheader", f"--name={handle}") == "", "it has ended")
    one.watched = one.ground.open()
    assert one.watched.attach(handle, job) is None  # it is watched, and its end follows
    assert "somebody cancelled the job" in one.failure(handle, job).message


def test_a_job_is_submitted_once_though_nobody_knows_whether_it_was_taken(
    watching: Callable[..., Watching], slurm: SlurmHere
) -> None:
    one, other = watching(), watching()
    handle, job = one.submit("wait")
    one.watched.until(Started, handle)
    one.watched.backend.close()
    # As where sbatch has said "Socket timed out", and the job was taken.
    assert other.watched.find(job) == handle
    assert len(slurm.run("squeue", "--noheader", f"--name={handle}").splitlines()) == 1
    slurm.run("scancel", f"--name={handle}")


def test_a_job_that_was_taken_though_sbatch_says_otherwise_is_not_submitted_again(
    watching: Callable[..., Watching], slurm: SlurmHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead(
        "sbatch",
        """
        if subprocess.run([real, *sys.argv[1:]], stdout=subprocess.DEVNULL).returncode == 0:
            sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
        """,
        tmp_path,
        monkeypatch,
    )
    one = watching()
    handle, job = one.submit("add", inputs={"a": 1, "b": 2})
    assert "Socket timed out" in one.watched.until(Waiting, handle).why
    one.watched.until(Ended, handle)
    result = one.ground.store.read_result(job.spec.task, 1)
    assert result is not None and result.status == "completed"
    submitted = slurm.run("squeue", "--states=all", "--noheader", f"--name={handle}")
    assert len(submitted.splitlines()) == 1


def test_a_full_queue_is_waited_out_though_sbatch_itself_would_give_up(
    watching: Callable[..., Watching], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upshift.backends.slurm.cluster.PATIENCE", 5.0)
    asleep = tmp_path / "asleep"
    instead(
        "sbatch",
        f"""
        if not os.path.exists({str(asleep)!r}):
            open({str(asleep)!r}, "w").close()
            # As at MaxJobCount: sbatch tries again by itself, and sleeps in between.
            said = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\\n"
            os.write(2, said.encode())
            signal.pause()
        os.execv(real, [real, *sys.argv[1:]])
        """,
        tmp_path,
        monkeypatch,
    )
    one = watching()
    handle, _ = one.submit("add", inputs={"a": 1, "b": 2})
    assert "takes no more jobs for now: Slurm temporarily unable" in one.watched.until(Waiting, handle).why
    assert one.watched.until(Ended, handle).reason is None


def test_a_job_goes_on_where_its_node_is_drained_and_others_wait_for_another_one(
    watching: Callable[..., Watching],
    own_slurm: SlurmHere,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SLURM_CONF", own_slurm.environment["SLURM_CONF"])
    one = watching(partition="small")
    running, _ = one.submit("until_there", inputs={"path": str(tmp_path / "go")})
    one.watched.until(Started, running)
    node = f"NodeName={own_slurm.prefix}1"
    own_slurm.run("scontrol", "update", node, "State=DRAIN", "Reason=test")
    later, _ = one.submit("add", inputs={"a": 1, "b": 2})
    assert "Slurm has it wait: " in one.watched.until(Waiting, later).why
    (tmp_path / "go").touch()
    assert one.watched.until(Ended, running).reason is None
    own_slurm.run("scontrol", "update", node, "State=RESUME")
    assert one.watched.until(Ended, later).reason is None


def test_a_node_that_is_lost_is_told_as_such(
    watching: Callable[..., Watching], own_slurm: SlurmHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", own_slurm.environment["SLURM_CONF"])
    one = watching()
    handle, job = one.submit("wait")
    one.watched.until(Started, handle)
    node = own_slurm.run("squeue", "--noheader", "--format=%N", f"--name={handle}")
    own_slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    failure = one.failure(handle, job)
    assert failure.reason == "infrastructure"
    assert f"its node failed on {node}" in failure.message


def test_while_the_controller_is_away_jobs_go_on_and_others_wait(
    watching: Callable[..., Watching],
    own_slurm: SlurmHere,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SLURM_CONF", own_slurm.environment["SLURM_CONF"])
    one = watching()
    running, _ = one.submit("until_there", inputs={"path": str(tmp_path / "go")})
    one.watched.until(Started, running)
    own_slurm.stop_daemon("slurmctld")
    later, another = one.submit("add", inputs={"a": 1, "b": 2})
    assert "Slurm does not answer" in one.watched.until(Waiting, later).why
    # What runs is heard of through the store.
    (tmp_path / "go").touch()
    assert one.watched.until(Ended, running).reason is None
    own_slurm.start_daemon("slurmctld")
    one.watched.until(Ended, later)
    result = one.ground.store.read_result(another.spec.task, 1)
    assert result is not None and result.status == "completed"


def test_half_a_minute_without_the_controller_is_told_once_and_the_run_completes(
    project: Project, own_slurm: SlurmHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", own_slurm.environment["SLURM_CONF"])
    flags = {name: project.folder / name for name in ("first", "second")}
    project.write("""
        import os, time

        def wait(until: str) -> None:
            print("it waits", flush=True)
            while not os.path.exists(until):
                time.sleep(0.05)

        @step(cache=False)
        def first(until: str) -> int:
            wait(until)
            return 1

        @step(cache=False)
        def second(until: str) -> int:
            wait(until)
            return 2

        @step(cache=False)
        def after(x: int) -> int:
            return x + 1

        @pipeline
        def example(folder: str):
            return after(first(f"{folder}/first")), second(f"{folder}/second")
    """)
    with Running(project, "run", "pipeline.py", "--on", "cluster", "-p", f"folder={project.folder}") as run:
        run.until_it_says("[first] it waits")
        run.until_it_says("[second] it waits")
        away = time.monotonic()
        own_slurm.stop_daemon("slurmctld")
        try:
            run.until_it_says("first: since ")
            flags["first"].touch()
            run.until_it_says("first: completed in")
            run.until_it_says("after: Slurm does not answer")
            until(lambda: time.monotonic() - away > 30, "so long it is away")
        finally:
            own_slurm.start_daemon("slurmctld")
        run.until_it_says("second: Slurm answers again, after ")
        run.until_it_says("after: completed in")
        flags["second"].touch()
        said = run.end()
    for name in flags:
        (told,) = [line for line in said.splitlines() if line.startswith(f"{name}: since ")]
        assert "Slurm does not answer: " in told and told.endswith(". Running steps continue")
    attempts = [one for step in shown(project)["steps"] for one in step["tasks"][0]["attempts"]]
    assert [one["status"] for one in attempts] == ["completed"] * 3


def test_an_account_that_does_not_exist_is_refused_before_anything_runs(
    watching: Callable[..., Watching], own_slurm: SlurmHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", own_slurm.environment["SLURM_CONF"])
    with pytest.raises(RequestRefused, match="Invalid account") as refused:
        watching(account="physics").watched.asked()
    assert "sacctmgr show assoc" in str(refused.value)


def test_a_limit_of_an_account_is_waited_out(
    watching: Callable[..., Watching],
    own_slurm: SlurmHere,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SLURM_CONF", own_slurm.environment["SLURM_CONF"])
    one = watching(account="few")
    handles = [one.submit("until_there", inputs={"path": str(tmp_path / "go")})[0] for _ in range(3)]
    assert "AssocMaxSubmitJobLimit" in one.watched.until(Waiting, handles[-1]).why
    one.watched.asked()  # that is nothing to refuse another run for
    (tmp_path / "go").touch()
    assert [one.watched.until(Ended, handle).reason for handle in handles] == [None] * 3


def test_while_the_accounting_is_away_jobs_run_and_begin(
    watching: Callable[..., Watching],
    own_slurm: SlurmHere,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SLURM_CONF", own_slurm.environment["SLURM_CONF"])
    one = watching()
    running, _ = one.submit("until_there", inputs={"path": str(tmp_path / "go")})
    one.watched.until(Started, running)
    own_slurm.stop_daemon("slurmdbd")
    try:
        later, _ = one.submit("add", inputs={"a": 1, "b": 2})
        assert one.watched.until(Ended, later).reason is None
        (tmp_path / "go").touch()
        assert one.watched.until(Ended, running).reason is None
    finally:
        own_slurm.start_daemon("slurmdbd")


@pytest.mark.parametrize(
    ("sacct", "known"),
    [
        ("os.execv(real, [real, *sys.argv[1:]])", True),
        ("print('1|' + sys.argv[-1].partition('=')[2] + '|RUNNING|n1|None')", False),
        ("sys.exit('Slurm accounting storage is disabled')", False),
    ],
    ids=["in time", "lagging", "off"],
)
def test_of_what_squeue_has_forgotten_the_accounting_knows_how_it_ended(
    sacct: str,
    known: bool,
    watching: Callable[..., Watching],
    own_slurm: SlurmHere,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SLURM_CONF", own_slurm.environment["SLURM_CONF"])
    one = watching()
    handle, job = one.submit("wait")
    one.watched.until(Started, handle)
    own_slurm.run("scancel", f"--name={handle}")
    form = "sacct", "--noheader", "--allocations", "--format=State", "--starttime=now-1day"
    until(lambda: own_slurm.run(*form, f"--name={handle}").startswith("CANCELLED"), "it is accounted")
    instead("squeue", "", tmp_path, monkeypatch)
    instead("sacct", sacct, tmp_path, monkeypatch)
    one.watched.backend.close()
    one.watched = one.ground.open()
    if not known:
        assert one.watched.attach(handle, job) == Ended(handle=handle)
        return
    assert one.watched.attach(handle, job) is None  # it is watched, and its end follows
    assert "somebody cancelled the job" in one.failure(handle, job).message


def test_devices_that_slurm_hands_out_and_that_are_not_there_are_no_devices(slow: dict[str, Any]) -> None:
    failure = slow["watching"].failure(*slow["devices"])
    assert failure.reason == "hardware", failure.message
    assert "the scheduler has granted 2 GPUs" in failure.message


def test_a_time_limit_is_a_timeout(slow: dict[str, Any]) -> None:
    failure = slow["watching"].failure(*slow["limited"])
    assert failure.reason == "timeout"
    assert "reached its time limit" in failure.message


def test_a_step_runs_in_the_python_environment_that_it_asks_for(project: Project) -> None:
    made_of = wheel(project.folder, "tiny", "1.0", {"tiny.py": "x = 1"})
    project.write(f"""
        from upshift import PythonEnvironment

        @step(settings={{"environment": PythonEnvironment(requirements=["./{made_of.name}"])}})
        def found() -> list:
            import sys, importlib.metadata
            print("it has tiny", importlib.metadata.version("tiny"))
            return [sys.prefix]

        @pipeline
        def example():
            return found()
    """)
    run = project.upshift("run", "pipeline.py", "--on", "cluster")
    assert "it has tiny 1.0" in run.out and "environment of found: made in" in run.err
    # It is part of what results are reused for.
    assert "found: reused" in project.upshift("run", "pipeline.py", "--on", "cluster").err
    wheel(project.folder, "tiny", "1.1", {"tiny.py": "x = 1"})
    text = (project.folder / "pipeline.py").read_text().replace("tiny-1.0", "tiny-1.1")
    project.write(text, header="")
    assert "it has tiny 1.1" in project.upshift("run", "pipeline.py", "--on", "cluster").out
    refused = project.upshift("run", "pipeline.py", "--strict", expect=2).err
    assert "asked an environment with ./tiny-1.1" in refused and "gets this environment" in refused


def test_nodes_whose_clocks_are_hours_apart_work_together(project: Project) -> None:
    python = project.folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={project.folder}/skewed exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (project.folder / "skewed").mkdir()
    (project.folder / "skewed" / "sitecustomize.py").write_text(SKEWED)
    project.write(f"""
        import os, time
        from upshift import PythonEnvironment, current, log, run_with_torchrun

        def on(nodes: str, count: int = 1) -> dict:
            return {{"environment": PythonEnvironment(python="{python}"),
                    "resources": {{"num_nodes": count}}, "slurm": {{"extra": ["--nodelist=" + nodes]}}}}

        @run_with_torchrun(nproc_per_node=1)
        @step(cache=False, settings=on("n1,n2", 2), timeout=60)
        def together() -> float:
            log(loss=1.0)
            with open(f"{project.folder}/{{os.environ['SLURMD_NODENAME']}}.time", "w") as file:
                file.write(str(time.time()))
            return time.time()

        @step(settings=on("n2"), retries=1, timeout=60)
        def after(x: float) -> int:
            latest = current.checkpoint.latest
            if latest is None:
                with current.checkpoint.save() as folder:
                    (folder / "part").write_text("1")
                raise OSError("once more")
            return 7

        @pipeline
        def example():
            return after(together())
    """)
    project.upshift("run", "pipeline.py", "--on", "cluster")
    n1, n2 = (float((project.folder / f"{node}.time").read_text()) for node in ("n1", "n2"))
    assert n2 - n1 > 14_000
    found = shown(project)
    attempts = [attempt for one in found["steps"] for attempt in one["tasks"][0]["attempts"]]
    assert [attempt["status"] for attempt in attempts] == ["completed", "failed", "completed"]
    assert all(0 < attempt["used"]["seconds"] < LONG for attempt in attempts)
    assert all(attempt["started"] <= attempt["ended"] for attempt in attempts)
    assert found["started"] <= found["ended"]
    assert attempts[0]["metrics"]["loss"]["last"] == 1.0


def test_a_plan_shows_the_very_scripts_that_its_run_submits(
    project: Project, slurm: SlurmHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "never-to-be-seen")
    project.write("""
        @step(timeout=3000, settings={"resources": ResourceSettings(cpu_count=2, memory="600MB"),
                                      "slurm": {"extra": ["--mail-user=never-to-be-seen"]}},
              secrets={"TOKEN": "env:TOKEN"})
        def shown() -> int:
            return 1

        @step(on="local")
        def here(x: int) -> int:
            return x

        @pipeline
        def example():
            return here(shown())
    """)
    text = project.upshift("plan", "pipeline.py", "--on", "cluster", "--show").out
    assert "#SBATCH --mail-user=***\n" in text and "never-to-be-seen" not in text
    assert "here on local: backend local starts tasks itself" in text
    planned = json.loads(project.upshift("plan", "pipeline.py", "--on", "cluster", "--show", "--json").out)
    (script,) = planned["steps"][0]["scripts"]
    assert script in text
    project.upshift("run", "pipeline.py", "--on", "cluster")
    run = project.upshift("runs", "--json").out
    submitted = slurm.run("scontrol", "write", "batch_script", slurm.job("shown"), "-")
    digest = re.compile(r"(?<=--job-name=shown-)\w+")
    expected = script.replace("RUN", json.loads(run)[0]["id"]).replace("***", "never-to-be-seen")
    assert digest.sub("", submitted).strip() == digest.sub("", expected).strip()
