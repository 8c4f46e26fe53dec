"""``gc`` while runs start and end, and killed at any instant: no live run loses what it needs, no kept one
what it has, and the store does not grow.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from victims import kill, seeds, start, victims

import upshift
from prepared import Prepared
from project import Project

ROUNDS = 8
PIPELINE = """
import time
from upshift import pipeline, step


@step
def numbers(n: int, table: bytes) -> list[bytes]:
    return [bytes([x]) * 5000 for x in range(n)]


@step
def square(x: bytes, salt: int) -> bytes:
    time.sleep(0.005 * (x[0] % 3))
    return bytes([x[0] ** 2]) * 6000 + bytes([salt])


@step
def total(values: list[bytes]) -> int:
    return sum(value[0] for value in values)


@pipeline
def squares(n: int = 6, salt: int = 0):
    return total(square.map(x=numbers(n, bytes([salt]) * 4000), salt=salt))
"""


def expected(n: int) -> int:
    return sum(x**2 for x in range(n))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_runs_are_right_whatever_gc_does_and_however_it_dies(
    seed: int, tmp_path: Path, prepared: Prepared
) -> None:
    chance = random.Random(seed)
    (tmp_path / "squares.py").write_text(PIPELINE)
    story = [f"seed {seed}"]
    for _ in range(ROUNDS):
        sizes = [chance.choice((5, 6)) for _ in range(2)]
        runs = [
            start(
                prepared, tmp_path, "run", "squares.py", "-p", f"n={n}", "-p", f"salt={chance.randrange(3)}"
            )
            for n in sizes
        ]
        killed = chance.random() < 0.4
        collectors = [
            start(prepared, tmp_path, "gc", *chance.choice(((), ("--keep-last", "2")))) for _ in range(2)
        ]
        for process in (*collectors, *(runs[:1] if killed else ())):
            try:
                process.communicate(timeout=chance.uniform(0.1, 0.8))
            except subprocess.TimeoutExpired:
                kill(process.pid if process in collectors else engine_or_server(chance, process.pid))
                process.communicate()
        for process, n in zip(runs, sizes, strict=True):
            output, _ = process.communicate(timeout=60)
            story.append(f"n={n}, exit {process.returncode}: {output[-400:]}")
            assert process.returncode == 0 or (killed and process is runs[0]), story
        finish(prepared, tmp_path, story)
    bounded(prepared, tmp_path, story)


def engine_or_server(chance: random.Random, engine: int) -> int:
    return chance.choice([engine, *victims(engine)["fork server"]])


def finish(prepared: Prepared, folder: Path, story: list[str]) -> None:
    """Every run that is kept can be read, and what was interrupted be finished."""
    for run in upshift.list_runs():
        if run.status != "completed":
            resumed = start(prepared, folder, "resume", run.id)
            output, _ = resumed.communicate(timeout=60)
            story.append(f"resume {run.id}, exit {resumed.returncode}: {output[-400:]}")
            assert resumed.returncode == 0, story
            run = upshift.get_run(run.id)
        assert run.output == expected(run.params["n"]), (run, story)  # type: ignore[arg-type]
        assert len(run["numbers"].output) == run.params["n"], (run, story)  # type: ignore[arg-type]


def bounded(prepared: Prepared, folder: Path, story: list[str]) -> None:
    """One run is kept, with what it needs and nothing else; and what it did is reused."""
    home = Path(os.environ["UPSHIFT_HOME"])
    for _ in range(2):  # what gc found claimed at its beginning goes with the next one
        done = start(prepared, folder, "gc", "--keep-last", "1", "--json")
        output, _ = done.communicate(timeout=60)
        assert done.returncode == 0, (output, story)
    kept = json.loads(output)["kept"]
    assert kept["runs"]["count"] == 1
    (run,) = upshift.list_runs()
    n: int = run.params["n"]  # type: ignore[assignment]
    # Its constant, the list's items and manifest, the squares, and the code package; a run that was
    # resumed may have a second package.
    assert kept["values"]["count"] <= 1 + (n + 1) + n + 2, (kept, story)
    assert os.listdir(home / "store" / "claims") == []
    assert len(list((home / "store" / "runs").iterdir())) <= 1 + 2 * ROUNDS
    again = start(prepared, folder, "run", "squares.py", "-p", f"n={n}", "-p", f"salt={run.params['salt']}")
    output, _ = again.communicate(timeout=60)
    assert again.returncode == 0, output
    newest = upshift.get_run("latest")
    assert newest.output == expected(n)
    assert all(task.cached for step in newest.steps for task in step.tasks), (output, story)


@pytest.mark.timeout(240)
def test_gc_in_a_loop_while_runs_start_and_end(
    tmp_path: Path, upshift_home: Path, prepared: Prepared
) -> None:
    (tmp_path / "squares.py").write_text(PIPELINE)
    project = Project(tmp_path, upshift_home, prepared)
    over = threading.Event()

    def collect() -> None:
        while not over.is_set():
            project.upshift("gc", "--keep-last", "2")

    with ThreadPoolExecutor() as pool:
        collector = pool.submit(collect)
        try:
            for salt in range(12):
                commands = [("squares.py", "-p", f"salt={salt // 2}", "-p", f"n={n}") for n in (5, 6)]
                list(pool.map(lambda command: project.upshift("run", *command), commands))
        finally:
            over.set()
        collector.result()
    finish(prepared, tmp_path, [])
    bounded(prepared, tmp_path, [])
