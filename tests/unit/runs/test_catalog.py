"""What can be relied on of the catalog."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from upshift.errors import ConfigError, NotFound, StoreError, StoreUnavailable
from upshift.model.configuration import Configuration
from upshift.model.spec import Artifact, Failure, Hardware, TaskId, TaskResult
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.database import Database, Migrations, Server, SqliteDatabase
from upshift.runs.catalog.opening import open_catalog
from upshift.runs.catalog.postgres import PostgresDatabase
from upshift.runs.catalog.rows import MIGRATIONS, AttemptRow, RunRow, TaskRow

VALUE = Artifact(digest="blake3:" + "0" * 64, serializer="json", type="int", bytes=1, inline="MQ==")


@pytest.fixture
def catalog(new_place: Callable[[str], Path | Server]) -> Iterator[Catalog]:
    with contextlib.closing(Catalog(new_place("deep/catalog.db"))) as catalog:
        yield catalog


@pytest.fixture
def file(tmp_path: Path) -> Catalog:
    """A catalog of which SQLite's own matters."""
    return Catalog(tmp_path / "deep" / "catalog.db")


def database(place: Path | Server, migrations: Migrations) -> contextlib.closing[Database]:
    kind = SqliteDatabase if isinstance(place, Path) else PostgresDatabase
    return contextlib.closing(kind(place, migrations))


def version(database: Database) -> int:
    sqlite = isinstance(database, SqliteDatabase)
    return database.query("PRAGMA user_version" if sqlite else "SELECT version FROM catalog")[0][0]


def run_row(id: str = "one", *, started: float = 1.0, **fields: object) -> RunRow:
    known: dict[str, object] = {"pipeline": "p", "status": "running", "target": "local", "store": "/store"}
    return RunRow(id=id, started=started, **{**known, **fields})  # type: ignore[arg-type]


def completed(
    run: str, *, index: int | None = None, attempt: int = 1, key: str | None = "k", ended: float = 2.0
):
    task = TaskId(run=run, step="train", index=index)
    result = TaskResult(
        task=task,
        attempt=attempt,
        status="completed",
        outputs={"output": VALUE},
        ended=ended,
        key=key,
        used=Hardware(cpu_count=0.5, memory=100, details={"peak": 1}),
    )
    row = AttemptRow(
        task=task, number=attempt, status="completed", backend="local", ended=ended, result=result
    )
    return TaskRow(task=task, status="completed", key=key), row


def test_nothing_is_made_before_it_is_used(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "home" / "catalog.db")
    assert not (tmp_path / "home").exists()
    assert catalog.runs() == []
    assert [path.name for path in (tmp_path / "home").iterdir() if "db-" not in path.name] == ["catalog.db"]


def test_a_run_comes_back_as_it_was(catalog: Catalog) -> None:
    row = run_row(
        ended=3.5,
        user="ada",
        tags=("a", "ü"),
        source={"file": "/x/y.py", "pipeline": "p", "cwd": None},
        params={"lr": {"digest": "sha256:0"}},
    )
    catalog.add_run(row)
    assert catalog.run("one") == row


def test_tasks_and_attempts_come_back_as_they_were(catalog: Catalog) -> None:
    whole, attempt = completed("one")
    mapped = [
        TaskRow(
            task=TaskId(run="one", step="score", index=index),
            status="completed",
            cached=True,
            cache_reason="the same",
            origin=("zero", "train", None, 2),
        )
        for index in (0, 1, 10, 2)
    ]
    lost = AttemptRow(
        task=TaskId(run="one", step="test"),
        number=1,
        status="failed",
        backend="slurm",
        reason="preempted",
        handle="42",
        node="n1",
        started=1.0,
        failure=Failure(reason="preempted", message="the node went away"),
    )
    catalog.record([whole, *mapped], [lost, attempt])
    assert catalog.tasks("one") == [mapped[0], mapped[1], mapped[3], mapped[2], whole]
    assert catalog.tasks("one", "train") == [whole]
    assert catalog.tasks("one", "tra") == []
    assert catalog.attempts("one") == [lost, attempt]


