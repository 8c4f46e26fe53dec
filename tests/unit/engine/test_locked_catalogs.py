"""The catalog is only an index: a run does not need it, and it is brought up to date when it can be."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from engine_kit import Bench

from postgres_here import PostgresHere, postgres_of_its_own
from upshift.engine import gc
from upshift.errors import StoreError
from upshift.model.configuration import load_configuration
from upshift.model.graph import FromStep, Graph, Node
from upshift.runs.catalog import postgres, rebuild
from upshift.runs.catalog.catalog import notes_of_lacking
from upshift.runs.catalog.opening import open_catalog
from upshift.runs.catalog.rebuild import Backlog
from upshift.runs.history.as_json import run_as_json
from upshift.runs.history.runs import Run


@pytest.fixture
def other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """Another process's connection to the catalog, which it is writing to."""
    monkeypatch.setattr(rebuild, "PATIENCE", 0.05)
    monkeypatch.setattr(rebuild, "FINALLY", 0.05)
    bench.catalog.count()  # makes it
    with contextlib.closing(
        sqlite3.connect(bench.catalog.place, isolation_level=None, check_same_thread=False)
    ) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def numbers() -> list[int]:
    return [1, 2, 3]


def square(x: int) -> int:
    return x * x


def graph(bench: Bench) -> Graph:
    definitions = {"numbers": bench.step(numbers), "square": bench.step(square), "total": bench.step(sum_of)}
    mapped = {"x": FromStep(node="numbers")}
    nodes = [
        Node(name="numbers", step="numbers", by_item=("output",)),
        Node(name="square", step="square", inputs=mapped, over=("x",)),
        Node(name="total", step="total", inputs={"values": FromStep(node="square")}),
    ]
    return bench.graph(nodes, definitions, output=FromStep(node="total"))


def sum_of(values: list[int]) -> int:
    return sum(values)


def about(run: Run) -> object:
    return run_as_json(run)


def test_a_run_goes_on_while_another_process_keeps_the_catalog_locked(
    bench: Bench, other: sqlite3.Connection
) -> None:
    run = bench.run(graph(bench))
    assert (run.status, run.output, [len(step) for step in run.steps]) == ("completed", 14, [1, 3, 1])
    assert [step.status for step in run.steps] == ["completed"] * 3
    assert run["square"].tasks[2].attempts[0].status == "completed"
    told = [line for line in bench.watcher.notices if "locked" in line]
    assert len(told) == 1 and "continues" in told[0], told
    assert "still cannot be written and lacks the end of this run" in bench.watcher.notices[-1]
    assert bench.catalog.count() == 0
    expected = about(run)
    configuration = load_configuration()
    with contextlib.closing(open_catalog(configuration)) as early:
        assert early.count() == 0  # it is still locked: that is not waited for
    other.execute("ROLLBACK")
    with contextlib.closing(open_catalog(configuration)) as next_one:
        assert next_one.count() == 1
        assert not list(notes_of_lacking(next_one.place).iterdir())
    assert about(bench.look(run.id)) == expected


def test_a_run_goes_on_when_the_catalog_cannot_be_written_any_more(bench: Bench) -> None:
    full = sqlite3.OperationalError("database or disk is full")
    patch = pytest.MonkeyPatch()

    def fills(values: list[int]) -> int:
        patch.setattr(Backlog, "put", failing(full))
        return sum(values)

    made = graph(bench)
    bench.functions["sum_of"] = fills
    try:
        run = bench.run(made)
        assert (run.status, run.output) == ("completed", 14)
        expected = about(run)
    finally:
        patch.undo()
    assert [line for line in bench.watcher.notices if "The disk is full" in line and "continues" in line]
    with contextlib.closing(open_catalog(load_configuration())) as next_one:
        assert next_one.run(run.id).status == "completed"
    assert about(bench.look(run.id)) == expected


def failing(error: Exception) -> Callable[..., None]:
    def fail(*args: object) -> None:
        raise error

    return fail


def test_what_the_catalog_lacks_is_written_once_it_can_be(bench: Bench, other: sqlite3.Connection) -> None:
    def let_go(values: list[int]) -> int:
        other.execute("ROLLBACK")
        return sum(values)

    made = graph(bench)
    bench.functions["sum_of"] = let_go
    run = bench.run(made)
    assert "is up to date again" in bench.watcher.notices[-1]
    found = bench.look(run.id)
    assert (found.output, about(found)) == (14, about(run))


