"""SIGKILL any process of a training at any instant: each attempt goes on from the newest whole checkpoint."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from victims import kill, seeds, start, victims

import upshift
from prepared import Prepared

KILLS = 8
LAST = 60

# Each process writes down which checkpoint it found, and which it has saved. One that is not whole is of
# different epochs, or lacks a file.
SOURCE = f"""
import os
from pathlib import Path
from upshift import Retry, current, pipeline, run_with_torchrun, step

RANKS = int(os.environ["RANKS"])
FILES = 4


def note(*words):
    line = " ".join(map(str, (current.run, current.attempt, current.rank, *words))) + "\\n"
    journal = os.open(Path(os.environ["WITNESS"], "journal"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(journal, line.encode())
    os.close(journal)


def found():
    latest = current.checkpoint.latest
    if latest is None:
        return 0
    texts = {{path.name: path.read_text() for path in sorted(latest.iterdir())}}
    names = {{f"{{rank}}-{{number}}" for rank in range(RANKS) for number in range(FILES)}}
    if texts.keys() != names or len(set(texts.values())) != 1:
        note("torn", sorted(texts), set(texts.values()))
    return int(texts["0-0"].split()[0])


def train() -> int:
    epoch = found()
    note("found", epoch)
    while epoch < {LAST}:
        epoch += 1
        with current.checkpoint.save() as folder:
            for number in range(FILES):
                (folder / f"{{current.rank}}-{{number}}").write_text(f"{{epoch}} " * 1000)
        note("saved", epoch)
    return epoch


train = step(train, retries=Retry(times=1000))
if RANKS > 1:
    train = run_with_torchrun(nproc_per_node=RANKS)(train)


@pipeline
def training():
    return train()
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_training_that_is_killed_again_and_again_loses_nothing_that_was_saved(
    seed: int, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Prepared
) -> None:
    monkeypatch.setenv("RANKS", str(ranks))
    chance = random.Random(seed)
    (tmp_path / "training.py").write_text(SOURCE)
    (tmp_path / "witness").mkdir()
    story = [f"seed {seed}, {ranks} ranks"]
    killed, run = 0, None
    while True:
        process = start(
            prepared, tmp_path, *(["resume", run] if run else ["run", "training.py", "--no-cache"])
        )
        while process.returncode is None:
            try:
                output, _ = process.communicate(timeout=chance.uniform(0.05, 0.9) if killed < KILLS else 90)
            except subprocess.TimeoutExpired:
                role = chance.choice(["engine", "fork server", "zygote", "step", "step", "step"])
                there = victims(process.pid)[role]
                if there and kill(chance.choice(there)):
                    killed += 1
                    story.append(f"killed a {role}")
        story.append(f"exit {process.returncode}: {output[-300:]}")
        # A run that was killed before it had recorded itself is none.
        run = next(
            (one.id for one in upshift.list_runs() if one.status != "completed" or one.id == run), None
        )
        assert process.returncode != 2, (output, story)
        if process.returncode == 0:
            check(tmp_path, upshift.get_run("latest").id, ranks, story)
            if killed >= KILLS:
                break
            run = None  # it was faster than whoever kills: once more from the start
        assert len(story) < 300, story
    assert upshift.get_run("latest").output == LAST, story
    assert not list((tmp_path / "home" / "store").glob("checkpoints/*/*/*/*")), story


def check(folder: Path, run: str, ranks: int, story: list[str]) -> None:
    """No attempt found less than the ones before had saved, nor more than they had begun, nor half of it."""
    saved = [0] * ranks
    noted = [line.split() for line in (folder / "witness" / "journal").read_text().splitlines()]
    journal = [words for own, *words in noted if own == run]
    for attempt in sorted({int(line[0]) for line in journal}):
        lines = [line[1:] for line in journal if int(line[0]) == attempt]
        assert not [line for line in lines if line[1] == "torn"], (lines, story)
        found = {int(epoch) for _, word, epoch in lines if word == "found"}
        assert len(found) <= 1, (attempt, lines, story)  # all ranks go on from the same one
        for epoch in found:
            assert min(saved) <= epoch <= min(saved) + 1, (attempt, saved, lines, story)
            saved = [epoch] * ranks
        for rank, word, epoch in lines:
            if word == "saved":
                saved[int(rank)] = int(epoch)
