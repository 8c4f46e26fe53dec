"""A catalog that is made anew from the store."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

from upshift.errors import ConfigError, StoreUnavailable
from upshift.model.configuration import Configuration, Target
from upshift.model.spec import (
    Artifact,
    Code,
    EntryPoint,
    Failure,
    Hardware,
    TaskId,
    TaskResult,
    TaskSpec,
    encode,
    to_json,
)
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.database import Server, SqliteDatabase
from upshift.runs.catalog.opening import bring_in, open_catalog
from upshift.runs.catalog.rebuild import put_aside_if_damaged, rebuild, record_ending
from upshift.runs.catalog.rows import MIGRATIONS, AttemptRow, RunRow, TaskRow
from upshift.runs.collect import collect
from upshift.runs.lease import Lease
from upshift.runtime.storage.store import Store, open_store

VALUE = Artifact(digest="blake3:" + "0" * 64, serializer="json", type="int", bytes=1, inline="MQ==")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def catalog(new_place: Callable[[str], Path | Server]) -> Iterator[Catalog]:
    with contextlib.closing(Catalog(new_place("catalog.db"))) as catalog:
        yield catalog


@pytest.fixture
def other(new_place: Callable[[str], Path | Server]) -> Iterator[Catalog]:
    with contextlib.closing(Catalog(new_place("other.db"))) as catalog:
        yield catalog


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Catalog]:
    """A catalog of which SQLite's own matters."""
    with contextlib.closing(Catalog(tmp_path / "catalog.db")) as catalog:
        yield catalog


def a_run(
    store: Store, catalog: Catalog, run: str, *, status: str = "failed", started: float = 1.0
) -> RunRow:
    """A run with a task of every kind: completed after a loss, failed, reused, skipped, cancelled."""
    row = RunRow(
        id=run,
        pipeline="p",
        status="running",
        target="here",
        store=store.address,
        started=started,
        user="ada",
        tags=("a", "b"),
        source={"file": "/p.py"},
        params={"x": encode(VALUE)},
    )
    store.write_record(run, "run.json", to_json(row))
    catalog.add_run(row)

    def task(step: str, index: int | None = None) -> TaskId:
        return TaskId(run=run, step=step, index=index)

    def result(step: str, attempt: int, **fields: object) -> AttemptRow:
        made = TaskResult(
            task=task(step, 2),
            attempt=attempt,
            started=3.0,
            ended=4.0,
            node="n",
            backend="fake",
            used=Hardware(cpu_count=0.5),
            **fields,  # type: ignore[arg-type]
        )
        store.create_result(made)
        return AttemptRow(
            task=made.task,
            number=attempt,
            status=made.status,
            reason=made.failure.reason if made.failure else None,
            backend="fake",
            node="n",
            started=3.0,
            ended=4.0,
            result=made,
        )

    lost = AttemptRow(
        task=task("make", 2),
        number=1,
        status="failed",
        reason="infrastructure",
        backend="fake",
        handle="job 7",
        started=2.0,
        ended=2.5,
        failure=Failure(reason="infrastructure", message="the node went away"),
    )
    failure = Failure(reason="user-error", message="ValueError: no", where="p.py:3")
    catalog.record(
        [
            TaskRow(task=task("make", 2), status="completed", key="k", cache_reason="first run"),
            TaskRow(task=task("break", 2), status="failed", key="b"),
            TaskRow(task=task("reuse"), status="completed", cached=True, origin=("zero", "make", None, 1)),
            TaskRow(task=task("skip"), status="skipped"),
            TaskRow(task=task("never"), status="cancelled"),
        ],
        [
            lost,
            result("make", 2, status="completed", outputs={"output": VALUE}, key="k"),
            result("break", 1, status="failed", failure=failure),
        ],
    )
    if status != "running":
        row = attrs.evolve(row, status=status, ended=9.0)
        catalog.add_run(row)
        record_ending(row, catalog, store)
    return row


def content(catalog: Catalog) -> list[object]:
    found: list[object] = []
    for row in catalog.runs():
        attempts = [attrs.evolve(a, handle=None) for a in catalog.attempts(row.id)]
        found.append((row, catalog.tasks(row.id), attempts))
    return found


