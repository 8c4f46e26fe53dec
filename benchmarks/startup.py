"""Starting: ``import upshift``, ``upshift --help``, ``upshift runs``, and a run with one trivial step."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from unittest.mock import patch

from benchmarks.harness import PROGRAMS, Effort, Report, Row, Turns, command_seconds, fresh_home

UPSHIFT = str(Path(sys.executable).with_name("upshift"))
RUNS = 10_000


def measure(effort: Effort) -> Report:
    """Whole commands, from the shell's point of view."""
    rounds = effort.rounds(20)
    with fresh_home() as home, fresh_home() as full:
        _fill(full, RUNS)
        trivial = str(PROGRAMS / "trivial.py")
        at, at_full = {"UPSHIFT_HOME": str(home)}, {"UPSHIFT_HOME": str(full)}
        turns = Turns(
            rounds,
            python=lambda: command_seconds(sys.executable, "-c", "pass"),
            attrs=lambda: command_seconds(sys.executable, "-c", "import attrs"),
            imported=lambda: command_seconds(sys.executable, "-c", "import upshift"),
            help=lambda: command_seconds(UPSHIFT, "--help"),
            runs=lambda: command_seconds(UPSHIFT, "runs", env=at_full),
            run=lambda: command_seconds(UPSHIFT, "run", trivial, "--no-cache", env=at),
        )
    return Report(
        title="Starting",
        how=f"Whole commands in turns, {rounds} rounds, medians. `import upshift` and attrs are above bare "
        "Python; the others include Python's own start. The trivial run has no reuse.",
        rows=[
            Row(what="floor: python -c pass", value=1000 * turns.median("python"), unit="ms"),
            Row(
                what="floor: import attrs, above bare Python",
                value=1000 * turns.above("attrs", "python"),
                unit="ms",
            ),
            Row(
                what="import upshift, above bare Python",
                value=1000 * turns.above("imported", "python"),
                unit="ms",
                target=60,
            ),
            Row(what="upshift --help", value=1000 * turns.median("help"), unit="ms", target=120),
            Row(
                what=f"upshift runs, {RUNS:,} runs recorded",
                value=1000 * turns.median("runs"),
                unit="ms",
                target=250,
            ),
            Row(
                what="upshift run, one trivial step", value=1000 * turns.median("run"), unit="ms", target=400
            ),
        ],
    )


def _fill(home: Path, runs: int) -> None:
    from upshift.model.configuration import load_configuration
    from upshift.runs.catalog.opening import open_catalog
    from upshift.runs.catalog.rows import RunRow

    with patch.dict(os.environ, {"UPSHIFT_HOME": str(home)}):
        catalog = open_catalog(load_configuration())
        for number in range(runs):
            catalog.add_run(
                RunRow(
                    id=f"{number:08x}",
                    pipeline="trivial",
                    status="completed",
                    target="local",
                    user="bench",
                    tags=(),
                    started=time.time() - number,
                    ended=time.time() - number + 0.5,
                    store=str(home / "store"),
                    source={},
                    params={},
                )
            )
        catalog.close()
