"""A store in a folder that machines share by NFS, each with what its client believes for up to a minute."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable, Iterator

import attrs
import pytest

from nfs import Shared
from upshift.engine.targets import LogReader
from upshift.errors import BlobMissing, LeaseLost, RunOwned
from upshift.model.spec import Code, EntryPoint, TaskId, TaskResult, TaskSpec
from upshift.runs import lease as leases_of_runs
from upshift.runs.lease import Lease, ask_to_cancel
from upshift.runtime.loop import Loop
from upshift.runtime.storage.claims import release_all
from upshift.runtime.storage.live import name_of
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.supervisor.logs import LogFile, Losses

TASK = TaskId(run="r1", step="train", index=3)
RESULT = TaskResult(task=TASK, attempt=1, status="completed", outputs={}, started=1.5, ended=2.5)


@attrs.frozen
class Machines:
    """The store as an engine has it on one machine, and a worker on another."""

    engine: Store
    worker: Store


@pytest.fixture
def machines(shared_folder: Callable[..., Shared]) -> Iterator[Machines]:
    shared = shared_folder()
    yield Machines(open_store(str(shared.other / "store")), open_store(str(shared.folder / "store")))
    release_all()


def test_a_client_believes_what_it_has_looked_up(shared_folder: Callable[..., Shared]) -> None:
    """Else the other tests would prove nothing."""
    shared = shared_folder()
    assert not (shared.other / "file").exists()
    with open(shared.folder / "file", "w") as file:
        file.write("a")
        file.flush()
        assert not (shared.other / "file").exists()
        assert os.listdir(shared.other) == ["file"]  # which opens the folder
        assert (shared.other / "file").read_bytes() == b""
    assert (shared.other / "file").stat().st_size == 0
    with open(shared.other / "file") as old:
        assert old.read() == "a"
        (shared.folder / "new").write_text("b")
        (shared.folder / "new").rename(shared.folder / "file")
        with pytest.raises(OSError, match="Stale file handle"):
            os.fstat(os.open(f"/proc/self/fd/{old.fileno()}", os.O_RDONLY))


def test_what_was_not_there_is_seen_as_soon_as_it_is(machines: Machines) -> None:
    engine, worker = machines.engine, machines.worker
    name = name_of(TASK, 1)
    engine.write_spec(_spec(engine))
    log = LogReader(engine.log_path(TASK, 1))
    shown: list[str] = []
    log.read(shown.append)
    assert engine.read_result(TASK, 1) is None
    assert engine.claimed_by(TASK, 1) is None
    assert worker.read_stop(TASK, 1) is None
    assert not engine.has_spec(TASK, 2)
    assert engine.names_beside("runs/r1/tasks/next/0.1.spec.json") == []
    assert [*engine.live.hear("r1", [name])] == []
    assert engine.claim_run("r1")

    assert worker.claim_attempt(TASK, 1, by="a supervisor")
    worker.live.say(TASK, 1, {"node": "n1"})
    worker.log_path(TASK, 1).write_text("it begins\n")
    worker.create_result(RESULT)
    worker.write_spec(_spec(worker, attempt=2))
    worker.write_spec(_spec(worker, task=TaskId(run="r1", step="next")))
    engine.write_stop(TASK, 1, "SIGUSR1")

    assert engine.read_result(TASK, 1) == RESULT
    assert engine.claimed_by(TASK, 1) == "a supervisor"
    assert worker.read_stop(TASK, 1) == "SIGUSR1"
    assert engine.has_spec(TASK, 2)
    assert engine.names_beside("runs/r1/tasks/next/0.1.spec.json") == ["0.1.spec.json"]
    assert [*engine.live.hear("r1", [name])] == [(name, {"node": "n1"})]
    log.read(shown.append)
    assert shown == ["it begins\n"]
    worker.write_record("r1", "removed.json", b"{}")
    assert not engine.claim_run("r1")


def test_what_was_replaced_is_read_whole(machines: Machines) -> None:
    engine, worker = machines.engine, machines.worker
    name = name_of(TASK, 1)
    for number in range(50):
        said = {"node": "n1", "log": number, "noticed": ["x" * (number % 7) * 1000]}
        worker.live.say(TASK, 1, said)
        assert [*engine.live.hear("r1", [name])] == [(name, said)]
        worker.write_record("r1", "run.json", json.dumps(said).encode())
        assert json.loads(engine.read_record("r1", "run.json") or b"") == said


def test_nothing_is_torn_while_it_is_replaced(machines: Machines) -> None:
    done = threading.Event()

    def write() -> None:
        for number in range(200):
            machines.worker.write_record("r1", "run.json", json.dumps([number] * 2000).encode())
        done.set()

    machines.worker.write_record("r1", "run.json", b"[0]")
    writer = threading.Thread(target=write)
    before = random.getstate()
    writer.start()
    try:
        while not done.is_set():
            assert len({*json.loads(machines.engine.read_record("r1", "run.json") or b"")}) == 1
    finally:
        writer.join()
    assert random.getstate() == before  # which may be that of a step that has seeded


def test_a_value_that_was_missed_is_found_when_it_was_made_again(machines: Machines) -> None:
    digest, _ = Store.put(machines.worker, b"content" * 100)
    os.unlink(machines.worker.blob_path(digest))
    assert not machines.engine.find(digest)
    with pytest.raises(BlobMissing):
        machines.engine.check(digest)
    machines.worker.put(b"content" * 100)
    assert machines.engine.find(digest)
    assert bytes(machines.engine.read(digest)) == b"content" * 100


@pytest.mark.parametrize("first", ["engine", "worker"])
def test_one_of_two_machines_has_an_attempt(machines: Machines, first: str) -> None:
    both = {"engine": machines.engine, "worker": machines.worker}
    assert [store.claimed_by(TASK, 1) for store in both.values()] == [None, None]
    assert both.pop(first).claim_attempt(TASK, 1, by=first)
    assert not both.popitem()[1].claim_attempt(TASK, 1, by="the other")
    assert machines.engine.claimed_by(TASK, 1) == machines.worker.claimed_by(TASK, 1) == first


def test_a_request_that_was_sent_twice_is_done_once(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the answer to the first one was lost."""
    link, rename = os.link, os.rename

    def twice(call: Callable[[str, str], None]) -> Callable[[str, str], None]:
        return lambda source, destination: (call(source, destination), call(source, destination))[0]

    monkeypatch.setattr(os, "link", twice(link))
    monkeypatch.setattr(os, "rename", twice(rename))
    assert machines.worker.claim_attempt(TASK, 1, by="a supervisor")
    machines.worker.write_record("r1", "run.json", b"[0]")
    digest, _ = machines.worker.put(b"content")
    monkeypatch.undo()
    assert not machines.engine.claim_attempt(TASK, 1, by="an engine")
    assert machines.engine.read_record("r1", "run.json") == b"[0]"
    machines.engine.check(digest)