def test_it_says_the_same_as_the_one_before(store: Store, catalog: Catalog, other: Catalog) -> None:
    a_run(store, catalog, "one")
    a_run(store, catalog, "two", status="cancelled", started=2.0)
    rebuilt = rebuild(other, [store])
    assert (rebuilt.runs, rebuilt.dropped, rebuilt.interrupted, rebuilt.damaged) == (2, 0, (), {})
    assert content(other) == content(catalog)
    assert other.find_results("k", store=store.address) == catalog.find_results("k", store=store.address)


def test_a_whole_one_is_as_it_was_and_loses_what_is_in_no_store(store: Store, catalog: Catalog) -> None:
    a_run(store, catalog, "one")
    before = content(catalog)
    catalog.add_run(RunRow(id="x", pipeline="p", status="failed", target="t", store=store.address, started=0))
    catalog.add_run(RunRow(id="y", pipeline="p", status="failed", target="t", store="/elsewhere", started=-1))
    rebuilt = rebuild(catalog, [store])
    assert (rebuilt.runs, rebuilt.dropped) == (2, 1)
    assert content(catalog)[:1] == before
    assert [row.id for row in catalog.runs()] == ["one", "y"]


def test_a_run_of_another_machine_stays_whose_store_has_the_address_of_one_here(
    store: Store, catalog: Catalog
) -> None:
    row = RunRow(id="there", pipeline="p", status="completed", target="t", store=store.address, started=1.0)
    catalog.add_run(attrs.evolve(row, source={"engine": {"host": "elsewhere", "home": "/home/bob/.upshift"}}))
    catalog.add_run(attrs.evolve(row, id="gone", source={"engine": {"host": socket.gethostname()}}))
    assert rebuild(catalog, [store]).dropped == 1
    assert [run.id for run in catalog.runs()] == ["there"]


def test_what_the_catalog_knows_of_a_run_that_has_not_ended_stays(
    store: Store, catalog: Catalog, other: Catalog
) -> None:
    a_run(store, catalog, "one", status="running")
    before = content(catalog)
    rebuild(catalog, [store])
    assert content(catalog) == before
    assert rebuild(other, [store]).interrupted == ("one",)
    assert {str(task.task): task.status for task in other.tasks("one")} == {
        "make[2]": "completed",
        "break[2]": "failed",
    }


def test_what_a_resumed_run_did_since_counts_more_than_its_first_end(
    store: Store, catalog: Catalog, other: Catalog
) -> None:
    row = a_run(store, catalog, "one")
    store.write_record("one", "run.json", to_json(attrs.evolve(row, status="running", ended=None)))
    again = TaskResult(task=TaskId(run="one", step="break", index=2), attempt=2, status="completed", key="b")
    store.create_result(again)
    rebuild(other, [store])
    assert {str(task.task): task.status for task in other.tasks("one")}["break[2]"] == "completed"
    assert [a.number for a in other.attempts("one", "break")] == [1, 2]


def test_tasks_that_a_resumed_run_does_not_have_any_more_do_not_come_back(
    store: Store, catalog: Catalog, other: Catalog
) -> None:
    row = a_run(store, catalog, "one")
    catalog.forget([TaskId(run="one", step="make", index=2)])
    record_ending(row, catalog, store)
    rebuild(other, [store])
    assert content(other) == content(catalog)


def test_results_that_outlive_their_run_are_found_again(
    store: Store, catalog: Catalog, other: Catalog
) -> None:
    a_run(store, catalog, "one")
    two = a_run(store, catalog, "two")
    origin = ("one", "make", 2, 2)
    catalog.record([TaskRow(task=TaskId(run="two", step="make", index=2), status="completed", origin=origin)])
    record_ending(two, catalog, store)
    collect(store, catalog, forget=["one"])
    assert rebuild(other, [store]).runs == 1
    assert other.find_results("k", store=store.address) == catalog.find_results("k", store=store.address)
    assert TaskId(run="one", step="make", index=2) in [task for task, _ in other.find_results("k")]
    assert content(other) == content(catalog)


