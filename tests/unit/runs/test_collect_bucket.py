"""``gc`` of a store in a bucket beside runs of other machines that begin and end at any of its requests."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from machines import TASKS, Bucket, Machine, a_run

from upshift.errors import StoreError, StoreUnavailable, UsageError
from upshift.model.spec import TaskId, to_json
from upshift.runs import publishing
from upshift.runs.bucket_lease import BucketLease
from upshift.runs.bucket_survey import DAY
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import forget_removed
from upshift.runs.catalog.rebuild import Ending, rebuild
from upshift.runs.catalog.rows import RunRow, TaskRow
from upshift.runs.checking import check_store
from upshift.runs.collect import Collected
from upshift.runs.collect_bucket import GC, collect_bucket
from upshift.runs.copying import copy_store
from upshift.runs.lease import Lease, Time
from upshift.runs.needed import write_export
from upshift.runs.publishing import Publisher
from upshift.runtime.storage import claims, replica
from upshift.runtime.storage.claims import CONDEMNED, IDLE, REMOVING, GcState, read_state, write_state
from upshift.runtime.storage.digest import digest_of
from upshift.runtime.storage.objects.folder import FolderObjects
from upshift.runtime.storage.replica import blob_key

Make = Callable[[str], Machine]


class Killed(Exception):
    """A process ends here."""


@pytest.fixture(autouse=True)
def looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Content is put only if the bucket does not have it, however small it is."""
    monkeypatch.setattr(publishing, "_LOOKED_FOR", 1)
    monkeypatch.setattr(replica, "_LOOKED_FOR", 1)


@attrs.define
class Engine:
    """A run ``r2`` that needs what ``r1`` has made: its results if it can reuse them, or the same content."""

    machine: Machine
    catalog: Catalog
    lease: Lease | None = None
    reuses: bool = False

    def begin(self) -> None:
        store = self.machine.store
        self.lease = Lease("r2", store.address)
        forget_removed(self.catalog, store)
        self.reuses = "r1" in self.catalog.ids_of(store.address)[0]

    def work(self) -> None:
        """Publish what the run has made."""
        assert self.lease is not None
        store = self.machine.store
        if self.reuses:
            origins = [TaskId(run="r1", step="train", index=index) for index in range(TASKS)]
            rows = tuple(
                TaskRow(
                    task=attrs.evolve(task, run="r2"),
                    status="completed",
                    key="k",
                    origin=(task.run, task.step, task.index, 1),
                )
                for task in origins
            )
            store.write_record("r2", "graph.json", b"{}")
            store.write_record("r2", "tasks.json", to_json(Ending(tasks=rows)))
            row = RunRow(
                id="r2", pipeline="p", status="completed", target="local", store=store.address, started=2.0,
                user="ada", tags=(), source={}, params={},
            )  # fmt: skip
            store.write_record("r2", "run.json", to_json(row))
        else:
            a_run(store, "r2", content="r1")
        publisher = Publisher(store, "r2", self.lease, lambda line: None)
        publisher.begin(known=False)
        publisher.finish()

    def end(self) -> None:
        assert self.lease is not None
        self.lease.release()


@pytest.fixture
def catalogs(tmp_path: Path) -> Iterator[Callable[[Machine], Catalog]]:
    """The catalog of a machine, filled from its store."""
    made = []

    def make(machine: Machine) -> Catalog:
        catalog = Catalog(Path(machine.store.address).with_suffix(".db"))
        made.append(catalog)
        rebuild(catalog, [machine.store])
        return catalog

    yield make
    for catalog in made:
        catalog.close()


def whole(bucket: Bucket, machine: Machine) -> None:
    """All that the bucket's runs name is there, also results of runs that were removed."""
    assert check_store(FolderObjects(bucket.root)).problems == []
    machine.store.bring_run("r2")
    ending = json.loads(machine.store.read_record("r2", "tasks.json") or b"")
    origins = [row["origin"] for row in ending["tasks"] if row.get("origin")]
    run = "r1" if origins else "r2"
    machine.store.bring_run(run)
    results = list(machine.store.results(run))
    assert len(results) == TASKS
    for result in results:
        machine.store.read(result.outputs["output"].digest)


def keys(bucket: Bucket, prefix: str = "") -> list[str]:
    return [meta.key for meta in FolderObjects(bucket.root).list(prefix)]


def count(collected: Collected) -> dict[str, int]:
    return {kind: number for kind, (number, _) in collected.removed.by_kind().items()}