def test_a_task_that_is_recorded_again_has_its_new_status_only(catalog: Catalog) -> None:
    for index in (None, 3):
        task = TaskId(run="one", step=f"train{index}", index=index)
        for status in ("pending", "running", "completed"):
            catalog.record(
                [TaskRow(task=task, status=status)],
                [AttemptRow(task=task, number=1, status=status, backend="local")],
            )
    assert [row.status for row in catalog.tasks("one")] == ["completed", "completed"]
    assert [row.status for row in catalog.attempts("one")] == ["completed", "completed"]


def test_a_mapped_step_is_its_items_once_they_are_known(catalog: Catalog) -> None:
    lone = TaskRow(task=TaskId(run="one", step="train"), status="failed")
    catalog.record([lone])
    assert catalog.tasks("one") == [lone]
    assert catalog.counts("one") == [("train", "failed", 1, 0)]
    items = [completed("one", index=index)[0] for index in (0, 1)]
    catalog.record([*items, TaskRow(task=TaskId(run="one", step="x"), status="pending")])
    assert catalog.tasks("one", "train") == items
    assert catalog.counts("one") == [("train", "completed", 2, 0), ("x", "pending", 1, 0)]


def test_one_bad_row_leaves_nothing_of_its_transaction(catalog: Catalog) -> None:
    good, attempt = completed("one")
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        catalog.record([good], [AttemptRow(task=good.task, number=1, status=None, backend="local")])  # type: ignore[arg-type]
    assert catalog.tasks("one") == []
    catalog.record([good], [attempt])
    assert catalog.tasks("one") == [good]


def test_results_are_found_by_key_newest_first(catalog: Catalog) -> None:
    catalog.add_run(run_row("here", store="/here"))
    catalog.add_run(run_row("there", store="/there"))
    for run, index, ended in (("here", 1, 5.0), ("there", None, 9.0), ("here", 2, 7.0)):
        task, attempt = completed(run, index=index, ended=ended)
        catalog.record([task], [attempt])
    other, attempt = completed("here", index=3, key=None)
    catalog.record([other], [attempt])
    found = catalog.find_results("k")
    assert [(task.run, task.index, number) for task, number in found] == [
        *(("there", None, 1), ("here", 2, 1), ("here", 1, 1)),
    ]
    assert [task.index for task, _ in catalog.find_results("k", store="/here")] == [2, 1]
    assert catalog.find_results("other") == []


def test_a_failed_attempt_is_not_found_by_key(catalog: Catalog) -> None:
    task = TaskId(run="one", step="train")
    failed = TaskResult(task=task, attempt=1, status="failed", key="k")
    catalog.record([], [AttemptRow(task=task, number=1, status="failed", backend="local", result=failed)])
    assert catalog.find_results("k") == []


def test_results_are_found_through_an_index(file: Catalog) -> None:
    file.runs()
    plan = file._database.query("EXPLAIN QUERY PLAN SELECT run FROM attempts WHERE key = ?", ("k",))
    assert "attempts_by_key" in str(plan)


def test_a_run_is_named_by_id_prefix_or_latest(catalog: Catalog) -> None:
    for number, id in enumerate(("abc1", "abc2", "abc", "x_y")):
        catalog.add_run(run_row(id, started=float(number)))
    assert catalog.run("latest").id == "x_y"
    assert catalog.run("x").id == "x_y"
    assert catalog.run("abc").id == "abc"
    with pytest.raises(NotFound) as ambiguous:
        catalog.run("ab")
    assert "'ab' is the beginning of several runs" in str(ambiguous.value)
    assert "abc, abc2, abc1" in str(ambiguous.value)
    for ref in ("", "%", "x%", "nothing"):
        with pytest.raises(NotFound, match="upshift runs lists the runs"):
            catalog.run(ref)


def test_without_runs_there_is_no_latest(catalog: Catalog) -> None:
    with pytest.raises(NotFound, match="there is no run yet"):
        catalog.run("latest")


