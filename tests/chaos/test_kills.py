"""SIGKILL any process of a run at any instant: what was recorded as done is there and intact, what was
not is run again, and no task ever runs twice at once.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from victims import EXPECTED, SOURCE, kill, seeds, start, victims

import upshift
from prepared import Prepared
from upshift.runtime.storage.store import open_store

KILLS = 10
"""Of each seed."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", seeds(2, 8))
def test_a_run_that_is_killed_again_and_again_ends_as_an_undisturbed_one(
    seed: int, tmp_path: Path, prepared: Prepared
) -> None:
    chance = random.Random(seed)
    (tmp_path / "squares.py").write_text(SOURCE)
    (tmp_path / "witness").mkdir()
    story = [f"seed {seed}"]
    killed, run = 0, None
    while True:
        process = start(
            prepared, tmp_path, *(["resume", run] if run else ["run", "squares.py", "--no-cache"])
        )
        output = ""
        if killed < KILLS:
            try:
                # Most of the time something is killed while tasks run, sometimes during start or end.
                output, _ = process.communicate(timeout=chance.uniform(0.05, 0.9))
            except subprocess.TimeoutExpired:
                role = chance.choice(["engine", "engine", "fork server", "zygote", "step", "step"])
                found = victims(process.pid)[role]
                if found and kill(chance.choice(found)):
                    killed += 1
                    story.append(f"killed a {role}")
        if process.returncode is None:
            output, _ = process.communicate(timeout=60)
        story.append(f"exit {process.returncode}: {output[-300:]}")
        if run is None:
            known = upshift.list_runs()
            run = known[0].id if known else None
        if process.returncode == 0:
            if killed >= KILLS:
                break
            check(tmp_path, run, story)
            run = None  # undisturbed so far: once more from the start
        elif run is not None and "not found" in output.lower():
            run = None  # it was killed before it had recorded itself
        assert len(story) < 300, story
    check(tmp_path, run, story)


def check(folder: Path, run: str | None, story: list[str]) -> None:
    """The result is right, no task ran twice at once, and nothing that was done ran again."""
    found = upshift.get_run(run or "latest")
    assert found.output == EXPECTED, story
    journal = [line.split() for line in (folder / "witness" / "journal").read_text().splitlines()]
    assert not [line for line in journal if line[1] == "twice-at-once"], (journal, story)
    store = open_store(str(folder / "home" / "store"))
    for result in store.results(found.id):
        if result.status != "completed":
            continue
        name = witness_name(result)
        later = [
            line
            for line in journal
            if line[:2] == [name, "start"] and line[3] == found.id and float(line[2]) > result.ended
        ]
        assert not later, (name, result.ended, later, story)


def witness_name(result) -> str:  # type: ignore[no-untyped-def]
    """What a task calls itself in the journal."""
    if result.task.step in ("numbers", "total"):
        return str(result.task.step)
    index = result.task.index
    return f"square-{index}" if result.task.step == "square" else f"shrink-{index * index}"
