"""Task and run records: exclusive, whole or not there, and fit for any name."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import attrs
import pytest

from upshift.errors import ConfigError, StoreError
from upshift.model import configuration
from upshift.model.spec import Artifact, Code, EntryPoint, Failure, TaskId, TaskResult, TaskSpec
from upshift.runtime.storage.records import Records, pack_result
from upshift.runtime.storage.store import Store, open_store

TASK = TaskId(run="r1", step="train", index=3)
RESULT = TaskResult(
    task=TASK,
    attempt=1,
    status="completed",
    outputs={
        "output": Artifact(digest="sha256:" + "0" * 64, serializer="json", type="int", bytes=1, inline="MQ==")
    },
    started=1.5,
    ended=2.5,
)


@pytest.fixture(params=["process", "power"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return open_store(str(tmp_path / "store"), durability=request.param)


def spec(store: Store, task: TaskId = TASK, attempt: int = 1) -> TaskSpec:
    return TaskSpec(
        task=task,
        attempt=attempt,
        pipeline="training",
        entry=EntryPoint(module="m", qualname="f"),
        code=Code(project="/p"),
        store=store.address,
    )


def test_a_spec_is_read_back_as_it_was_written(store: Store) -> None:
    relative = store.write_spec(spec(store))
    assert relative == "runs/r1/tasks/train/3.1.spec.json" == store.spec_path(TASK, 1)
    assert store.read_spec(relative) == spec(store)
    assert store.log_path(TASK, 1) == store.root / "runs/r1/tasks/train/3.1.log"
    assert store.log_path(TASK, 1).parent.is_dir()
    assert store.series_path(TASK, 2).name == "3.2.series"


def test_a_task_that_is_not_mapped_has_number_0(store: Store) -> None:
    assert store.spec_path(TaskId(run="r1", step="train"), 2) == "runs/r1/tasks/train/0.2.spec.json"


def test_a_missing_or_damaged_spec_is_an_error_that_says_so(store: Store) -> None:
    with pytest.raises(StoreError, match=r"there is no task spec runs/r1/tasks/train/3\.1\.spec\.json"):
        store.read_spec(store.spec_path(TASK, 1))
    relative = store.write_spec(spec(store))
    (store.root / relative).write_text('{"task": ')
    with pytest.raises(StoreError, match="a task spec is damaged"):
        store.read_spec(relative)


def test_records_of_a_newer_upshift_are_refused(store: Store) -> None:
    relative = store.write_spec(attrs.evolve(spec(store), version=2))
    with pytest.raises(StoreError, match=r"has version 2, and this Upshift reads up to 1") as caught:
        store.read_spec(relative)
    assert "pip install --upgrade upshift" in str(caught.value)
    store.create_result(attrs.evolve(RESULT, version=2))
    with pytest.raises(StoreError, match="version 2"):
        store.read_result(TASK, 1)


def test_a_result_is_created_once_and_never_changes(store: Store) -> None:
    other = attrs.evolve(RESULT, status="failed", failure=Failure(reason="timeout", message="too slow"))
    assert store.read_result(TASK, 1) is None
    assert store.create_result(RESULT) is True
    assert store.create_result(other) is False
    assert store.read_result(TASK, 1) == RESULT
    assert store.read_result(TASK, 2) is None
    assert os.listdir(store.root / "tmp") == []


def _create(address: str, number: int, created: multiprocessing.queues.Queue[int]) -> None:
    if open_store(address).create_result(attrs.evolve(RESULT, node=f"node-{number}")):
        created.put(number)


def test_of_many_writers_at_once_one_creates_the_result(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    created: multiprocessing.queues.Queue[int] = context.Queue()
    writers = [context.Process(target=_create, args=(store.address, n, created)) for n in range(8)]
    for writer in writers:
        writer.start()
    winner = created.get(timeout=60)
    for writer in writers:
        writer.join()
    assert created.empty()
    result = store.read_result(TASK, 1)
    assert result is not None
    assert result.node == f"node-{winner}"


def test_a_torn_or_garbled_result_reads_as_none(store: Store) -> None:
    store.create_result(RESULT)
    path = store.root / "runs/r1/tasks/train/3.1.result.json"
    whole = path.read_bytes()
    assert whole == pack_result(RESULT)
    for content in (b"", whole[:10], whole[:-1], whole.replace(b"train", b"trial"), bytes(len(whole))):
        path.write_bytes(content)
        assert store.read_result(TASK, 1) is None
        assert list(store.results("r1")) == []


def test_a_run_record_is_replaced_as_a_whole(store: Store) -> None:
    assert store.read_record("r1", "run.json") is None
    store.write_record("r1", "run.json", b"one")
    store.write_record("r1", "run.json", b"two")
    assert store.read_record("r1", "run.json") == b"two"
    assert os.listdir(store.root / "tmp") == []


def test_runs_and_their_results_are_found_again(store: Store) -> None:
    assert list(store.runs()) == []
    assert list(store.results("r1")) == []
    results = [
        attrs.evolve(RESULT, task=TaskId(run=run, step=step, index=index), attempt=attempt)
        for run, step, index, attempt in (
            ("r1", "a", None, 1),
            ("r1", "b", 0, 1),
            ("r1", "b", 0, 2),
            ("r2", "a", None, 1),
        )
    ]
    for result in results:
        store.create_result(result)
    store.write_record("r1", "run.json", b"{}")
    assert list(store.runs()) == ["r1", "r2"]
    assert list(store.results("r1")) == results[:3]
    assert list(store.results("r2")) == results[3:]


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".", "a\0b", "ümläut", "a" * 300, "über" * 80, "a b [1]", "%41", ""]
)
def test_any_step_name_is_a_safe_place_of_its_own(store: Store, name: str) -> None:
    task = TaskId(run="r1", step=name)
    relative = store.write_spec(spec(store, task))
    assert store.read_spec(relative).task == task
    assert (store.root / relative).resolve().parent.parent == store.root / "runs/r1/tasks"
    other = TaskId(run="r1", step="A" if name == "%41" else name + "x")
    assert store.spec_path(other, 1) != relative


def test_addresses_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="runs cannot have their store at ftp://") as caught:
        open_store("ftp://server/upshift")
    assert "folder" in str(caught.value)
    with pytest.raises(ConfigError, match="address is empty"):
        open_store("")
    with pytest.raises(ConfigError, match="durability = 'disk' is invalid"):
        open_store("/tmp/x", durability="disk")


def test_an_address_may_be_a_file_url_or_start_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_store(f"file://{tmp_path}/s").root == tmp_path / "s"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~/s").address == str(tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    assert open_store("s").root == tmp_path / "s"


def test_a_record_is_written_though_others_remove_its_folders_while_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(str(tmp_path), power=False)
    records.write("runs/r/other.json", b"{}")
    made, tries = configuration.make_folder, list[Path]()

    def make(folder: Path) -> None:
        tries.append(folder)
        if len(tries) == 1:  # as where one above it is removed at this very moment
            raise FileNotFoundError(folder)
        made(folder)

    monkeypatch.setattr(configuration, "make_folder", make)
    records.write("runs/r/tasks/train/0.1.claim", b"somebody")
    assert records.read("runs/r/tasks/train/0.1.claim") == b"somebody"
    assert len(tries) == 2