def test_runs_are_listed_newest_first_and_by_what_is_given(catalog: Catalog) -> None:
    catalog.add_run(run_row("a", started=1.0, user="ada", tags=("night", "gpu")))
    catalog.add_run(run_row("b", started=3.0, user="bob", tags=("night",)))
    catalog.add_run(run_row("c", started=2.0, user="ada", pipeline="q"))

    def ids(**given: object) -> list[str]:
        return [row.id for row in catalog.runs(**given)]  # type: ignore[arg-type]

    assert ids() == ["b", "c", "a"]
    assert ids(limit=2) == ["b", "c"]
    assert ids(limit=0) == []
    assert ids(user="ada") == ["c", "a"]
    assert ids(tag="night") == ["b", "a"]
    assert ids(tag="nigh") == []
    assert ids(pipeline="p", user="ada", tag="gpu") == ["a"]


def test_ten_thousand_runs_are_listed_without_sorting(file: Catalog) -> None:
    rows = [
        run_row(f"run{number:05}", started=float(number), tags=(f"t{number}",)) for number in range(10_000)
    ]
    from upshift.runs.catalog import catalog as module
    from upshift.runs.catalog.rows import run_values

    with file._database.writing() as connection:
        connection.executemany(module._PUT_RUN, map(run_values, rows))
    listed = file.runs()
    assert listed == rows[::-1]
    plan = file._database.query("EXPLAIN QUERY PLAN SELECT id FROM runs ORDER BY started DESC, rowid DESC")
    assert "runs_by_start" in str(plan)
    assert "TEMP B-TREE" not in str(plan)


def test_a_run_changes_its_status(catalog: Catalog) -> None:
    catalog.add_run(run_row())
    catalog.update_run("one", status="failed", ended=9.0)
    assert (catalog.run("one").status, catalog.run("one").ended) == ("failed", 9.0)
    catalog.update_run("one", status="running")
    assert catalog.run("one").ended is None
    with pytest.raises(NotFound, match="no run has an id that starts with 'two'"):
        catalog.update_run("two", status="failed")


WRITER = """
import sys
from upshift.model.spec import TaskId, TaskResult
from upshift.runs.catalog.catalog import Catalog, catalog_place
from upshift.runs.catalog.rows import AttemptRow, RunRow, TaskRow

catalog, run = Catalog(catalog_place(sys.argv[1])), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
catalog.add_run(RunRow(id=run, pipeline="p", status="running", target="local", store="/s", started=1.0))
for index in range(100):
    task = TaskId(run=run, step="train", index=index)
    result = TaskResult(task=task, attempt=1, status="completed", key=run)
    attempt = AttemptRow(task=task, number=1, status="completed", backend="local", result=result)
    catalog.record([TaskRow(task=task, status="completed")], [attempt])
    assert len(catalog.tasks(run)) == index + 1
catalog.update_run(run, status="completed", ended=1.0)
"""


def test_several_processes_make_and_write_one_catalog_at_once(catalog: Catalog) -> None:
    place = catalog.place
    address = str(place) if isinstance(place, Path) else place.url
    names = [f"run{number}" for number in range(4)]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, address, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in names
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0] * 4
    assert {row.id: row.status for row in catalog.runs()} == dict.fromkeys(names, "completed")
    assert [len(catalog.attempts(name)) for name in names] == [100] * 4
    if isinstance(place, Path):
        assert [name for name in os.listdir(place.parent) if name.startswith(".")] == []


