"""What a team can rely on of a catalog in PostgreSQL, beside what holds for every catalog."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from test_catalog import completed, run_row

from postgres_here import PostgresHere, postgres_here
from upshift.errors import ConfigError, MissingExtra, StoreUnavailable
from upshift.model.configuration import Configuration
from upshift.model.spec import Failure, TaskId, TaskResult
from upshift.model.spec.telemetry import MetricSummary
from upshift.runs.catalog import catalog as catalogs
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.database import Locked, Server
from upshift.runs.catalog.opening import open_catalog
from upshift.runs.catalog.rows import AttemptRow, TaskRow


@pytest.fixture
def here() -> PostgresHere:
    return postgres_here()


@pytest.fixture
def name(here: PostgresHere) -> Iterator[str]:
    with here.database() as name:
        yield name


@pytest.fixture
def catalog(here: PostgresHere, name: str) -> Iterator[Catalog]:
    with contextlib.closing(Catalog(Server(here.url(name)))) as catalog:
        yield catalog


def refused(address: str) -> str:
    with contextlib.closing(Catalog(Server(address))) as catalog:
        with pytest.raises(StoreUnavailable) as error:
            catalog.runs()
        return str(error.value)


def test_tables_of_the_same_names_in_the_database_are_left_alone(
    here: PostgresHere, name: str, catalog: Catalog
) -> None:
    here.run("CREATE TABLE public.runs (theirs TEXT); INSERT INTO public.runs VALUES ('kept')", name)
    catalog.add_run(run_row())
    assert here.run("SELECT * FROM public.runs", name) == [("kept",)]
    assert here.run("SELECT id FROM upshift.runs", name) == [("one",)]


def test_nothing_is_made_by_a_look_whether_there_is_one(
    here: PostgresHere, name: str, catalog: Catalog
) -> None:
    assert not catalog.exists()
    assert here.run("SELECT 1 FROM pg_namespace WHERE nspname = 'upshift'", name) == []
    assert catalog.runs() == []
    assert catalog.exists()


def test_a_server_that_does_not_run_is_said(here: PostgresHere) -> None:
    said = refused("postgresql://ada@127.0.0.1:1/team")
    assert "the catalog postgresql://ada@127.0.0.1:1/team is not available" in said
    assert "Nothing answers there" in said
    assert "Start PostgreSQL" in said


def test_a_database_that_is_not_there_is_said_with_how_to_make_it(here: PostgresHere) -> None:
    said = refused(here.url("nowhere"))
    assert "It has no such database" in said
    assert "createdb nowhere" in said


def test_a_password_is_taken_from_where_postgresql_has_it_and_never_shown(
    here: PostgresHere, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.run(f"CREATE USER {name} PASSWORD 'gr8-secret'; GRANT CREATE ON DATABASE {name} TO {name}")
    address = f"postgresql://{name}@127.0.0.1:{here.port}/{name}"
    try:
        monkeypatch.delenv("PGPASSWORD", raising=False)
        monkeypatch.setenv("PGPASSFILE", "/nowhere")
        assert "PGPASSFILE" in refused(address)
        wrong = refused(address.replace("@", ":not-it-at-all@"))
        assert "It does not let you in" in wrong
        assert "not-it-at-all" not in wrong
        monkeypatch.setenv("PGPASSWORD", "gr8-secret")
        with contextlib.closing(Catalog(Server(address))) as catalog:
            catalog.add_run(run_row())
            assert "gr8-secret" not in f"{catalog.place} {catalog.place!r}"
        here.run("DROP SCHEMA upshift CASCADE", name)
    finally:
        here.run(f"REVOKE CREATE ON DATABASE {name} FROM {name}; DROP USER {name}")


def test_one_who_may_not_make_tables_is_told_what_to_grant(here: PostgresHere, name: str) -> None:
    here.run(f"CREATE USER {name}")
    try:
        said = refused(here.url(name, user=name))
    finally:
        here.run(f"DROP USER {name}")
    assert "You may not do that there" in said
    assert f"GRANT CREATE ON DATABASE {name}" in said


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ada:pa/ss@host/db",
        "postgresql://ada:pa@ss@host/db",
        "postgresql://ada:pa?ss@host/db",
        "postgresql://ada:pa#ss@host/db",
    ],
)
def test_a_password_that_is_not_escaped_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ConfigError) as error:
        open_catalog(Configuration(catalog=address))
    assert "%40" in str(error.value)
    assert "ss" not in str(error.value).replace("password", "")


def test_an_address_that_postgresql_cannot_read_is_refused() -> None:
    catalog = Catalog(Server("postgresql://h/db?colour=red"))
    with pytest.raises(ConfigError) as error:
        catalog.runs()
    assert "catalog = postgresql://h/db is no address of a database" in str(error.value)
    assert "colour" in str(error.value)


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "upshift.runs.catalog.postgres", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install \"upshift\[postgres\]\""):
        open_catalog(Configuration(catalog="postgresql://host/db"))


def test_psycopg_is_imported_only_where_it_is_asked_for() -> None:
    asked = (
        "import sys\nfrom upshift.model.configuration import Configuration\n"
        "from upshift.runs.catalog.opening import open_catalog\n"
        "open_catalog(Configuration()).runs()\nassert 'psycopg' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", asked], check=True, timeout=60)


def test_a_writer_waits_for_another_one_as_long_as_it_is_told_to(catalog: Catalog) -> None:
    catalog.add_run(run_row())
    with contextlib.closing(Catalog(catalog.place)) as other, catalog._database.writing():
        with other.without_waiting(), pytest.raises(Locked, match="writing to it for too long"):
            other.add_run(run_row("two"))
        assert [row.id for row in other.runs()] == ["one"], "readers wait for nobody"
    catalog.add_run(run_row("two"))


def test_a_connection_that_was_lost_between_two_uses_is_made_again(
    here: PostgresHere, name: str, catalog: Catalog
) -> None:
    def lose() -> None:
        here.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")

    catalog.add_run(run_row())
    lose()
    assert [row.id for row in catalog.runs()] == ["one"]
    lose()
    catalog.add_run(run_row("two"))
    assert catalog.count() == 2


def test_what_was_lost_in_the_middle_of_a_transaction_has_not_happened(
    here: PostgresHere, name: str, catalog: Catalog
) -> None:
    catalog.add_run(run_row())

    def write() -> None:
        with catalog._database.writing() as transaction:
            catalog.put_run(transaction, run_row("two"))
            here.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
            catalog.put_run(transaction, run_row("three"))

    with pytest.raises(StoreUnavailable, match="is not available"):
        write()
    assert [row.id for row in catalog.runs()] == ["one"]


def test_a_new_catalog_is_filled_before_anybody_sees_it(here: PostgresHere, name: str) -> None:
    filling, looked = threading.Event(), threading.Event()

    def fill(new: Catalog) -> None:
        new.replace_runs([("one", run_row(), [completed("one")[0]], [])])
        filling.set()
        assert looked.wait(60)
        new.add_run(run_row("two"))

    place = Server(here.url(name))
    first = Catalog(place, fill=fill)
    made = threading.Thread(target=first.count)
    made.start()
    try:
        assert filling.wait(60)
        assert here.run("SELECT 1 FROM pg_namespace WHERE nspname = 'upshift'", name) == []
    finally:
        looked.set()
        made.join()
    with contextlib.closing(Catalog(place, fill=fill)) as second:
        assert sorted(row.id for row in second.runs()) == ["one", "two"], "and is filled once"
    first.close()


def test_one_that_fails_while_it_is_filled_is_not_there(here: PostgresHere, name: str) -> None:
    def fill(new: Catalog) -> None:
        new.add_run(run_row())
        raise KeyboardInterrupt

    with contextlib.closing(Catalog(Server(here.url(name)), fill=fill)) as catalog:
        with pytest.raises(KeyboardInterrupt):
            catalog.runs()
        assert not catalog.exists()


def test_texts_sort_and_metrics_are_found_as_in_sqlite(catalog: Catalog, tmp_path) -> None:
    """The rules of a language, a NUL in a message and a metric that is no number change nothing."""
    both = [catalog, Catalog(tmp_path / "catalog.db")]
    found = []
    for one in both:
        one.add_run(run_row())
        for step in ("b", "B", "a", "Ä", "ä", "_"):
            task = TaskId(run="one", step=step)
            result = TaskResult(
                task=task,
                attempt=1,
                status="failed",
                failure=Failure(reason="user-error", message="a NUL: \0"),
                metrics={"loss": MetricSummary(last=0.5, count=1, min=0.5, max=0.5)},
            )
            attempt = AttemptRow(task=task, number=1, status="failed", backend="local", result=result)
            one.record([TaskRow(task=task, status="failed")], [attempt])
        found.append((one.tasks("one"), one.attempts("one"), list(one.measures(["one"]))))
    assert len(found[0][2]) == 6
    assert found[0] == found[1]
    both[1].close()


def test_the_name_is_of_any_form_that_libpq_reads() -> None:
    assert str(Server("postgres://ada:x@db.example:5433/team?sslmode=require")) == (
        "postgresql://ada@db.example:5433/team"
    )
    assert str(Server("postgresql:///team?host=/run/postgresql")) == "postgresql:///team"
    assert catalogs.catalog_place("postgres://h/team") == Server("postgres://h/team")