def test_a_removed_run_takes_its_content_along_and_other_machines_forget_it(
    machine: Make, catalogs: Callable[[Machine], Catalog]
) -> None:
    here, there = machine("here"), machine("there")
    for run in ("r1", "r2"):
        a_run(here.store, run)
        here.publish(run)
    known = catalogs(there)
    foretold = collect_bucket(here.store, catalogs(here), forget=["r1"], dry_run=True)
    assert count(foretold) == {"runs": 1, "values": TASKS}
    assert len(keys(here.bucket, "blobs/")) == 2 * TASKS
    done = collect_bucket(here.store, catalogs(here), forget=["r1"])
    assert done.removed.by_kind() == foretold.removed.by_kind()
    assert done.kept.by_kind() == foretold.kept.by_kind()
    assert len(keys(here.bucket, "blobs/")) == TASKS and keys(here.bucket, "runs/r1") == []
    assert not Path(here.store.address, "runs/r1").exists()
    forget_removed(known, there.store)
    assert known.ids_of(there.store.address)[0] == {"r2"}
    assert not Path(there.store.address, "runs/r1").exists()
    there.bucket.asked.clear()
    forget_removed(known, there.store)
    assert there.bucket.asked == [f"get {claims.GC_STATE}"]
    whole(here.bucket, machine("new"))
    assert count(collect_bucket(here.store, None)) == {}


def test_results_that_a_kept_run_reused_stay_and_a_new_machine_reads_them(
    machine: Make, catalogs: Callable[[Machine], Catalog]
) -> None:
    here = machine("here")
    a_run(here.store, "r1")
    here.publish("r1")
    engine = Engine(here, catalogs(here))
    engine.begin()
    engine.work()
    engine.end()
    assert engine.reuses
    done = collect_bucket(here.store, catalogs(here), forget=["r1"])
    assert count(done) == {"runs": 1} and done.kept.by_kind()["results"][0] == TASKS
    new = machine("new")
    whole(here.bucket, new)
    known = catalogs(new)
    assert known.ids_of(new.store.address)[0] == {"r2"}
    done = collect_bucket(here.store, None, forget=["r2"])
    assert count(done) == {"runs": 1, "results": TASKS, "values": TASKS}
    assert keys(here.bucket, "blobs/") + keys(here.bucket, "runs/") == []


def requests_of_a_gc(machine: Make) -> int:
    here = machine("here")
    a_run(here.store, "r1")
    here.publish("r1")
    here.bucket.asked.clear()
    collect_bucket(here.store, None, forget=["r1"])
    asked = len(here.bucket.asked)
    FolderObjects(here.bucket.root).delete(keys(here.bucket))
    return asked


