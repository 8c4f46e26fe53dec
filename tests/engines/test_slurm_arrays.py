"""Mapped steps as arrays of a real Slurm: tasks share jobs, and each has its own end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from contract.contract_kit import PATIENCE, Ground, Watched
from slurm_here import SlurmHere, instead, slurm_here
from upshift.backends import watcher
from upshift.backends.base import Ended, Job, Started, Waiting
from upshift.engine.targets import judge, rejoin
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Failure, Hardware
from upshift.runtime.supervisor.array_element import element_in

ONE_AT_A_TIME = 5_000_000_000
"""Bytes of memory of a job that leaves no room beside it on the only node of partition ``small``."""


@pytest.fixture(scope="module", autouse=True)
def one_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runtime is unpacked once for all of these tests."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def slurm(one_home: Path, upshift_home: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmHere:
    """The shared cluster, as commands and this process find it."""
    here = slurm_here()
    monkeypatch.setenv("UPSHIFT_HOME", str(one_home))
    monkeypatch.setenv("SLURM_CONF", here.environment["SLURM_CONF"])
    return here


class Mapped:
    """The tasks of a mapped step, and how they end."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.ground = Ground("slurm", folder, options=options)
        self.watched: Watched = self.ground.open()
        self.jobs: dict[str, Job] = {}
        self.over: set[str] = set()

    def submit(self, inputs: Sequence[dict[str, Any]], *, memory: int | None = None) -> list[str]:
        """Submit a task for each of these, all at once; gives their handles."""
        granted = Hardware(memory=memory, nodes=1)
        request = ResourceSettings(memory=memory)
        jobs = [self.ground.job("in_turn", inputs=one, granted=granted, request=request) for one in inputs]
        handles = self.watched.backend.submit(jobs)
        assert all(isinstance(handle, str) for handle in handles), handles
        self.jobs.update(zip(map(str, handles), jobs, strict=True))
        return [str(handle) for handle in handles]

    def failure(self, handle: str) -> Failure | None:
        """Why a task failed, as the engine sees it; None: it completed."""
        ended = self.watched.until(Ended, handle)
        self.over.add(handle)
        task = self.jobs[handle].spec.task
        return judge(task, 1, self.ground.store.read_result(task, 1), ended).failure

    def element(self, handle: str) -> int | None:
        """The element that has run a task."""
        return element_in(self.ground.store.claimed_by(self.jobs[handle].spec.task, 1) or "")

    def index(self, handle: str) -> int | None:
        """A task's number in its step."""
        return self.jobs[handle].spec.task.index

    def running(self, handles: Sequence[str]) -> str:
        """One of these tasks that has begun, once one has."""
        deadline = time.monotonic() + PATIENCE
        while not (found := [handle for handle in handles if self.printed(handle)]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found[0]

    def printed(self, handle: str) -> str:
        """Its own log."""
        path = self.ground.store.log_path(self.jobs[handle].spec.task, 1)
        return path.read_text() if path.exists() else ""


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[Callable[..., Mapped]]:
    made: list[Mapped] = []

    def make(**options: Any) -> Mapped:
        made.append(Mapped(tmp_path / f"ground-{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.watched.backend.cancel(list(one.jobs), grace=0)
        for handle in one.jobs.keys() - one.over:
            one.watched.until(Ended, handle)
        one.ground.close()


def flag(folder: Path, name: str = "go", *, there: bool = True) -> str:
    path = folder / name
    if there:
        path.touch()
    return str(path)


def in_array(slurm: SlurmHere, one: Mapped) -> list[str]:
    """The elements that Slurm has had of the array of these tasks."""
    names = [path.stem for path in one.ground.store.root.rglob("*.array")]
    return slurm.run(
        "squeue", "--states=all", "--noheader", "--array", "--format=%i", f"--name={names[0]}"
    ).split()


def test_short_tasks_share_a_job_and_each_has_its_own_records(
    mapped: Callable[..., Mapped], slurm: SlurmHere, tmp_path: Path
) -> None:
    one, go = mapped(partition="small"), flag(tmp_path)
    handles = one.submit([{"path": go, "says": f"this is {i}"} for i in range(8)], memory=ONE_AT_A_TIME)
    assert [one.failure(handle) for handle in handles] == [None] * 8
    assert [one.printed(handle) for handle in handles] == [f"this is {i}\n" for i in range(8)]
    assert len({id.partition("_")[0] for id in in_array(slurm, one)}) == 1
    # No more than one runs at a time: the first has run more than its own, and others were not needed.
    assert len({one.element(handle) for handle in handles}) < 8
    assert {one.watched.until(Started, handle).node for handle in handles} == {f"{slurm.prefix}1"}


def test_a_task_that_dies_in_a_shared_job_takes_no_other_one_with_it(
    mapped: Callable[..., Mapped], tmp_path: Path
) -> None:
    one, go = mapped(partition="small"), flag(tmp_path)
    inputs = [{"path": go, "says": str(i), "ends": "dies" if i in (2, 5) else ""} for i in range(8)]
    handles = one.submit(inputs, memory=ONE_AT_A_TIME)
    failures = {i: one.failure(handle) for i, handle in enumerate(handles)}
    assert [i for i, failure in failures.items() if failure is not None] == [2, 5], failures
    assert [one.printed(handle) for handle in handles] == [f"{i}\n" for i in range(8)]


def test_what_somebody_does_to_an_element_happens_to_the_task_that_it_runs(
    mapped: Callable[..., Mapped], slurm: SlurmHere, tmp_path: Path
) -> None:
    one = mapped(partition="small")
    first, others = first_and_others(one, tmp_path)
    assert one.failure(first) is None
    running = one.running(others)
    slurm.run("scancel", f"{base(slurm, one)}_{one.element(running)}")
    failure = one.failure(running)
    assert failure is not None and failure.reason == "cancelled"
    assert "somebody cancelled the job" in failure.message
    flag(tmp_path, "later")
    assert [one.failure(handle) for handle in others if handle != running] == [None, None]


def test_a_task_is_cancelled_and_no_other_one_of_its_job_or_array(
    mapped: Callable[..., Mapped], tmp_path: Path
) -> None:
    one = mapped(partition="small")
    first, others = first_and_others(one, tmp_path)
    assert one.failure(first) is None
    running = one.running(others)
    waiting, last = (handle for handle in others if handle != running)
    one.watched.cancel(waiting, grace=10)
    assert (failure := one.failure(waiting)) is not None and failure.reason == "cancelled"
    assert one.printed(waiting) == "" and one.element(waiting) is None  # and never begins
    one.watched.cancel(running, grace=10)
    assert (failure := one.failure(running)) is not None and failure.reason == "cancelled"
    assert one.element(running) is not None
    flag(tmp_path, "later")
    assert one.failure(last) is None


def test_another_engine_finds_tasks_in_their_array_wherever_they_run(
    mapped: Callable[..., Mapped], slurm: SlurmHere, tmp_path: Path
) -> None:
    one = mapped(partition="small")
    first, others = first_and_others(one, tmp_path)
    assert one.failure(first) is None
    running = one.running(others)
    one.watched.backend.close()
    before = set(in_array(slurm, one))
    one.watched = one.ground.open()
    jobs = [(one.jobs[handle], None) for handle in (first, *others)]
    ends = rejoin(one.watched.backend, jobs, one.ground.store)
    assert [handle for handle, _ in ends][1:] == others and [end for _, end in ends][1:] == [None] * 3
    one.watched.cancel(running, grace=10)
    assert (failure := one.failure(running)) is not None and failure.reason == "cancelled"
    flag(tmp_path, "later")
    assert [one.failure(handle) for handle in others if handle != running] == [None, None]
    assert set(in_array(slurm, one)) <= before


def test_a_limit_on_submitted_jobs_is_waited_out_and_explained(
    mapped: Callable[..., Mapped], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead(
        "sbatch",
        """
        most = 3  # elements in the queue at a time, as a site's MaxSubmitJobs would have it
        script = sys.stdin.read()
        array = re.search(r"--array=(\\S+)", script)
        asked = sum(
            int(last or first) - int(first) + 1
            for first, last in (re.findall(r"(\\d+)(?:-(\\d+))?", array[1]) if array else [("0", "0")])
        )
        listed = subprocess.check_output(["squeue", "--me", "--noheader", "--array", "-o%P"], text=True)
        if asked + listed.split().count("long") > most and "--test-only" not in sys.argv:
            print("sbatch: error: QOSMaxSubmitJobPerUserLimit", file=sys.stderr)
            sys.exit("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
                     "(job submit limit, user's size and/or time limits)")
        sys.exit(subprocess.run([real, *sys.argv[1:]], input=script, text=True).returncode)
        """,
        tmp_path,
        monkeypatch,
    )
    one = mapped(partition="long")
    go = flag(tmp_path, there=False)
    handles = one.submit([{"path": go, "says": str(i)} for i in range(8)])
    assert "takes no more jobs for now" in one.watched.until(Waiting, handles[-1]).why
    flag(tmp_path)
    assert [one.failure(handle) for handle in handles] == [None] * 8
    assert len(list(one.ground.store.root.rglob("*.array"))) > 1


def test_slurm_is_asked_as_seldom_for_many_tasks_as_for_one(
    mapped: Callable[..., Mapped], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    instead(
        "squeue",
        f"""
        with open({str(asked)!r}, "a") as file:
            file.write("once\\n")
        os.execv(real, [real, *sys.argv[1:]])
        """,
        tmp_path,
        monkeypatch,
    )
    began = time.monotonic()
    one, go = mapped(), flag(tmp_path)
    handles = one.submit([{"path": go, "says": str(i), "ends": "dies"} for i in range(20)])
    assert all(one.failure(handle) is not None for handle in handles)
    one.watched.backend.close()
    most = watcher.BURST + (time.monotonic() - began) / watcher.ASK
    assert 0 < len(asked.read_text().splitlines()) <= most


def first_and_others(one: Mapped, folder: Path) -> tuple[str, list[str]]:
    """Tasks of which one runs at a time: the first ends at once, the others once ``later`` is there."""
    later = flag(folder, "later", there=False)
    inputs = [{"path": flag(folder), "says": "first"}, *({"path": later, "says": "later"},) * 3]
    first, *others = one.submit(inputs, memory=ONE_AT_A_TIME)
    return first, others


def base(slurm: SlurmHere, one: Mapped) -> str:
    return in_array(slurm, one)[0].partition("_")[0]
