"""Why an attempt ended that has no outcome: what the end of its process says, or a mistake of ours."""

from __future__ import annotations

import os
import signal
import traceback

from upshift.config.sizes import format_size
from upshift.spec import Failure
from upshift.worker import proc

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def exited(code: int) -> Failure:
    """The process ended by itself, with this exit code, before the step returned."""
    return Failure(
        reason="user-error",
        message=f"the step's process ended with exit code {code} before the step returned",
        fix="Something called os._exit(), or a library did; the end of the log may tell.",
    )


def host_ran_out(peak: int) -> Failure:
    """The kernel killed the process for want of memory on this machine; it had ``peak`` bytes or more."""
    return Failure(
        reason="out-of-memory",
        message=f"this machine, which has {format_size(proc.host_memory())}, ran out of memory, and "
        f"the kernel killed the step, which had {format_size(peak)} or more",
        fix="Ask for what the step needs (memory=…), so that fewer steps run at once.",
        memory=peak or None,
    )


def killed(number: int, stack: str | None) -> Failure:
    """A signal that Upshift did not send ended the process; ``stack`` is that of the user's code."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number in _FROM_OUTSIDE:
        return Failure(
            reason="infrastructure",
            message=f"the step's process was killed by {name}, which Upshift did not send",
            fix="The step itself, another process or an administrator did.",
        )
    return Failure(
        reason="user-error",
        message=f"the step's process was killed by {name}",
        traceback=stack,
        fix="Native code crashed: a compiled library, or what it was given.",
    )


def mistake(error: Exception) -> Failure:
    """What an attempt ends with that could not be supervised any more."""
    *_, place = traceback.extract_tb(error.__traceback__)
    return Failure(
        reason="infrastructure",
        message=f"Upshift could not supervise the step any more: {type(error).__name__}: {error} "
        f"(in {place.name}, {os.path.basename(place.filename)}:{place.lineno})",
        fix="This is a mistake in Upshift: please report it.",
    )
