"""A trivial step that tries a target: a run like any other, reported line by line."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from upshift.authoring.loading import load_pipeline
from upshift.backends.base import Finding
from upshift.engine import RunOptions
from upshift.errors import RunFailed, UpshiftError
from upshift.model.settings.sizes import format_size
from upshift.model.spec.task import TaskId
from upshift.report import TaskChange
from upshift.report.terminal.progress import PlainProgress
from upshift.runs.history.runs import Run

_PROGRAM = """
import os
import platform

from upshift import pipeline, step


@step(timeout=300, cache=False)
def hello() -> str:
    return f"Python {platform.python_version()}, process {os.getpid()}"


@pipeline
def doctor():
    return hello()
"""


class _Watch(PlainProgress):
    """Tells when the step begins, and what it waits for."""

    def __init__(self, tell: Callable[[Finding], None]) -> None:
        super().__init__(io.StringIO(), io.StringIO())
        self._tell = tell
        self._runs = False
        self._sent = time.monotonic()
        self.run: str | None = None

    def run_started(self, run: str, pipeline: str, target: str, steps: list[str]) -> None:
        self.run, self._sent = run, time.monotonic()
        self._tell(Finding(name="submitted", text=f"as run {run}"))

    def task_changed(self, change: TaskChange) -> None:
        if change.status == "running" and not self._runs:
            self._runs = True
            self._tell(Finding(name="running", text=f"after {time.monotonic() - self._sent:.1f} s"))

    def notice(self, text: str, *, task: TaskId | None = None) -> None:
        self._tell(Finding(name="waiting" if task is not None and not self._runs else "noticed", text=text))


def trial(target: str, tell: Callable[[Finding], None]) -> None:
    """Run a step that does nothing on a target, and tell what happens as it does; failures are told, too."""
    watch = _Watch(tell)
    try:
        with tempfile.TemporaryDirectory(prefix="upshift-doctor-") as folder:
            program = Path(folder) / "doctor.py"
            program.write_text(_PROGRAM)
            pipeline = load_pipeline(str(program))
            _tell_end(pipeline.run(options=RunOptions(target=target), progress=watch), tell)
    except RunFailed as error:
        attempts = error.run["hello"].tasks[0].attempts if error.run is not None else []
        why = attempts[-1].error if attempts else None
        tell(
            Finding(
                name="ended",
                text=f"{attempts[-1].reason}: {why.message}" if why else error.in_short,
                status="problem",
                remedy=f"See its record: upshift show {watch.run}",
            )
        )
    except UpshiftError as error:
        tell(Finding(name="submitted", text=error.in_short, status="problem", remedy=error.fix))


def _tell_end(run: Run[str], tell: Callable[[Finding], None]) -> None:
    attempt = run["hello"].tasks[0].attempts[-1]
    seen = attempt.seen
    gpus = ", ".join(str(gpu.model or gpu.kind or gpu.vendor) for gpu in seen.gpus or ()) if seen else ""
    tell(Finding(name="node", text=str(attempt.node)))
    if seen is not None:
        memory = f", {format_size(seen.memory)} of memory" if seen.memory else ""
        tell(Finding(name="seen", text=f"{seen.cpu_count:g} CPU{memory}, {gpus or 'no GPU'}"))
    tell(Finding(name="ended", text=f"completed: {run.output}"))
    tell(Finding(name="store", text=f"the node sees {run.row.store}: the result came back through it"))
