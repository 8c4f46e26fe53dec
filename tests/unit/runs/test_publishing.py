"""What a machine puts into a bucket, in which order, and what another machine makes of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machines import CONTENT, TASKS, Away, Bucket, Machine, a_run

from upshift.errors import BlobDamaged, BlobMissing, LeaseLost, RunOwned
from upshift.model.spec import Artifact, TaskId, TaskResult
from upshift.runs import bucket_lease
from upshift.runs.checking import check_store
from upshift.runs.lease import BEAT, EXPIRY, Lease, Time, ask_to_cancel, held
from upshift.runs.publishing import Publisher, publish_left
from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.objects import Version
from upshift.runtime.storage.objects.folder import FolderObjects
from upshift.runtime.storage.replica import Note
from upshift.runtime.storage.store import Store, open_store


def problems(bucket: Bucket) -> list[str]:
    return check_store(FolderObjects(bucket.root)).problems


def test_whatever_request_is_the_last_one_the_bucket_holds_nothing_that_is_torn(
    machine: Callable[[str], Machine],
) -> None:
    here = machine("here")
    a_run(here.store)
    for writes in range(100):
        here.bucket.writes = writes
        try:
            here.publish()
        except Away:
            assert problems(here.bucket) == [], f"after {writes} writes"
            there = machine(f"there{writes}")
            there.store.bring_run("r1")
            if there.store.read_record("r1", "run.json") is not None:
                assert len(list(there.store.results("r1"))) == TASKS
            # From here on with an empty bucket: the next number of writes is of one machine's first attempt.
            FolderObjects(here.bucket.root).delete(
                [meta.key for meta in FolderObjects(here.bucket.root).list("")]
            )
            here.bucket.writes = 10**9
            here = machine(f"again{writes}")
            a_run(here.store)
        else:
            break
    else:
        raise AssertionError("it never came to its end")
    assert writes > 3 * TASKS
    assert problems(here.bucket) == []
    assert here.store.replica is not None and here.store.replica.unpublished() == []


def test_what_was_cut_off_is_continued_and_not_put_again(machine: Callable[[str], Machine]) -> None:
    here = machine("here")
    a_run(here.store)
    here.bucket.writes = 8
    with pytest.raises(Away):
        here.publish()
    before = {meta.key for meta in here.bucket.list("runs/") if meta.key.endswith("result.json")}
    here.bucket.writes = 10**9
    here.bucket.asked.clear()
    told: list[str] = []
    publish_left(here.store, told.append)
    assert told == [f"what was left of run r1 is in {here.bucket.address} now"]
    assert not any(f"put {key}" in here.bucket.asked for key in before)
    assert problems(here.bucket) == []
    here.bucket.asked.clear()
    publish_left(here.store, told.append)
    assert here.bucket.asked == []


def test_a_task_takes_few_requests_and_another_machine_needs_none_for_each(
    machine: Callable[[str], Machine],
) -> None:
    here, there = machine("here"), machine("there")
    tasks = 40
    a_run(here.store, tasks=tasks)
    here.bucket.asked.clear()
    here.publish()
    assert len(here.bucket.asked) <= 4 * tasks + 15
    here.bucket.asked.clear()
    there.store.bring_run("r1")
    results = list(there.store.results("r1"))
    assert len(results) == tasks
    for result in results:
        there.store.check(result.outputs["output"].digest, result.outputs["output"].bytes)
    assert len(here.bucket.asked) <= 2 + tasks


def test_content_is_brought_once_however_many_want_it(machine: Callable[[str], Machine]) -> None:
    here, there = machine("here"), machine("there")
    a_run(here.store)
    here.publish()
    there.store.bring_run("r1")
    digest = next(there.store.results("r1")).outputs["output"].digest
    here.bucket.asked.clear()
    with ThreadPoolExecutor(8) as pool:
        for content in pool.map(lambda _: bytes(open_here(there).read(digest)), range(8)):
            assert content == bytes([0]) * CONTENT + b"r1"
    assert len([asked for asked in here.bucket.asked if asked.startswith("get blobs/")]) == 1


def open_here(machine: Machine) -> Store:
    """The same store, opened once more."""
    store = open_store(machine.store.address)
    assert store.replica is not None
    store.replica.objects = machine.bucket
    return store


def test_content_that_is_damaged_or_gone_in_the_bucket_is_told(machine: Callable[[str], Machine]) -> None:
    here, there = machine("here"), machine("there")
    a_run(here.store)
    here.publish()
    there.store.bring_run("r1")
    first, second, _ = (result.outputs["output"] for result in there.store.results("r1"))
    keys = {meta.key.replace("/", ""): meta.key for meta in here.bucket.list("blobs/")}
    here.bucket.put(keys["blobs" + first.digest.replace(":", "")], b"x" * first.bytes)
    here.bucket.delete([keys["blobs" + second.digest.replace(":", "")]])
    with pytest.raises(BlobDamaged):
        there.store.read(first.digest)
    for missing in (there.store.read, there.store.check):
        with pytest.raises(BlobMissing):
            missing(second.digest)


def test_a_log_is_brought_when_it_is_asked_for(machine: Callable[[str], Machine]) -> None:
    here, there = machine("here"), machine("there")
    a_run(here.store)
    here.publish()
    there.store.bring_run("r1")
    task = TaskId(run="r1", step="train", index=1)
    assert not Path(there.store.address, "runs/r1/tasks/train/1.1.log").exists()
    assert there.store.log_path(task, 1).read_text() == "task 1\n"
    assert not there.store.metrics_path(task, 1).exists()


def test_of_two_results_of_an_attempt_the_first_one_counts_everywhere(
    machine: Callable[[str], Machine],
) -> None:
    here, there = machine("here"), machine("there")
    a_run(there.store, status="running")
    there.publish()
    a_run(here.store)
    other = here.store.put(b"other" * CONTENT)
    path = Path(here.store.address, "runs/r1/tasks/train/0.1.result.json")
    path.unlink()
    task = TaskId(run="r1", step="train", index=0)
    here.store.create_result(
        TaskResult(
            task=task,
            attempt=1,
            status="completed",
            started=5.0,
            ended=6.0,
            node="n",
            backend="local",
            outputs={"output": Artifact(digest=other[0], serializer="bytes", type="bytes", bytes=other[1])},
        )
    )
    here.publish()
    first = there.store.read_result(task, 1)
    assert here.store.read_result(task, 1) == first
    assert problems(here.bucket) == []


def test_a_run_that_somebody_else_has_gone_on_with_is_not_overwritten(
    machine: Callable[[str], Machine],
) -> None:
    here, there = machine("here"), machine("there")
    a_run(here.store, status="running")
    with Lease("r1", here.store.address) as lease:
        publisher = Publisher(here.store, "r1", lease, lambda line: None)
        publisher.begin(known=False)
        publisher.publish()
        there.store.bring_run("r1")
        a_run(there.store)
        with pytest.raises(RunOwned):
            there.publish()
    there.publish()
    a_run(here.store, status="failed")
    with pytest.raises(LeaseLost):
        publisher.publish()
    publish_left(here.store)
    for store in (here.store, there.store):
        assert b'"completed"' in (store.read_record("r1", "run.json") or b"")
    assert here.store.replica is not None and here.store.replica.unpublished() == []


def test_content_that_the_bucket_has_makes_room_and_comes_back(machine: Callable[[str], Machine]) -> None:
    here = machine("here")
    a_run(here.store)
    here.publish()
    kept, size = here.store.put(b"kept" * CONTENT)  # no run has published it
    assert here.store.replica is not None
    assert list(here.store.replica.trim(0)) == []  # it was used just now
    blobs = [path for path in (here.store.root / "blobs").rglob("*") if path.is_file()]
    later = time.time() + 7200
    here.store.replica.write_note("r2", Note())  # a run of this machine, which may have to put it there
    assert list(here.store.replica.trim(10**9, now=later)) == []
    assert list(here.store.replica.trim(size + CONTENT + 2, dry_run=True, now=later)) == [CONTENT + 2] * 2
    assert all(path.exists() for path in blobs)
    assert list(here.store.replica.trim(0, now=later)) == [CONTENT + 2] * TASKS
    assert [path for path in blobs if path.exists()] == [here.store.blob_path(kept)]
    for result in here.store.results("r1"):
        assert len(here.store.read(result.outputs["output"].digest)) == CONTENT + 2


def test_who_looks_at_a_run_does_not_disturb_its_engine(machine: Callable[[str], Machine]) -> None:
    here = machine("here")
    a_run(here.store, status="running")
    with Lease("r1", here.store.address) as lease:
        publisher = Publisher(here.store, "r1", lease, lambda line: None)
        publisher.begin(known=False)
        publisher.publish()
        ended = threading.Event()

        def look() -> None:
            while not ended.is_set():
                here.store.bring_run("r1")

        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(look)
            for number in range(30):
                row = json.loads(here.store.read_record("r1", "run.json") or b"")
                here.store.write_record("r1", "run.json", json.dumps({**row, "tags": [str(number)]}).encode())
                publisher.publish()
                assert here.store.replica is not None and here.store.replica.note("r1") is not None
            ended.set()
            looking.result()
        publisher.finish()
    assert b'"29"' in (here.store.read_record("r1", "run.json") or b"")


class Clock(Time):
    """A clock that runs as fast as it is waited for."""

    def __init__(self, at: float = 1e9, happens: Callable[[], object] = bool) -> None:
        now = 0.0

        def sleep(seconds: float) -> None:
            nonlocal now, happens
            now += seconds
            if now >= at:
                happens()
                happens = bool

        super().__init__(lambda: now, sleep)


def elsewhere(machine: Machine) -> bucket_lease.BucketLease:
    """The lease of an engine on a machine whose processes are not seen from here."""
    lease = bucket_lease.BucketLease(
        objects=machine.bucket,
        run="r1",
        record={"pid": 7, "host": "node7", "since": "now", "boot": "b7"},
        beat=BEAT,
        expiry=EXPIRY,
    )
    lease.acquire(notice=print, owned=lambda _: AssertionError(), monotonic=float, sleep=print)
    return lease


def test_an_engine_elsewhere_that_shows_that_it_lives_keeps_its_run(
    machine: Callable[[str], Machine],
) -> None:
    here = machine("here")
    other = elsewhere(here)
    assert held("r1", here.store.address)
    with pytest.raises(RunOwned, match="another engine owns run r1") as caught:
        Lease("r1", here.store.address, time=Clock(at=BEAT, happens=other.renew))
    assert "process 7 on node7" in str(caught.value)
    assert not list(Path(here.store.address, "leases").glob("*/*"))


def test_an_engine_elsewhere_that_is_silent_loses_its_run_and_finds_out(
    machine: Callable[[str], Machine],
) -> None:
    here = machine("here")
    other = elsewhere(here)
    told: list[str] = []
    with Lease("r1", here.store.address, time=Clock(), notice=told.append) as lease:
        assert told == [f"waiting up to {EXPIRY:g} s to see whether the engine of run r1 on node7 is at work"]
        other.renew()
        assert other.lost is not None and not other.fresh
        other.release()
        lease.confirm()
    assert not held("r1", here.store.address)


def test_an_engine_elsewhere_is_asked_to_stop_and_keeps_its_lease(machine: Callable[[str], Machine]) -> None:
    here = machine("here")
    other = elsewhere(here)
    ask_to_cancel("r1", here.store.address)
    other.renew()
    assert other.cancel_asked and other.lost is None
    other.renew()
    other.release()
    assert list(here.bucket.list("leases/")) == []


def test_a_result_waits_for_all_files_of_its_attempt_at_once(machine: Callable[[str], Machine]) -> None:
    node = machine("node")
    direct = Store(node.store.root, replica=node.store.replica, direct=True)
    folder = node.store.root / "runs/r1/tasks/train"
    folder.mkdir(parents=True)
    endings = ("log", "series", "metrics", "cards")
    for ending in endings:
        (folder / f"0.1.{ending}").write_text("x")
    together = threading.Barrier(len(endings), timeout=30)  # a slow bucket: each waits for all others

    def wait(what: str) -> None:
        if what.endswith(endings):
            together.wait()

    node.bucket.before = wait
    made = TaskResult(
        task=TaskId(run="r1", step="train", index=0), attempt=1, status="completed", started=1.0, ended=2.0,
        node="n", backend="slurm",
    )  # fmt: skip
    assert direct.create_result(made)
    assert node.bucket.asked[-1].endswith("result.json") and len(node.bucket.asked) >= len(endings) + 1


def test_an_upload_whose_content_is_still_looked_at_is_one_all_the_same(
    machine: Callable[[str], Machine],
) -> None:
    here = machine("here")
    a_run(here.store)
    kept: list[memoryview] = []  # as the traceback of a connection that was stale keeps it
    upload = here.bucket.upload

    def keeping(key: str, buffers: Sequence[Bytes]) -> Version:
        kept.extend(memoryview(buffer).cast("B") for buffer in buffers)
        return upload(key, buffers)

    here.bucket.upload = keeping  # type: ignore[method-assign]
    here.publish()
    assert kept and problems(here.bucket) == []
