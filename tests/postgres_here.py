"""The PostgreSQL that ``make engines`` starts, for tests; and one of its own for a test that breaks it."""

from __future__ import annotations

import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from upshift.runs.catalog.database import Server

FOLDER = Path("/run/upshift-engines/postgres")
SCRIPT = Path(__file__).parent / "engines" / "postgres"


@attrs.frozen
class PostgresHere:
    """A server."""

    folder: Path = FOLDER
    port: int = 16832

    def url(self, database: str, *, user: str = "upshift") -> str:
        """The address of a database, through the socket, where nobody is asked for a password."""
        return f"postgresql://{user}@/{database}?host={self.folder}&port={self.port}"

    def run(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Do this beside what is tested."""
        import psycopg

        with closing(psycopg.connect(self.url(database), autocommit=True)) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self) -> Iterator[str]:
        """The name of an empty database."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    @property
    def answers(self) -> bool:
        """Whether it listens; its socket may be what one that was killed has left."""
        with socket.socket(socket.AF_UNIX) as tried:
            return tried.connect_ex(str(self.folder / f".s.PGSQL.{self.port}")) == 0

    def control(self, *arguments: str) -> None:
        """``pg_ctl`` for this server."""
        program = max(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
        command = [program, f"--pgdata={self.folder}/data", "--silent", "--wait", *arguments]
        done = subprocess.run(
            ["runuser", "-u", "postgres", "--", *command],
            cwd="/",
            stdout=subprocess.DEVNULL,  # which the server would keep open
            stderr=subprocess.DEVNULL,
            timeout=120,
        )
        assert done.returncode == 0, command


def postgres_here() -> PostgresHere:
    """The shared server; the test is skipped where there is none."""
    here = PostgresHere()
    if not here.answers:
        pytest.skip("PostgreSQL does not run: make engines")
    return here


@contextmanager
def postgres_of_its_own() -> Iterator[PostgresHere]:
    """A server that a test may break."""
    postgres_here()
    here = PostgresHere(FOLDER.with_name(f"postgres-{uuid.uuid4().hex[:8]}"))
    try:
        subprocess.run([SCRIPT, "start", here.folder], check=True, capture_output=True, timeout=120)
        yield here
    finally:
        subprocess.run([SCRIPT, "stop", here.folder], check=True, capture_output=True, timeout=120)


@pytest.fixture(params=["sqlite", "postgresql"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Path | Server]]:
    """What gives new catalogs a place: with SQLite a file of this name, with PostgreSQL a database."""
    if request.param == "sqlite":
        yield lambda name: tmp_path / name
        return
    here = postgres_here()
    with ExitStack() as stack:
        yield lambda name: Server(here.url(stack.enter_context(here.database())))
