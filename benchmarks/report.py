"""The report of a large run."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

from benchmarks.harness import Effort, Report, Row, command_seconds, fresh_home
from benchmarks.made_up import large

TASKS = 10_000
SECONDS = 3600
ROUNDS = 5


def measure(effort: Effort) -> Report:
    """Time from the shell, and size of the file."""
    tasks = effort.size(TASKS)
    with fresh_home() as home:
        run = large(home, tasks, SECONDS)
        file = home / "report.html"
        upshift = str(Path(sys.executable).with_name("upshift"))
        env = {"UPSHIFT_HOME": str(home)}
        took = [
            command_seconds(upshift, "report", run.id, "-o", str(file), env=env, cwd=home)
            for _ in range(effort.rounds(ROUNDS))
        ]
        size = os.path.getsize(file)
        elements = _elements(file)
    rows = [
        Row(what="made, from the shell", value=statistics.median(took), unit="s", target=5),
        Row(what="size of the file", value=size / 1e6, unit="MB", target=10),
        Row(what="elements as it opens", value=elements, unit=""),
    ]
    return Report(
        title=f"Report of a run with {tasks:,} tasks and an hour of samples",
        how=f"`upshift report` of a made-up run: {tasks:,} tasks of a mapped step, beside a training on "
        f"eight GPUs that was sampled once a second for {SECONDS:,} s and logged 5,000 times. "
        f"{len(took)} rounds. Elements are those that a browser makes of the file before a reader opens "
        "anything.",
        rows=rows,
    )


def _elements(file: Path) -> int:
    """Elements of the page, without those that are kept as text."""
    from html.parser import HTMLParser

    found = 0

    class Counter(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            nonlocal found
            found += 1

    Counter().feed(file.read_text(encoding="utf-8"))
    return found
