"""What the machine itself needs, without Upshift: forks, commits, files."""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path


def fork_seconds(times: int = 50) -> float:
    """Median of fork, exit and wait of this very process."""
    return statistics.median(_fork() for _ in range(times))


def _fork() -> float:
    start = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return time.perf_counter() - start


def forks_per_second(at_once: int, total: int = 400) -> float:
    """Forks of this process that end in a second, with so many of them alive at a time."""
    start = time.perf_counter()
    alive = 0
    for _ in range(total):
        if alive == at_once:
            os.wait()
            alive -= 1
        if os.fork() == 0:
            os._exit(0)
        alive += 1
    for _ in range(alive):
        os.wait()
    return total / (time.perf_counter() - start)


def commit_seconds(times: int = 300) -> float:
    """Median of inserting and committing one row in SQLite, in WAL mode as the catalog is."""
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder, "floor.db"), isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
        took = []
        for _ in range(times):
            start = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO t (b) VALUES (?)", ("x" * 500,))
            connection.execute("COMMIT")
            took.append(time.perf_counter() - start)
        connection.close()
    return statistics.median(took)


def rename_seconds(times: int = 300) -> float:
    """Median of writing a file of 1 kB and renaming it."""
    took = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(times):
            start = time.perf_counter()
            temporary = os.path.join(folder, "temporary")
            with open(temporary, "wb") as file:
                file.write(b"x" * 1000)
            os.rename(temporary, os.path.join(folder, str(number)))
            took.append(time.perf_counter() - start)
    return statistics.median(took)
