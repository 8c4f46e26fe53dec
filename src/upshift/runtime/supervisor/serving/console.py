"""The log of one attempt on standard output, where a backend or a person reads it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from upshift.model.spec import MetricValue
from upshift.runtime.supervisor.attempt import Attempt


class Console:
    """Watches an attempt, and shows its log as it grows.

    ``problem`` says, once the attempt has ended, why its result is not in the store.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._shown = 0

    def started(self, attempt: Attempt) -> None:
        """Nothing to show."""

    def log_grew(self, attempt: Attempt, size: int) -> None:
        """Show what is new."""
        if not size:  # a process draws, and nobody has ended a line
            return
        with open(attempt.log.path, "rb") as file:
            file.seek(self._shown)
            while data := file.read(1 << 16):
                self._shown += len(data)
                sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def logged(self, attempt: Attempt, step: float | None, values: Mapping[str, MetricValue]) -> None:
        """Nothing to show: the store has it."""

    def noticed(self, attempt: Attempt, text: str) -> None:
        """Say what the log cannot."""
        sys.stderr.write(f"upshift: {text}\n")

    def ended(self, attempt: Attempt, problem: str | None) -> None:
        """Show the rest."""
        self.problem = problem
        if attempt.log.path.exists():
            self.log_grew(attempt, attempt.log.size)
