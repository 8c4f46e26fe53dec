"""What is heard of jobs whose scheduler falls silent, and of results that a shared folder shows late."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from upshift.backends import watcher
from upshift.backends.base import Ask, Ended, Finding, Job, Noticed, Offer, Started
from upshift.backends.cluster import ClusterBackend
from upshift.backends.scheduler import Launch, NotNow, Reach, State
from upshift.model.spec import Code, EntryPoint, Hardware, TaskId, TaskResult, TaskSpec
from upshift.runtime.storage.store import Store, open_store

TASK = TaskId(run="r", step="train")
PATIENCE = 30.0


class Scripted:
    """A scheduler that says what it is told to."""

    title = "Sched"
    seat: Mapping[str, str] = {}
    noise = re.compile("(?!)")
    signals = True

    def __init__(self) -> None:
        self.state = State(phase="running")
        self.away = False
        self.asked = threading.Semaphore(0)

    def offer(self, ask: Ask, settings: Mapping[str, Any]) -> Offer:
        return Offer()

    def findings(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        return iter(())

    def render(self, launch: Launch) -> str:
        return ""

    def submit(self, script: str, environment: Mapping[str, str]) -> str:
        return "1"

    def states(self, ids: Collection[str]) -> Mapping[str, State]:
        self.asked.release()
        if self.away:
            raise NotNow("Sched does not answer: it is away.")
        return dict.fromkeys(ids, self.state)

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        return {}

    def stop(self, ids: Collection[str], *, grace: bool, kill: bool = False) -> None:
        pass

    def words(self, id: str) -> str | None:
        return None


class Backend(ClusterBackend):
    """Its nodes need nothing of this machine."""

    def reach(self, spec: TaskSpec) -> Reach:
        return Reach(bootstrap=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def events() -> Queue[Any]:
    return Queue()


@pytest.fixture
def cluster(store: Store, events: Queue[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    """A cluster that has started a job."""
    monkeypatch.setattr(watcher, "ASK", 0.02)
    monkeypatch.setattr(watcher, "SILENCE", 0.1)
    spec = TaskSpec(
        task=TASK,
        attempt=1,
        pipeline="p",
        entry=EntryPoint(module="m", qualname="train"),
        code=Code(project="/p"),
        runtime="sha256:" + "0" * 64,
        store=store.address,
        granted=Hardware(nodes=1),
    )
    store.write_spec(spec)
    scripted = Scripted()
    backend = Backend(scripted, name="sched", store=store.address, sink=events.put, options={})
    backend.submit([Job(spec=spec, spec_path=store.spec_path(TASK, 1))])
    store.live.say(TASK, 1, {"node": "n1"})
    assert isinstance(events.get(timeout=PATIENCE), Started)
    yield scripted
    backend.close()


def answers(cluster: Scripted, count: int) -> None:
    """Wait until the scheduler was asked so many times more."""
    while cluster.asked.acquire(blocking=False):
        pass
    for _ in range(count):
        assert cluster.asked.acquire(timeout=PATIENCE)


def test_a_scheduler_that_falls_silent_is_told_once_and_so_is_its_answer(
    cluster: Scripted, events: Queue[Any]
) -> None:
    for _ in range(2):
        cluster.away = True
        silent = events.get(timeout=PATIENCE)
        assert isinstance(silent, Noticed)
        said = r"since \d\d:\d\d:\d\d, Sched does not answer: it is away\. Running steps continue"
        assert re.fullmatch(said, silent.text), silent.text
        answers(cluster, 5)
        cluster.away = False
        again = events.get(timeout=PATIENCE)
        assert re.fullmatch(r"Sched answers again, after \d+ s", again.text), again.text
    answers(cluster, 5)
    assert events.empty()


def test_a_scheduler_that_misses_one_question_is_not_worth_a_word(
    cluster: Scripted, events: Queue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SILENCE", 1000.0)
    cluster.away = True
    answers(cluster, 3)
    cluster.away = False
    answers(cluster, 3)
    assert events.empty()


@pytest.mark.parametrize("reason", [None, "infrastructure"])
def test_a_result_that_a_shared_folder_shows_late_counts_though_the_job_has_ended_long_ago(
    reason: str | None,
    cluster: Scripted,
    store: Store,
    events: Queue[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = threading.Semaphore(0)
    read: Callable[..., TaskResult | None] = Store.read_result

    def read_result(self: Store, task: TaskId, attempt: int) -> TaskResult | None:
        looked.release()
        return read(self, task, attempt)

    monkeypatch.setattr(Store, "read_result", read_result)
    cluster.state = State(phase="ended", reason=reason, message="it is said to have failed")
    for _ in range(3):
        assert looked.acquire(timeout=PATIENCE)
    assert events.empty()
    result = TaskResult(task=TASK, attempt=1, status="completed", started=1.0, ended=2.0)
    assert store.create_result(result)
    ended = events.get(timeout=PATIENCE)
    assert isinstance(ended, Ended) and ended.reason == reason
    assert store.read_result(TASK, 1) == result
