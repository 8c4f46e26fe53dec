"""Stopping a run: who asks for it, and what is said about it."""

from __future__ import annotations

import enum

from upshift.engine.attempts import Attempt
from upshift.report.human import count, delay


class Command(enum.Enum):
    """What others put into the inbox, beside the events of backends and what is to be called."""

    CANCEL = "cancel"
    """Stop the run, as another process asks. The second one stops it without grace."""
    INTERRUPT = "interrupt"
    """The same, from whoever sits before the run: Ctrl-C."""


def stopping_line(jobs: list[Attempt], command: Command, *, again: bool) -> str:
    """What becomes of these jobs, in a line for whoever asked for it."""
    if again:
        return f"killing {count(len(jobs), 'task')}"
    asked = "stopping" if command is Command.INTERRUPT else "stopping, as upshift cancel asks"
    running = [attempt for attempt in jobs if not attempt.waits]
    if not running:
        waiting = (
            f"; {count(len(jobs), 'task')} that waited for devices {_are(jobs)} not started" if jobs else ""
        )
        return f"{asked}: nothing runs{waiting}"
    grace = max(attempt.spec.grace for attempt in running)
    them = "it" if len(running) == 1 else "them"
    line = f"{asked}: {count(len(running), 'task')} {_are(running)} being ended (up to {delay(grace)})"
    return line + (f"; press Ctrl-C again to kill {them}" if command is Command.INTERRUPT else "")


def _are(jobs: list[Attempt]) -> str:
    return "is" if len(jobs) == 1 else "are"