@attrs.define
class Beside:
    """An engine that begins before one request of ``gc``, and ends before another one."""

    engine: Engine
    begins: int
    ends: int
    waits: threading.Event  # set while something waits for gc
    asked: int = 0
    thread: threading.Thread | None = None

    def __call__(self, what: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self.asked == self.begins:
            beginning = threading.Thread(target=self.engine.begin)
            beginning.start()
            beginning.join()
        if self.asked == self.ends:
            self.waits.clear()
            self.thread = threading.Thread(target=self._work)
            self.thread.start()
            while self.thread.is_alive() and not self.waits.is_set():
                self.thread.join(0.001)
        self.asked += 1

    def finish(self) -> None:
        """Do what is left, once gc has ended."""
        if self.engine.lease is None:
            self.engine.begin()
        if self.thread is None:
            self._work()
        else:
            self.thread.join()

    def _work(self) -> None:
        self.engine.work()
        self.engine.end()


def test_whenever_a_run_begins_and_ends_beside_gc_it_loses_nothing(
    machine: Make, catalogs: Callable[[Machine], Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()
    pause = time.sleep

    def wait(seconds: float) -> None:
        waits.set()
        pause(0.005)

    monkeypatch.setattr(claims.time, "sleep", wait)
    number = requests_of_a_gc(machine)
    assert number < 40
    seen: set[tuple[bool, bool]] = set()
    for begins in range(number):
        for ends in {begins, min(begins + 5, number), number}:
            here, there = machine(f"here{begins}-{ends}"), machine(f"there{begins}-{ends}")
            a_run(here.store, "r1")
            here.publish("r1")
            if begins % 2:
                a_run(there.store, "r1")  # it has the same content already, of its own
            beside = Beside(Engine(there, catalogs(there)), begins, ends, waits)
            here.bucket.before = beside
            first = collect_bucket(here.store, None, forget=["r1"])
            here.bucket.before = lambda what: None
            beside.finish()
            whole(here.bucket, machine(f"new{begins}-{ends}"))
            collect_bucket(here.store, None)
            assert read_state(here.bucket)[0].phase == IDLE
            whole(here.bucket, machine(f"last{begins}-{ends}"))
            seen.add((beside.engine.reuses, bool(first.waiting)))
            FolderObjects(here.bucket.root).delete(keys(here.bucket))
    assert {True, False} == {reuses for reuses, _ in seen} == {waited for _, waited in seen}


def test_a_gc_that_is_killed_at_any_request_is_continued_by_the_next(machine: Make) -> None:
    def killed(what: str) -> None:
        nonlocal left
        left -= "leases/" not in what
        if left < 0 and "leases/" not in what:
            raise Killed

    for last in range(100):
        here = machine(f"here{last}")
        for run in ("r1", "r2"):
            a_run(here.store, run)
            here.publish(run)
        left = last
        here.bucket.before = killed
        try:
            collect_bucket(here.store, None, forget=["r1"])
            break
        except Killed:
            here.bucket.before = lambda what: None
        for meta in list(here.bucket.list("leases/")):  # its process is dead
            record = json.loads(bytes(here.bucket.get(meta.key).data))  # type: ignore[union-attr]
            here.bucket.put(meta.key, json.dumps({**record, "born": "1"}).encode())
        assert check_store(FolderObjects(here.bucket.root)).problems == []
        collect_bucket(here.store, None, forget=["r1"])
        assert read_state(here.bucket)[0].phase == IDLE
        assert keys(here.bucket, "runs/r1") == [] and len(keys(here.bucket, "blobs/")) == TASKS
        whole(here.bucket, machine(f"new{last}"))
        FolderObjects(here.bucket.root).delete(keys(here.bucket))
    assert last > 10


def test_a_run_at_work_stays_and_is_told(machine: Make) -> None:
    here, there = machine("here"), machine("there")
    a_run(there.store, "r1", status="running")
    there.publish("r1")
    with Lease("r1", there.store.address):
        done = collect_bucket(here.store, None, forget=["r1"])
    assert done.live == {"r1"} and not done.removed.by_kind()
    assert "runs/r1/run.json" in keys(here.bucket)


def test_checkpoints_go_when_their_task_has_completed(machine: Make) -> None:
    here = machine("here")
    a_run(here.store, "r1")
    here.publish("r1")
    done, failed = (f"checkpoints/r1/train/{index}/latest" for index in (0, TASKS))
    for key in (done, failed):
        here.bucket.put(key, b"state")
    assert count(collect_bucket(here.store, None)) == {"checkpoints": 1}
    assert keys(here.bucket, "checkpoints/") == [failed]


def test_an_engine_that_is_found_dead_is_not_waited_for(machine: Make) -> None:
    """As ``upshift cancel`` and ``resume`` find it: nothing has come from it for the time of a lease."""
    here = machine("here")
    for run in ("r1", "r2"):
        a_run(here.store, run)
        here.publish(run)
    here.bucket.put("leases/r2", json.dumps({"host": "gone", "pid": 1}).encode())
    assert collect_bucket(here.store, None, forget=["r1"]).waiting == {"r2"}
    beats = itertools.count(step=20.0)
    Lease("r2", here.store.address, time=Time(lambda: next(beats), lambda seconds: None)).release()
    assert count(collect_bucket(here.store, None))["values"] == TASKS


def test_ages_are_by_the_clock_of_the_bucket_alone(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine("here")
    for run in ("r1", "r2"):
        a_run(here.store, run)
        here.publish(run)
    here.bucket.put("blobs/sha256/ab/" + "c" * 62, b"left over")
    dead = BucketLease(objects=here.bucket, run="r3", record={"host": "gone"}, beat=5, expiry=30)
    here.bucket.put("leases/r3", json.dumps({"host": "gone", "pid": 1}).encode())
    here_now = time.time
    monkeypatch.setattr(time, "time", lambda: here_now() + 100 * DAY)
    done = collect_bucket(here.store, None, forget=["r1"])
    assert done.waiting == {"r3"} and not done.removed.by_kind().get("values")
    assert done.later.by_kind()["values"][0] == TASKS
    now = here.bucket.now
    monkeypatch.setattr(here.bucket, "now", lambda: now() + 2 * DAY)
    done = collect_bucket(here.store, None)
    assert count(done) == {"runs": 1, "values": TASKS + 1}
    assert keys(here.bucket, "leases/") == []
    assert dead.lost is None


def test_one_gc_works_at_a_time(machine: Make) -> None:
    here = machine("here")
    lease = BucketLease(objects=here.bucket, run=GC, record={"host": "other"}, beat=5, expiry=30)
    lease.acquire(
        notice=lambda line: None, owned=lambda record: StoreError("owned"), monotonic=time.monotonic,
        sleep=time.sleep,
    )  # fmt: skip
    with pytest.raises(UsageError, match="another gc works on the store"):
        collect_bucket(here.store, None)


def test_who_needs_what_a_killed_gc_was_removing_is_told_after_a_while(
    machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine("here")
    a_run(here.store, "r1")
    blobs = frozenset(
        f"blobs/{path.parent.parent.name}/{path.parent.name}/{path.name}"
        for path in (here.store.root / "blobs").rglob("*")
        if path.is_file()
    )
    write_state(here.bucket, GcState(phase=REMOVING, blobs=blobs), None)
    monkeypatch.setattr(claims, "_PATIENCE", 0.0)
    with pytest.raises(StoreUnavailable, match="gc has not come to its end"):
        here.publish("r1")
    collect_bucket(here.store, None)
    here.publish("r1")
    assert check_store(FolderObjects(here.bucket.root)).problems == []


def test_a_copy_takes_what_it_needs_off_the_list(machine: Make, tmp_path: Path) -> None:
    here = machine("here")
    a_run(here.store, "r1")
    here.publish("r1")
    source = FolderObjects(tmp_path / "source")
    copy_store(FolderObjects(here.bucket.root), source)
    blobs = frozenset(keys(here.bucket, "blobs/"))
    write_state(here.bucket, GcState(phase=CONDEMNED, blobs=blobs, engines=frozenset({"r9"})), None)
    from upshift.runs.copying import _Place

    place = _Place(here.bucket, again=False)
    with place:
        assert any(key.startswith("leases/copy-") for key in keys(here.bucket))
        for key in blobs:
            _, name, begin, rest = key.split("/")
            assert place.has(f"{name}:{begin}{rest}", next(m.size for m in here.bucket.list(key)))
    assert read_state(here.bucket)[0].blobs == frozenset()
    assert not any(key.startswith("leases/") for key in keys(here.bucket))


def test_a_bucket_with_many_runs_takes_few_requests(machine: Make) -> None:
    here = machine("here")
    for number in range(20):
        a_run(here.store, f"r{number}")
        here.publish(f"r{number}")
    here.bucket.asked.clear()
    collect_bucket(here.store, None)
    assert len(here.bucket.asked) <= 20 + 15
    here.bucket.asked.clear()
    done = collect_bucket(here.store, None, forget=[f"r{number}" for number in range(10)])
    assert count(done) == {"runs": 10, "values": 10 * TASKS}
    assert len(here.bucket.asked) <= 10 * 9 + 10 + 25


def test_what_an_exported_pipeline_needs_stays_until_the_export_is_old(machine: Make) -> None:
    here = machine("here")

    def put(content: bytes) -> str:
        digest = digest_of(content, name="sha256")
        here.bucket.put(blob_key(digest), content)
        return digest

    put(b"of no run and no export")
    package = put(b"code of the pipeline")
    order = json.dumps({"code": {"package": package}}).encode()
    digest = put(order)
    write_export(here.store, digest, order)
    old = time.time() - 2 * DAY
    for file in here.bucket.root.rglob("*.json"), here.bucket.root.joinpath("blobs").rglob("*"):
        for path in file:
            os.utime(path, (old, old))
    assert count(collect_bucket(here.store, None, exports_before=3 * DAY)) == {"values": 1}
    assert set(keys(here.bucket, "blobs/")) == {blob_key(package), blob_key(digest)}
    foretold = collect_bucket(here.store, None, exports_before=DAY, dry_run=True)
    assert count(foretold) == {"exports": 1, "values": 2}
    assert count(collect_bucket(here.store, None, exports_before=DAY)) == {"exports": 1, "values": 2}
    assert keys(here.bucket, "blobs/") + keys(here.bucket, "exports/") == []