def test_a_forked_child_uses_a_connection_of_its_own(catalog: Catalog) -> None:
    catalog.add_run(run_row("parent"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            catalog.add_run(run_row("child"))
            code = 0 if len(catalog.runs()) == 2 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    catalog.add_run(run_row("parent2"))
    assert {row.id for row in catalog.runs()} == {"parent", "child", "parent2"}


def test_a_catalog_of_an_earlier_version_is_migrated_and_keeps_its_rows(catalog: Catalog) -> None:
    catalog.add_run(run_row())
    assert version(catalog._database) == len(MIGRATIONS)
    next_version = (
        *MIGRATIONS,
        ("ALTER TABLE runs ADD COLUMN note TEXT", "UPDATE runs SET note = 'kept ' || id"),
    )
    with database(catalog.place, next_version) as migrated:
        assert migrated.query("SELECT note FROM runs") == [("kept one",)]
        assert version(migrated) == len(MIGRATIONS) + 1


def test_a_migration_that_fails_changes_nothing(catalog: Catalog) -> None:
    catalog.add_run(run_row())
    broken = (*MIGRATIONS, ("ALTER TABLE runs ADD COLUMN note TEXT", "UPDATE nothing SET note = 1"))
    failures = (sqlite3.OperationalError, psycopg.errors.UndefinedTable)
    with database(catalog.place, broken) as attempted, pytest.raises(failures, match="nothing"):
        attempted.query("SELECT 1")
    assert catalog.run("one").id == "one"
    assert version(catalog._database) == len(MIGRATIONS)


def test_a_newer_catalog_is_refused(catalog: Catalog) -> None:
    with database(catalog.place, (*MIGRATIONS, ("CREATE TABLE novelty (x INTEGER)",))) as newer:
        newer.query("SELECT x FROM novelty")
    for refuse in (catalog.runs, catalog.check):
        with pytest.raises(ConfigError) as refused:
            refuse()
        assert "was made by a newer version of Upshift" in str(refused.value)
        assert "pip install --upgrade upshift" in str(refused.value)


def test_a_damaged_catalog_says_how_to_rebuild_it(file: Catalog) -> None:
    file.place.parent.mkdir()
    file.place.write_bytes(b"this was a database once" * 400)
    with pytest.raises(StoreError) as damaged:
        file.runs()
    assert f"the catalog {file.place} is damaged" in str(damaged.value)
    assert "upshift gc --rebuild-catalog" in str(damaged.value)


def test_a_home_that_is_a_file_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable) as refused:
        Catalog(tmp_path / "file" / "catalog.db").runs()
    assert str(tmp_path / "file" / "catalog.db") in str(refused.value)
    assert "File exists" in str(refused.value)
    assert "UPSHIFT_HOME" in str(refused.value)


def test_a_full_disk_is_told_and_loses_nothing_that_was_recorded(file: Catalog) -> None:
    file.add_run(run_row())
    file._database.query("PRAGMA max_page_count = 12")
    with pytest.raises(StoreUnavailable, match="The disk is full"):
        file.record([completed("one", index=index)[0] for index in range(10_000)])
    file.close()
    assert file.run("one").id == "one"
    assert file.tasks("one") == []
    file.record([completed("one")[0]])


@pytest.fixture
def read_only(file: Catalog, tmp_path: Path) -> Iterator[Path]:
    """The catalog's folder, where it can only be read."""
    view = tmp_path / "view"
    view.mkdir()
    file.check()  # which makes it
    bind = ["mount", "--bind", file.place.parent, view]
    if os.getuid() != 0 or subprocess.run(bind, capture_output=True).returncode:
        pytest.skip("mounting a folder is not permitted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", view], check=True)
        yield view
    finally:
        subprocess.run(["umount", "--lazy", view], check=True)


def test_a_catalog_that_can_only_be_read_shows_what_its_owner_adds(file: Catalog, read_only: Path) -> None:
    file.add_run(run_row("first"))
    file.close()
    seen = Catalog(read_only / "catalog.db")
    assert [run.id for run in seen.runs()] == ["first"]
    with pytest.raises(StoreUnavailable, match="It cannot be written"):
        seen.add_run(run_row("second"))
    file.add_run(run_row("second", started=2.0))
    assert [run.id for run in seen.runs()] == ["second", "first"]
    file.close()
    assert [run.id for run in seen.runs()] == ["second", "first"]
    seen.close()


def test_the_catalog_is_where_the_configuration_says(tmp_path: Path, upshift_home: Path) -> None:
    assert open_catalog(Configuration()).place == upshift_home / "catalog.db"
    for address in (str(tmp_path / "c.db"), f"sqlite://{tmp_path}/c.db"):
        assert open_catalog(Configuration(catalog=address)).place == tmp_path / "c.db"


@pytest.mark.parametrize("address", ["mysql://host/db", "sqlite://", "postgresql:/host/db?x://y"])
def test_only_sqlite_and_postgresql_work(address: str) -> None:
    with pytest.raises(ConfigError, match="only SQLite and PostgreSQL work"):
        open_catalog(Configuration(catalog=address))
