"""One task by hand: ``python -m upshift.runtime SPEC``. Its log is shown on standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from upshift.errors import UpshiftError
from upshift.model.settings.secrets import read_secrets
from upshift.model.spec import MetricValue
from upshift.runtime.launch import seats
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor.attempt import SupervisedAttempt
from upshift.runtime.supervisor.output.overflow import Overflow
from upshift.runtime.supervisor.serving.roles import TaskLoop, role_of
from upshift.runtime.supervisor.serving.single_task import complain, opened_task, say
from upshift.runtime.supervisor.serving.supervisor import Supervisor
from upshift.runtime.supervisor.starters.direct import FreshStarter

EXIT_CODES = {"completed": 0, "failed": 1, "cancelled": 130}


def run_by_hand(path: str, store_address: str | None) -> int:
    """Run a task from its spec, and show its log. The exit code tells how it ended."""
    try:
        seat = seats.take(os.environ)
        spec, store = opened_task(path, store_address)
        if store.read_result(spec.task, spec.attempt) is not None:
            raise UpshiftError(
                f"attempt {spec.attempt} of {spec.task} has a result already",
                fix="A result never changes. Set another attempt in the spec to run it again.",
            )
        secrets = read_secrets(spec.settings.secret_sources, project=spec.code.project)
    except (UpshiftError, ValueError) as error:
        return complain(str(error))
    loop, console = Loop(), Console()
    overflow = Overflow(loop)
    supervisor = Supervisor(f"worker-{os.getpid()}", loop=loop, watcher=console, overflow=overflow)
    starter = FreshStarter(loop, exited=supervisor.exited, kin=lambda: supervisor.kin)
    part = role_of(spec, store, loop, supervisor, secrets, seat=seat, starter=starter, overflow=overflow)
    course = TaskLoop(loop, supervisor, ordered=False)
    course.begin(spec, part)

    def tell(why: str) -> None:
        say(f"{spec.task} {why}")
        part.tell(why)

    supervisor.devices.ask(spec, ready=part.start, tell=tell, refuse=part.refuse)
    problem = course.to_its_end() or console.problem
    supervisor.close()
    if seat is not None and seat.node and problem is None:
        return 0
    result = None if problem else store.read_result(spec.task, spec.attempt)
    if result is None:
        return complain(problem or "the result could not be read back", code=1)
    if result.failure is not None:
        say(f"{spec.task}: {result.failure.reason}: {result.failure.message}")
    return EXIT_CODES[result.status]


class Console:
    """Watches an attempt, and shows its log as it grows.

    ``problem`` says, once the attempt has ended, why its result is not in the store.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._shown = 0

    def started(self, attempt: SupervisedAttempt) -> None:
        """Nothing to show."""

    def log_grew(self, attempt: SupervisedAttempt, size: int) -> None:
        """Show what is new."""
        if not size:  # a process draws, and nobody has ended a line
            return
        with open(attempt.log.path, "rb") as file:
            file.seek(self._shown)
            while data := file.read(1 << 16):
                self._shown += len(data)
                sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def logged(
        self, attempt: SupervisedAttempt, step: float | None, values: Mapping[str, MetricValue]
    ) -> None:
        """Nothing to show: the store has it."""

    def noticed(self, attempt: SupervisedAttempt, text: str) -> None:
        """Say what the log cannot."""
        sys.stderr.write(f"upshift: {text}\n")

    def ended(self, attempt: SupervisedAttempt, problem: str | None) -> None:
        """Show the rest."""
        self.problem = problem
        if attempt.log.path.exists():
            self.log_grew(attempt, attempt.log.size)