def test_a_catalog_without_content_is_made_anew(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    run = bench.run(graph(bench))
    bench.catalog.place.write_bytes(b"")
    found = bench.look("latest")
    assert (found.id, found.output) == (run.id, 14)
    assert "it is rebuilt from the store" in capsys.readouterr().err


def overwritten(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwritten_but_for_its_header(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"x" * (path.stat().st_size - 4096))


@pytest.mark.parametrize("damage", [overwritten, cut_in_half, overwritten_but_for_its_header])
def test_a_run_goes_on_when_the_catalog_is_damaged_meanwhile(
    bench: Bench, damage: Callable[[Path], None]
) -> None:
    bench.run(graph(bench))
    run = bench.run(damaged_meanwhile(bench, damage))
    assert (run.status, run.output, [len(step) for step in run.steps]) == ("completed", 14, [1, 3, 1])
    assert run["numbers"].tasks[0].cached  # which was recorded in the catalog only
    assert [task.attempts[0].status for task in run["square"].tasks] == ["completed"] * 3
    expected = about(run)
    assert [line for line in bench.watcher.notices if "damaged" in line and "continues without it" in line]
    assert "upshift gc --rebuild-catalog rebuilds it" in bench.watcher.notices[-1]
    with pytest.raises(StoreError, match="is damaged"):
        bench.look(run.id)  # and does not show half of it
    gc.rebuild_catalog(bench.configuration)
    assert about(bench.look(run.id)) == expected


def test_a_run_is_brought_into_the_catalog_that_somebody_has_made_in_place_of_a_damaged_one(
    bench: Bench,
) -> None:
    def rebuilding(values: list[int]) -> int:
        gc.rebuild_catalog(bench.configuration)
        return sum(values)

    bench.run(graph(bench))
    edited = damaged_meanwhile(bench, overwritten)
    bench.functions["sum_of"] = rebuilding
    run = bench.run(edited)
    assert "is up to date again" in bench.watcher.notices[-1]
    assert (bench.look(run.id).output, about(bench.look(run.id))) == (14, about(run))


def damaged_meanwhile(bench: Bench, damage: Callable[[Path], None]) -> Graph:
    """The graph with a step that was edited, and damages the catalog."""

    def square_it(x: int) -> int:
        if x == 2:
            damage(bench.catalog.place)
        return x * x

    made = graph(bench)
    edited = attrs.evolve(made.steps["square"], code={"steps.square (steps.py)": "code:2"})
    bench.functions["square"] = square_it
    return attrs.evolve(made, steps={**made.steps, "square": edited})


@pytest.fixture(scope="module")
def breakable() -> Iterator[PostgresHere]:
    with postgres_of_its_own() as here:
        yield here


@pytest.fixture
def server(breakable: PostgresHere, bench: Bench) -> Iterator[PostgresHere]:
    """A server that may be stopped, with the catalog of the bench."""
    with breakable.database() as name:
        bench.configuration = attrs.evolve(bench.configuration, catalog=breakable.url(name))
        yield breakable


def when(
    bench: Bench, mapped: Callable[[], None] = lambda: None, last: Callable[[], None] = lambda: None
) -> Graph:
    """The graph, in which something happens in a task of the mapped step, and in the last one."""

    def square_it(x: int) -> int:
        if x == 1:
            mapped()
        return x * x

    def sum_it(values: list[int]) -> int:
        last()
        return sum(values)

    made = graph(bench)
    bench.functions.update(square=square_it, sum_of=sum_it)
    return made


def test_a_server_that_is_restarted_meanwhile_is_not_even_noticed(bench: Bench, server: PostgresHere) -> None:
    run = bench.run(when(bench, lambda: server.control("restart", "--mode=immediate")))
    assert (run.status, run.output, bench.watcher.notices) == ("completed", 14, [])
    found = bench.look(run.id)
    assert (found.output, about(found)) == (14, about(run))


def test_a_run_goes_on_without_its_server_which_is_brought_up_to_date_once_it_is_back(
    bench: Bench, server: PostgresHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_AGAIN", 0.0)
    away, back = (lambda: server.control("stop", "--mode=immediate")), (lambda: server.control("start"))
    run = bench.run(when(bench, away, back))
    assert (run.status, run.output) == ("completed", 14)
    assert [line for line in bench.watcher.notices if "Nothing answers there" in line and "continues" in line]
    assert "is up to date again" in bench.watcher.notices[-1]
    assert about(bench.look(run.id)) == about(run)


def test_a_run_whose_server_stays_away_is_taken_from_the_store_by_the_next_command(
    bench: Bench, server: PostgresHere, upshift_home: Path
) -> None:
    try:
        run = bench.run(when(bench, lambda: server.control("stop", "--mode=immediate")))
        assert (run.status, run.output) == ("completed", 14)
        assert "still cannot be written and lacks the end of this run" in bench.watcher.notices[-1]
        expected = about(run)
        with pytest.raises(StoreError, match="Nothing answers there"):
            bench.look(run.id)
    finally:
        server.control("start")
    with contextlib.closing(open_catalog(bench.configuration)) as next_one:
        assert next_one.run(run.id).status == "completed"
        notes = notes_of_lacking(next_one.place)
    assert notes.parent == upshift_home and not list(notes.iterdir())
    assert about(bench.look(run.id)) == expected


def test_a_run_does_not_begin_without_its_server(bench: Bench) -> None:
    address = "postgresql://127.0.0.1:1/team"
    bench.configuration = attrs.evolve(bench.configuration, catalog=address)
    with pytest.raises(StoreError, match=f"the catalog {address} is not available"):
        bench.run(graph(bench))
    assert bench.ran() == []