def test_a_run_that_was_resumed_meanwhile_is_left_to_whoever_works_on_it(
    store: Store, catalog: Catalog
) -> None:
    row = a_run(store, catalog, "one")
    a_run(store, catalog, "two")

    def resume(what: str, done: int, of: int | None) -> None:
        if done == 1:  # the records of the first one were read
            assert store.claim_run("one")
            catalog.add_run(attrs.evolve(row, status="running", ended=None))

    with store.claims.held():
        rebuild(catalog, [store], resume)
    assert {row.id: row.status for row in catalog.runs()} == {"one": "running", "two": "failed"}


def test_an_end_that_only_the_store_has_counts_once_nobody_works_on_the_run(
    store: Store, catalog: Catalog
) -> None:
    row = a_run(store, catalog, "one")
    before = content(catalog)
    catalog.add_run(attrs.evolve(row, status="running", ended=None))
    with Lease("one", store.address):
        rebuild(catalog, [store])
        assert catalog.run("one").status == "running"
    rebuild(catalog, [store])
    assert content(catalog) == before


def test_of_a_run_that_another_home_works_on_a_given_up_attempt_hides_no_later_one(
    store: Store, catalog: Catalog
) -> None:
    row = RunRow(
        id="r",
        pipeline="p",
        status="running",
        target="here",
        store=store.address,
        started=1.0,
        user="ada",
        tags=(),
        source={"engine": "another home"},
        params={},
    )
    store.write_record("r", "run.json", to_json(row))

    def spec(index: int, attempt: int) -> TaskSpec:
        made = TaskSpec(
            task=TaskId(run="r", step="one", index=index),
            attempt=attempt,
            pipeline="p",
            entry=EntryPoint(module="m", qualname="f"),
            code=Code(project="/p"),
            store=store.address,
            backend="slurm",
        )
        store.write_spec(made)
        return made

    given_up, completed, waiting = spec(0, 1), spec(0, 2), spec(1, 1)
    store.log_path(given_up.task, 1).write_text("it had begun\n")
    store.create_result(
        TaskResult(
            task=completed.task,
            attempt=2,
            status="completed",
            started=3.0,
            ended=4.0,
            node="n",
            backend="slurm",
        )
    )
    bring_in("r", catalog, store)
    assert {(task.task.index, task.status) for task in catalog.tasks("r")} == {
        (0, "completed"),
        (1, "pending"),
    }
    assert {(a.task.index, a.number, a.status) for a in catalog.attempts("r")} == {
        (0, 2, "completed"),
        (waiting.task.index, 1, "pending"),
    }


def test_of_a_run_that_another_home_has_resumed_tasks_are_still_to_be_done_and_stand_as_their_new_attempts(
    store: Store, catalog: Catalog
) -> None:
    row = attrs.evolve(a_run(store, catalog, "one"), source={"engine": "another home"})
    catalog.add_run(row)
    broken = TaskId(run="one", step="break", index=2)

    def stands() -> dict[str, str]:
        bring_in("one", catalog, store)
        return {str(task.task): task.status for task in catalog.tasks("one")}

    store.write_record("one", "run.json", to_json(attrs.evolve(row, status="running", ended=None)))
    waits = {"break[2]": "pending", "never": "pending", "skip": "pending"}
    done = {"make[2]": "completed", "reuse": "completed"}
    assert stands() == stands() == {**done, **waits}
    spec = TaskSpec(
        task=broken,
        attempt=2,
        pipeline="p",
        entry=EntryPoint(module="m", qualname="f"),
        code=Code(project="/p"),
        store=store.address,
        backend="slurm",
    )
    store.write_spec(spec)
    store.log_path(broken, 2).write_text("it had begun\n")
    assert stands() == stands() == {**done, **waits, "break[2]": "running"}
    store.create_result(TaskResult(task=broken, attempt=2, status="completed", key="b"))
    assert stands() == stands() == {**done, **waits, "break[2]": "completed"}
    assert [(a.number, a.status) for a in catalog.attempts("one", "break")] == [
        (1, "failed"),
        (2, "completed"),
    ]


