"""Steps on several nodes of a real Slurm: one job, a supervisor on each node, and one result."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import upshift
from buckets import BucketHere
from project import Project
from slurm_here import SlurmHere, slurm_here, slurm_of_its_own

LONG = 120.0
"""Seconds after which what was promised is not believed in any more."""

TARGET = '[targets.cluster]\nbackend = "slurm"\n'

HEAD = """\
import json, os, time
from upshift import FlowSpec, ResourceSettings, current, parallel, pipeline, step
from upshift import run_with_accelerate, run_with_torchrun
"""

MEETING = """
@run_with_torchrun(nproc_per_node=2)
@step(secrets={"TOKEN": "env:MY_TOKEN"}, settings={"resources": {"num_nodes": 2, "memory": "300MB"}})
def train() -> list:
    print("this is", current.rank, "with", os.environ["TOKEN"])
    upshift = [name for name in os.environ if name.startswith("UPSHIFT_NODE") or name == "UPSHIFT_ORDER"]
    return [current.world_size, os.environ["SLURM_JOB_ID"], upshift]

@pipeline
def example():
    return train()
"""

REDUCING = """
import torch

@run_with_torchrun(nproc_per_node=1, nnodes=2)
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
class Training(FlowSpec):
    @step
    def start(self):
        self.next(self.train, num_parallel=2)

    @parallel
    @step
    def train(self):
        self.place = [current.parallel.node_index, os.environ["SLURMD_NODENAME"]]
        self.next(self.join)

    @step
    def join(self, inputs):
        self.places = [one.place for one in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass
"""

WAITING = """
@run_with_torchrun(nproc_per_node=1, nnodes=2)
@step(cache=False, grace=5)
def train(folder: str) -> list:
    with open(f"{folder}/told", "w") as told:
        where = (os.environ["SLURMD_NODENAME"], os.getppid(), os.environ["SLURM_JOB_ID"])
        told.write(json.dumps([current.rank, *where]) + "\\n")
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.05)
    return [os.environ["SLURM_JOB_ID"], current.world_size]

@pipeline
def example(folder: str):
    return train(folder)
"""


ELASTIC = """
@run_with_torchrun(nproc_per_node=1)
@step(cache=False, grace=5, retries=1, settings={"resources": ResourceSettings(num_nodes=(2, 4))})
def train(folder: str) -> list:
    if current.attempt == 1:
        with current.checkpoint.save() as saved:
            (saved / f"rank{current.rank}").write_text(os.environ["SLURMD_NODENAME"])
        with open(f"{folder}/told", "w") as told:
            where = (os.environ["SLURMD_NODENAME"], os.getppid(), os.environ["SLURM_JOB_ID"])
            told.write(json.dumps([current.rank, *where]) + "\\n")
        time.sleep(1000)
    print("continues as", current.rank, "of", current.world_size)
    return sorted(file.read_text() for file in current.checkpoint.latest.iterdir())

@pipeline
def example(folder: str):
    return train(folder)
"""


@pytest.fixture(scope="module")
def one_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runtime is unpacked once for all of these tests."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def slurm(one_home: Path, upshift_home: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmHere:
    """The shared cluster, as commands and this process find it."""
    here = slurm_here()
    monkeypatch.setenv("UPSHIFT_HOME", str(one_home))
    monkeypatch.setenv("SLURM_CONF", here.environment["SLURM_CONF"])
    return here


@pytest.fixture
def project(slurm: SlurmHere, one_home: Path, tmp_path: Path) -> Project:
    made = Project(tmp_path / "project", one_home)
    made.write(TARGET, "upshift.toml", header="")
    return made


def run(project: Project, code: str, *args: str, expect: int = 0) -> str:
    project.write(code, header=HEAD)
    return project.upshift("run", "pipeline.py", "--on", "cluster", *args, expect=expect).text


def nodes_of(slurm: SlurmHere, job: str) -> list[str]:
    """The names of a job's nodes."""
    listed = slurm.run("squeue", "--states=all", "--noheader", "--format=%N", f"--jobs={job}")
    return slurm.run("scontrol", "show", "hostnames", listed).split()