def test_what_a_step_prints_is_seen_while_its_log_is_open(machines: Machines) -> None:
    machines.worker.write_spec(_spec(machines.worker))
    path = machines.worker.log_path(TASK, 1)
    log = LogFile(Loop(), path, lambda size: None, Losses(0.0, print).of("log", path))
    reader, shown = LogReader(machines.engine.log_path(TASK, 1)), list[str]()
    for line in ("one\n", "two\n"):
        log.append(line.encode())
        reader.read(shown.append)
        assert line not in shown  # the client has it, and nobody else
        log.hand_on()
        reader.read(shown.append)
        assert shown[-1] == line
    log.close()


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "nolock"])
def test_one_engine_owns_a_run_wherever_it_is(
    shared_folder: Callable[..., Shared], locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = shared_folder(locks=locks)
    here, there = str(shared.folder / "store"), str(shared.other / "store")
    own = Lease("r1", here)
    beats: list[float] = []

    def sleep(seconds: float) -> None:
        own.renew()
        beats.append(seconds)

    patient = leases_of_runs.Time(monotonic=lambda: float(len(beats)), sleep=sleep)
    monkeypatch.setattr(leases_of_runs, "boot_id", lambda: "another boot")
    monkeypatch.setattr(leases_of_runs, "machine_id", lambda: "another machine")
    with pytest.raises(RunOwned, match="another engine owns run r1"):
        Lease("r1", there, time=patient)
    assert own.cancel_asked is False
    ask_to_cancel("r1", there)
    assert own.cancel_asked is True
    own.release()
    with Lease("r1", there, time=patient) as later:
        monkeypatch.undo()
        assert leases_of_runs.held("r1", here)
        later.renew()


def test_an_engine_stops_as_soon_as_another_machine_has_its_run(
    shared_folder: Callable[..., Shared], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = shared_folder(locks=False)
    own = Lease("r1", str(shared.folder / "store"))
    silent = leases_of_runs.Time(monotonic=iter(range(0, 10_000, 20)).__next__, sleep=lambda seconds: None)
    monkeypatch.setattr(leases_of_runs, "boot_id", lambda: "another boot")
    monkeypatch.setattr(leases_of_runs, "machine_id", lambda: "another machine")
    other = Lease("r1", str(shared.other / "store"), time=silent)
    with pytest.raises(LeaseLost, match="does not own run r1 any more"):
        own.renew()
    own.release()
    other.release()


def _spec(store: Store, *, task: TaskId = TASK, attempt: int = 1) -> TaskSpec:
    return TaskSpec(
        task=task,
        attempt=attempt,
        pipeline="training",
        entry=EntryPoint(module="m", qualname="f"),
        code=Code(project="/p"),
        store=store.address,
    )
