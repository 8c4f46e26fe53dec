"""SIGKILL an engine, a supervisor or a step on Slurm at any instant: the run ends as an undisturbed one.

``UPSHIFT_TEST_KILLS=100 make test ARGS=tests/chaos/test_slurm_kills.py`` kills more often.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from test_kills import check
from victims import SOURCE, children, kill, seeds, start

import upshift
from prepared import Prepared
from slurm_here import slurm_here

KILLS = int(os.environ.get("UPSHIFT_TEST_KILLS", 6))
"""Of each seed."""


@pytest.mark.timeout(240 + 10 * KILLS)
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_a_run_on_slurm_that_is_killed_again_and_again_ends_as_an_undisturbed_one(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Prepared
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm_here().environment["SLURM_CONF"])
    chance = random.Random(seed)
    (tmp_path / "squares.py").write_text(SOURCE)
    (tmp_path / "witness").mkdir()
    story, killed, run = [f"seed {seed}"], 0, None
    while True:
        arguments = ["resume", run] if run else ["run", "squares.py", "--on", "slurm", "--no-cache"]
        process = start(prepared, tmp_path, *arguments)
        output = ""
        while killed < KILLS and process.returncode is None:
            try:
                output, _ = process.communicate(timeout=chance.uniform(0.5, 4))
            except subprocess.TimeoutExpired:
                supervisors = at_work(tmp_path)
                found = {
                    "engine": [process.pid],
                    "supervisor": supervisors,
                    "step": [child for supervisor in supervisors for child in children(supervisor)],
                }
                role = chance.choice(["engine", "supervisor", "step"])
                if found[role] and kill(chance.choice(found[role])):
                    killed += 1
                    story.append(f"killed a {role}")
                    if role == "engine":
                        output, _ = process.communicate(timeout=60)
        if process.returncode is None:
            output, _ = process.communicate(timeout=180)
        story.append(f"exit {process.returncode}: {output[-300:]}")
        known = upshift.list_runs()
        run = known[0].id if known else None
        if process.returncode == 0:
            check(tmp_path, run, story)
            run = None
            if killed >= KILLS:
                return
        assert len(story) < 20 + 10 * KILLS, story


def at_work(folder: Path) -> list[int]:
    """The supervisors on all nodes, which are on this machine, of tasks of this home."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            if b"--scheduled" in command and any(os.fsencode(folder) in word for word in command[3:]):
                found.append(int(entry.name))
    return found