def test_a_step_on_two_nodes_is_one_job_with_one_result_and_a_log_of_each_rank(
    project: Project, slurm: SlurmHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "sesame-open")
    assert "started, 4 processes on 2 nodes" in run(project, MEETING)
    size, job, variables = upshift.get_run("latest").output
    assert (size, variables) == (4, [])
    assert job == slurm.job("train")
    shown = slurm.run("scontrol", "--oneliner", "show", "job", job)
    assert "NumNodes=2" in shown and "MinMemoryNode=287M" in shown
    for rank in range(4):
        said = project.upshift("logs", "latest", "train", "--rank", str(rank)).out
        assert said == f"this is {rank} with ***\n"
    attempt = project.attempt("train")
    assert [attempt[record]["nodes"] for record in ("asked", "granted", "seen", "used")] == [2, 2, 2, 2]
    hosts = {one["host"] for record in ("granted", "seen", "used") for one in attempt[record]["by_node"]}
    assert len(hosts) == 2 and hosts == set(nodes_of(slurm, job))
    for file in (project.home / "store").rglob("*"):
        assert not file.is_file() or b"sesame-open" not in file.read_bytes(), file


def test_ranks_of_torch_and_accelerate_reduce_over_two_nodes(project: Project) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    run(project, REDUCING)
    assert upshift.get_run("latest").output == (3.0, 3.0)


def test_a_flow_has_a_process_on_each_node_and_joins_what_they_set(
    project: Project, slurm: SlurmHere
) -> None:
    run(project, TRAINING)
    places = upshift.get_run("latest").output.places
    assert [index for index, _ in places] == [0, 1]
    assert [node for _, node in places] == nodes_of(slurm, slurm.job("train"))


def test_more_nodes_than_the_partition_has_are_refused(project: Project) -> None:
    code = MEETING.replace('"num_nodes": 2', '"num_nodes": 4').replace('"env:MY_TOKEN"', '"env:PATH"')
    said = run(project, code, expect=2)
    assert "asked 4 nodes, gets 3: partition 'main' has no more nodes" in said
    project.write(
        '[targets.cluster]\nbackend = "slurm"\noptions = {partition = "small"}\n', "upshift.toml", header=""
    )
    assert "asked 4 nodes, gets 1: partition 'small'" in run(project, code, expect=2)


class Waiting:
    """A run of two ranks that wait for a file, and where they are."""

    def __init__(
        self, folder: Path, home: Path, slurm: SlurmHere, code: str = WAITING, ranks: int = 2
    ) -> None:
        self.project = Project(folder, home)
        self.project.write(TARGET, "upshift.toml", header="")
        self.project.write(code, header=HEAD)
        self._count = ranks
        self.ranks: dict[int, tuple[str, int]] = {}
        told = self.project.fifo("told")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
            patch.setenv("UPSHIFT_NODES_SILENCE", "2")
            options = ("--on", "cluster", "--param", f"folder={folder}")
            self.engine = self.project.start("run", "pipeline.py", *options)
        try:
            self._hear(told)
        except BaseException:
            self.close()
            raise

    def _hear(self, told: Path) -> None:
        # Open for writing, too: what the second rank says is not cut off by the first one's end.
        with open(os.open(told, os.O_RDWR), "rb", buffering=0) as pipe:
            while len(self.ranks) < self._count:
                assert select.select([pipe], [], [], LONG)[0], "not all ranks are there"
                for line in os.read(pipe.fileno(), 4096).splitlines():
                    rank, node, supervisor, self.job = json.loads(line)
                    self.ranks[rank] = (node, supervisor)

    @property
    def supervisors(self) -> list[int]:
        return [supervisor for _, supervisor in self.ranks.values()]

    def let_go(self) -> None:
        (self.project.folder / "go").touch()

    def end(self, expect: int) -> str:
        out, err = self.engine.communicate(timeout=LONG)
        assert self.engine.returncode == expect, out + err
        return out + err

    def close(self) -> None:
        self.let_go()
        if self.engine.stdout is not None and not self.engine.stdout.closed:  # nobody waited for its end
            self.engine.kill()
            self.engine.communicate()


@pytest.fixture
def waiting(slurm: SlurmHere, one_home: Path, tmp_path: Path) -> Iterator[Waiting]:
    made = Waiting(tmp_path / "project", one_home, slurm)
    yield made
    made.close()


@pytest.fixture(scope="module")
def own_slurm() -> Iterator[SlurmHere]:
    """A cluster whose nodes tests take away."""
    with slurm_of_its_own() as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def slow(
    one_home: Path, own_slurm: SlurmHere, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Waiting]]:
    """Runs whose end takes half a minute; the other tests go on meanwhile."""
    folder = tmp_path_factory.mktemp("slow")
    made: dict[str, Waiting] = {}
    try:
        for name in ("first", "further", "limit"):
            made[name] = Waiting(folder / name, one_home, own_slurm)
        os.kill(made["first"].ranks[0][1], signal.SIGKILL)
        os.kill(made["further"].ranks[1][1], signal.SIGSTOP)
        # In place of a minute, the least that Slurm knows.
        own_slurm.run("scontrol", "update", f"JobId={made['limit'].job}", "EndTime=now+2")
        yield made
    finally:
        for one in made.values():
            one.close()


