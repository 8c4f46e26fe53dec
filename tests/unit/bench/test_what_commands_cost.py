"""What a command costs counts everything that it has started, also what outlives it."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.harness import program

DAEMON = """
import os, time
print("begun", flush=True)
if os.fork() == 0:
    os.setsid()
    while time.process_time() < 0.5:
        pass
"""


def test_a_process_that_outlives_the_command_counts(tmp_path: Path) -> None:
    found = program("cost", sys.executable, "-c", DAEMON, home=tmp_path)
    assert found["output"] == "begun\n"
    assert found["cpu"] > 0.5