def test_a_record_that_cannot_be_read_is_named_and_the_others_come_back(
    store: Store, catalog: Catalog, other: Catalog
) -> None:
    a_run(store, catalog, "one")
    a_run(store, catalog, "two")
    store.write_record("one", "run.json", b"{torn")
    rebuilt = rebuild(other, [store])
    assert list(rebuilt.damaged) == ["one"]
    assert rebuilt.kept == ()
    assert [row.id for row in other.runs()] == ["two"]
    before = content(catalog)
    assert rebuild(catalog, [store]).kept == ("one",)
    assert content(catalog) == before


def test_one_that_is_gone_is_made_by_whoever_opens_it(
    store: Store, file: Catalog, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a_run(store, file, "one")
    before = content(file)
    file.close()
    for path in tmp_path.glob("catalog.db*"):
        path.unlink()
    assert capfd.readouterr().err == ""
    configuration = Configuration(catalog=str(file.place), store=store.address)
    both = threading.Barrier(2)

    def opened(_: int) -> list[object]:
        both.wait()
        with contextlib.closing(open_catalog(configuration)) as anew:
            return content(anew)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(opened, range(2))) == [before, before]
    said = capfd.readouterr().err
    assert f"no catalog {file.place}; it is rebuilt from the store {store.address}: 1 run\n" in said
    assert [path.name for path in tmp_path.iterdir() if "catalog" in path.name] == ["catalog.db"]
    assert opened_again(configuration) == before
    assert capfd.readouterr().err == "", "it is made once"


def opened_again(configuration: Configuration) -> list[object]:
    with contextlib.closing(open_catalog(configuration)) as catalog:
        return content(catalog)


def test_a_new_one_says_what_it_lacks(
    store: Store, file: Catalog, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for run in ("one", "two"):
        a_run(store, file, run)
    store.write_record("one", "run.json", b"{torn")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "runs").symlink_to("runs")
    targets = {"bad": Target(name="bad", backend="local", store=str(tmp_path / "bad"))}
    configuration = Configuration(catalog=str(tmp_path / "new.db"), store=store.address, targets=targets)
    with contextlib.closing(open_catalog(configuration)) as anew:
        assert [row.id for row in anew.runs()] == ["two"]
    said = capfd.readouterr().err
    assert "records of 1 of them cannot be read; upshift gc --rebuild-catalog says which" in said
    assert f"the catalog lacks runs of the store {tmp_path / 'bad'}: " in said


def test_a_first_run_makes_no_catalog_anew(
    store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    row = RunRow(id="one", pipeline="p", status="running", target="t", store=store.address, started=1.0)
    with store.claims.held(), store.claims.claimed("run:one"):
        store.write_record("one", "run.json", to_json(row))
        configuration = Configuration(catalog=str(tmp_path / "new.db"), store=store.address)
        with contextlib.closing(open_catalog(configuration)) as anew:
            assert anew.runs() == []
    assert capfd.readouterr().err == ""


def test_only_a_damaged_catalog_is_put_aside(store: Store, file: Catalog, tmp_path: Path) -> None:
    a_run(store, file, "one")
    assert put_aside_if_damaged(file) is None
    file.close()
    for number in range(2):
        file.place.write_bytes(b"no database" * 500)
        aside = put_aside_if_damaged(file)
        assert aside == tmp_path / f"catalog.db.old{number or ''}"
        assert aside.read_bytes().startswith(b"no database")
        assert rebuild(file, [store]).runs == 1
        file.close()


def test_a_catalog_of_a_newer_version_is_left_alone(file: Catalog) -> None:
    newer = SqliteDatabase(file.place, (*MIGRATIONS, ("CREATE TABLE novelty (x)",)))
    newer.query("SELECT 1")
    newer.close()
    with pytest.raises(ConfigError, match="newer version"):
        put_aside_if_damaged(file)
    assert file.place.exists()


def test_a_catalog_that_cannot_be_opened_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "catalog.db"
    folder.mkdir()
    with pytest.raises(StoreUnavailable):
        put_aside_if_damaged(Catalog(folder))
    assert folder.is_dir()
