"""Stopping a run: who asks for it, and what is said about it."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from upshift.engine.attempts import Attempt
from upshift.report.human import count, delay
from upshift.report.terminal.making import image_of


class Command(enum.Enum):
    """What others put into the inbox, beside the events of backends and what is to be called."""

    CANCEL = "cancel"
    """Stop the run, as another process asks. The second one stops it without grace."""
    INTERRUPT = "interrupt"
    """The same, from whoever sits before the run: Ctrl-C."""


def stopping_line(
    jobs: list[Attempt], command: Command, *, again: bool, images: Sequence[Sequence[str]] = ()
) -> str:
    """What becomes of these jobs, in a line for whoever asked for it.

    Parameters
    ----------
    jobs
        What was submitted and has not ended.
    command
        Who asked.
    again
        Whether it is not for the first time.
    images
        Of each image that is being made, the steps that run in it.
    """
    if again:
        return f"killing {count(len(jobs), 'task')}"
    asked = "stopping" if command is Command.INTERRUPT else "stopping, as upshift cancel asks"
    running = [attempt for attempt in jobs if not attempt.waits]
    if not running:
        waiting = (
            f"; {count(len(jobs), 'task')} that waited for devices {_are(jobs)} not started" if jobs else ""
        )
        given_up = "".join(f"; {image_of(steps)} is given up" for steps in images)
        return f"{asked}: nothing runs{waiting}{given_up}"
    grace = max(attempt.spec.settings.grace_period for attempt in running)
    them = "it" if len(running) == 1 else "them"
    line = f"{asked}: {count(len(running), 'task')} {_are(running)} being ended (up to {delay(grace)})"
    return line + (f"; press Ctrl-C again to kill {them}" if command is Command.INTERRUPT else "")


def _are(jobs: list[Attempt]) -> str:
    return "is" if len(jobs) == 1 else "are"