def until_left(pids: Iterable[int]) -> None:
    """Wait for processes of others to end."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            assert select.select([descriptor], [], [], LONG)[0], f"{pid} still runs"
            os.close(descriptor)


def test_cancelling_reaches_all_nodes(waiting: Waiting) -> None:
    waiting.engine.send_signal(signal.SIGINT)
    waiting.end(130)
    until_left(waiting.supervisors)
    assert waiting.project.attempt("train")["reason"] == "cancelled"


def test_a_supervisor_of_a_further_node_that_dies_ends_the_step_and_is_named(
    waiting: Waiting, slurm: SlurmHere
) -> None:
    node, supervisor = waiting.ranks[1]
    os.kill(supervisor, signal.SIGKILL)
    assert f"node 1 ({node}) is gone: it has closed the connection" in waiting.end(1)
    assert waiting.project.attempt("train")["reason"] == "infrastructure"
    until_left([waiting.ranks[0][1]])


def test_an_engine_that_was_killed_finds_the_job_of_all_nodes_again(
    waiting: Waiting, slurm: SlurmHere
) -> None:
    waiting.engine.kill()
    waiting.engine.communicate()
    waiting.engine = waiting.project.start("resume", "latest")
    waiting.let_go()
    waiting.end(0)
    assert upshift.get_run("latest").output == [waiting.job, 2]
    assert slurm.job("train") == waiting.job


def test_a_further_node_that_falls_silent_ends_the_step_and_is_named(slow: dict[str, Waiting]) -> None:
    run = slow["further"]
    lost = f"(infrastructure): node 1 ({run.ranks[1][0]}) is gone: nothing has come from it for"
    assert lost in run.end(1)
    until_left(run.supervisors)


def test_a_first_node_that_dies_is_named_by_another(slow: dict[str, Waiting]) -> None:
    run = slow["first"]
    lost = f"(infrastructure): node 0 ({run.ranks[0][0]}) is gone: it has closed the connection"
    assert lost in run.end(1)
    until_left(run.supervisors)


def test_a_time_limit_of_several_nodes_is_a_timeout(slow: dict[str, Waiting]) -> None:
    assert "(timeout): the job reached its time limit" in slow["limit"].end(1)


@pytest.fixture
def home_with_bucket(bucket: BucketHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of an engine whose store is in a bucket; each node of its cluster has a folder of its own."""
    monkeypatch.setenv("UPSHIFT_STORE", f"{bucket.address}/team")
    monkeypatch.setenv("UPSHIFT_NODE_HOME", f"{tmp_path}/$SLURMD_NODENAME")
    return tmp_path / "home"


@pytest.mark.parametrize(("home", "rank"), [("one_home", 0), ("home_with_bucket", 2)])
def test_a_step_that_will_do_with_fewer_nodes_continues_from_its_checkpoint_without_the_one_that_is_lost(
    home: str, rank: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with slurm_of_its_own() as slurm:  # a node that is turned on again takes no job for more than a minute
        run = Waiting(tmp_path / "project", request.getfixturevalue(home), slurm, ELASTIC, ranks=3)
        try:
            node = run.ranks[rank][0]
            slurm.turn_off(node)
            said = run.end(0)
        finally:
            run.close()
    # Without node 0, Slurm may be faster to say that some node is lost than another node to say which.
    assert rank == 0 or f"with 2 nodes, other nodes than {node}" in said
    first, last = run.project.tasks("train")[0]["attempts"]
    assert (first["asked"]["nodes"], first["asked"]["least_nodes"]) == (4, 2)
    assert [first["granted"]["nodes"], last["granted"]["nodes"], last["seen"]["nodes"]] == [3, 2, 2]
    assert first["reason"] == "infrastructure"
    left = {one["host"] for one in last["seen"]["ranks"]}
    assert len(left) == 2 and node not in left
    # All ranks of the first attempt had saved.
    value = run.project.python("-c", "import upshift; print(*upshift.get_run('latest').output)").out
    assert value.split() == sorted({node, *left})
    assert "continues as 1 of 2" in run.project.upshift("logs", "latest", "train").out


def test_a_node_that_slurm_takes_away_ends_the_step(
    own_slurm: SlurmHere, one_home: Path, tmp_path: Path
) -> None:
    run = Waiting(tmp_path / "project", one_home, own_slurm)
    try:
        own_slurm.run("scontrol", "update", f"NodeName={run.ranks[1][0]}", "State=DOWN", "Reason=test")
        assert "(infrastructure): one of its nodes failed on m" in run.end(1)
    finally:
        run.close()
