"""Why an attempt ended that has no outcome: what the end of its process says, or a mistake of ours."""

from __future__ import annotations

import os
import signal
import traceback

from upshift.errors import BackendError, UpshiftError
from upshift.model.settings.retry import STOPPED
from upshift.model.settings.sizes import format_size
from upshift.model.spec import Failure

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def exited(code: int) -> Failure:
    """The process ended by itself, with this exit code, before the step returned."""
    return Failure(
        reason="user-error",
        message=f"the step's process ended with exit code {code} before the step returned",
        fix="Something called os._exit(), or a library did; the end of the log may tell.",
    )


def ran_out(what: str, peak: int) -> Failure:
    """The kernel killed the process for want of memory of ``what``; it had ``peak`` bytes or more."""
    return Failure(
        reason="out-of-memory",
        message=f"{what}, ran out of memory, and the kernel killed the step, "
        f"which had {format_size(peak)} or more",
        fix="Ask for what the step needs (memory=…), so that fewer steps run at once.",
        memory=peak or None,
    )


def killed(number: int, stack: str | None) -> Failure:
    """A signal that Upshift did not send ended the process; ``stack`` is that of the user's code."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number in _FROM_OUTSIDE:
        return Failure(
            reason=STOPPED,
            message=f"the step's process was killed by {name}, which Upshift did not send",
            fix="The step itself, another process or an administrator did.",
        )
    return Failure(
        reason="user-error",
        message=f"the step's process was killed by {name}",
        traceback=stack,
        fix="A compiled library crashed, perhaps because of the values passed to it.",
    )


def stopped_from_outside(what: str, name: str, *, node: str | None = None) -> Failure:
    """Somebody else than Upshift has sent a signal of this name to the supervisor, which stopped the step."""
    message = f"{what} was stopped from outside ({name})"
    return Failure(reason=STOPPED, message=message, node=node)


def unavailable(error: BackendError) -> Failure:
    """The machine does not have what the processes need before they can start: a port."""
    return Failure(reason="infrastructure", message=error.in_short, fix=error.fix)


def not_started(error: OSError | UpshiftError) -> str:
    """Why there is no result of a task that could not be started."""
    why = error.in_short if isinstance(error, UpshiftError) else str(error)
    return f"the task could not be started: {why}"


def mistake(error: Exception, what: str = "supervise the step any more") -> Failure:
    """What an attempt ends with for a mistake of ours, and what could not be done."""
    *_, place = traceback.extract_tb(error.__traceback__)
    return Failure(
        reason="infrastructure",
        message=f"Upshift could not {what}: {type(error).__name__}: {error} "
        f"(in {place.name}, {os.path.basename(place.filename)}:{place.lineno})",
        fix="This is a mistake in Upshift: please report it.",
    )
