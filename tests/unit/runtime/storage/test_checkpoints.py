"""Checkpoints in the store: complete or not offered, whoever is killed when."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from upshift.errors import StoreUnavailable
from upshift.model.spec import Code, EntryPoint, TaskId, TaskResult, TaskSpec
from upshift.model.spec.telemetry import Checkpoints
from upshift.runtime.storage.checkpoints import Name, Part, TaskCheckpoints, discard, left_over, put_aside
from upshift.runtime.storage.store import Store, open_store

TASK = TaskId(run="r1", step="train")
KEY = "blake2b:one"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def task(store: Store) -> TaskCheckpoints:
    return TaskCheckpoints(store.address, TASK)


def save(
    task: TaskCheckpoints,
    name: Name,
    *,
    rank: int = 0,
    ranks: int = 1,
    key: str | None = KEY,
    text: str = "x",
) -> int | None:
    folder = task.begin(name, alone=ranks == 1)
    (folder / f"part{rank}").write_text(text)
    return task.finish(name, rank, Part(ranks=ranks, world_size=ranks, key=key))


def test_what_was_saved_is_there_once_its_process_has_said_so(task: TaskCheckpoints) -> None:
    assert task.newest(KEY) is None
    folder = task.begin(Name(1, 1), alone=True)
    (folder / "model").write_text("weights")
    assert task.newest(KEY) is None
    assert task.finish(Name(1, 1), 0, Part(key=KEY)) == len("weights")
    found = task.newest(KEY)
    assert found is not None
    assert str(found.name) == "1.1"
    assert (found.folder / "model").read_text() == "weights"


def test_only_the_newest_is_kept(task: TaskCheckpoints) -> None:
    for name in (Name(1, 1), Name(1, 2), Name(2, 1)):
        save(task, name)
    assert sorted(path.name for path in task.folder.iterdir()) == ["2.1", "2.1.alone", "2.1.rank0"]


def test_a_later_attempt_is_newer_than_any_number_of_an_earlier_one(task: TaskCheckpoints) -> None:
    save(task, Name(9, 10))
    save(task, Name(10, 9))
    found = task.newest(KEY)
    assert found is not None
    assert found.name == Name(10, 9)


def test_of_several_processes_the_last_one_makes_it_complete(task: TaskCheckpoints) -> None:
    save(task, Name(1, 1), ranks=1)
    assert save(task, Name(1, 2), rank=2, ranks=3) is None
    assert save(task, Name(1, 2), rank=0, ranks=3) is None
    found = task.newest(KEY)
    assert found is not None
    assert found.name == Name(1, 1)
    assert save(task, Name(1, 2), rank=1, ranks=3) == 3
    found = task.newest(KEY)
    assert found is not None
    assert found.name == Name(1, 2)
    assert sorted(path.name for path in found.folder.iterdir()) == ["part0", "part1", "part2"]


def test_what_an_earlier_attempt_did_not_complete_goes_when_the_next_one_saves(task: TaskCheckpoints) -> None:
    save(task, Name(1, 1))
    save(task, Name(1, 2), rank=0, ranks=2)
    task.begin(Name(2, 1), alone=True)
    left = {path.name for path in task.folder.iterdir() if path.suffix != ".alone"}
    assert left == {"1.1", "1.1.rank0", "2.1"}


def test_one_that_two_processes_save_alone_is_refused(task: TaskCheckpoints) -> None:
    task.begin(Name(1, 1), alone=True)
    with pytest.raises(FileExistsError):
        task.begin(Name(1, 1), alone=True)


def test_one_that_a_process_saves_alone_is_not_joined(task: TaskCheckpoints) -> None:
    folder = task.begin(Name(1, 1), alone=True)
    (folder / "part0").write_text("begun")
    with pytest.raises(FileExistsError):
        task.begin(Name(1, 1), alone=False)
    assert task.newest(KEY) is None
    together = task.begin(Name(1, 2), alone=False)
    with pytest.raises(FileExistsError):
        task.begin(Name(1, 2), alone=True)
    assert task.begin(Name(1, 2), alone=False) == together


def test_what_is_saved_once_there_is_a_further_attempt_does_not_count(
    task: TaskCheckpoints, store: Store
) -> None:
    save(task, Name(1, 1))
    late = task.begin(Name(1, 2), alone=True)
    (late / "part0").write_text("late")
    store.write_spec(
        TaskSpec(
            task=TASK,
            attempt=2,
            pipeline="p",
            entry=EntryPoint(module="m", qualname="train"),
            code=Code(project="/"),
            store=store.address,
        )
    )
    assert task.finish(Name(1, 2), 0, Part(key=KEY)) is None
    found = task.newest(KEY)
    assert found is not None and str(found.name) == "1.1" and (found.folder / "part0").exists()


def test_one_that_is_replaced_while_others_look_is_found_anew(
    task: TaskCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(task, Name(1, 1))
    read, newer = Path.read_bytes, [Name(1, 2)]

    def read_late(path: Path) -> bytes:
        if newer:
            save(task, newer.pop())  # the record that was listed goes
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    found = task.newest(KEY)
    assert found is not None and str(found.name) == "1.2"


def test_an_empty_one_is_none(task: TaskCheckpoints) -> None:
    save(task, Name(1, 1))
    task.begin(Name(1, 2), alone=True)
    with pytest.raises(FileNotFoundError):
        task.finish(Name(1, 2), 0, Part(key=KEY))
    found = task.newest(KEY)
    assert found is not None
    assert found.name == Name(1, 1)


def test_one_of_other_work_is_not_offered_and_said(task: TaskCheckpoints) -> None:
    save(task, Name(1, 1))
    assert task.newest("blake2b:other") is None
    found = task.unusable("blake2b:other")
    assert found is not None
    assert found.complete
    assert task.unusable(KEY) is None


def test_the_ranks_that_are_missing_are_known(task: TaskCheckpoints) -> None:
    save(task, Name(1, 1), rank=1, ranks=3)
    found = task.unusable(KEY)
    assert found is not None
    assert not found.complete
    assert found.missing == [0, 2]


def test_a_damaged_record_is_no_record(task: TaskCheckpoints) -> None:
    save(task, Name(1, 1))
    (task.folder / "1.1.rank0").write_bytes(b"{")
    assert task.newest(KEY) is None


def test_one_that_lost_its_files_is_not_offered(task: TaskCheckpoints) -> None:
    save(task, Name(1, 1))
    (task.folder / "1.1" / "part0").unlink()
    assert task.newest(KEY) is None


def test_pipes_links_and_folders_do_not_hinder(task: TaskCheckpoints, tmp_path: Path) -> None:
    folder = task.begin(Name(1, 1), alone=True)
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("nowhere")
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / "deep" / "deeper" / "file").write_text("12345")
    assert task.finish(Name(1, 1), 0, Part(key=KEY)) == 5 + len("nowhere")


def test_a_store_that_cannot_be_written_is_named(store: Store) -> None:
    store.root.parent.mkdir(exist_ok=True)
    store.root.write_text("a file is in the way")
    with pytest.raises(StoreUnavailable, match="checkpoints/r1/train/0"):
        TaskCheckpoints(store.address, TASK).begin(Name(1, 1), alone=True)


def test_mapped_tasks_have_each_their_own(store: Store) -> None:
    first, second = (TaskCheckpoints(store.address, TaskId(run="r1", step="t", index=i)) for i in (0, 1))
    save(first, Name(1, 1))
    assert first.newest(KEY) is not None
    assert second.newest(KEY) is None


def test_what_a_completed_task_saved_is_left_over_and_what_others_had_begun(store: Store) -> None:
    done, failed = (TaskId(run="r1", step=step) for step in ("done", "failed"))
    for task in (done, failed):
        save(TaskCheckpoints(store.address, task), Name(1, 1))
    save(TaskCheckpoints(store.address, failed), Name(1, 2), rank=0, ranks=2)
    store.create_result(TaskResult(task=done, attempt=1, status="completed"))
    store.create_result(TaskResult(task=failed, attempt=1, status="failed"))
    folder = store.root / "checkpoints" / "r1"
    found = list(left_over(store.address, "r1", gone=False))
    assert found == [str(folder / "done" / "0"), str(folder / "failed" / "0" / "1.2")]
    for path in found:
        assert put_aside(store.address, path) is not None
    assert not (folder / "done").exists()
    kept = TaskCheckpoints(store.address, failed).newest(KEY)
    assert kept is not None
    assert kept.name == Name(1, 1)
    assert list(left_over(store.address, "r1", gone=True)) == [str(folder)]
    assert put_aside(store.address, str(folder)) is not None
    assert put_aside(store.address, str(folder)) is None
    assert not folder.exists()


@pytest.mark.parametrize("wait", [False, True])
def test_what_a_completed_task_saved_is_gone_at_once(store: Store, wait: bool) -> None:
    result = TaskResult(task=TASK, attempt=2, status="completed")
    task = TaskCheckpoints(store.address, TASK)
    save(task, Name(1, 1))
    discard(store, result, wait=wait)
    assert task.newest(KEY) is None
    assert list((store.root / "checkpoints").iterdir()) == []
    for thread in threading.enumerate():
        if thread.name == "removes checkpoints":
            thread.join()
    assert list((store.root / "tmp").iterdir()) == []
    discard(store, result, wait=wait)


def test_news_of_several_processes_count_once() -> None:
    known = Checkpoints(resumed_from="1.2")
    for name in ("2.1", "2.1", "2.2", "2.10", "2.9"):
        known = known.and_then(Checkpoints(saved=1, newest=name, bytes=7))
    assert known == Checkpoints(resumed_from="1.2", saved=3, newest="2.10", bytes=7)


def test_a_record_that_is_replaced_while_it_is_read_is_read_again(
    task: TaskCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(task, Name(1, 1))
    read, stale = Path.read_bytes, [OSError(errno.ESTALE, os.strerror(errno.ESTALE))]

    def once(path: Path) -> bytes:
        if stale:
            raise stale.pop()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", once)
    found = task.newest(KEY)
    assert found is not None and not stale
