"""A call under Python's debugger, where a person sits at the terminal."""

from __future__ import annotations

import bdb
import pdb
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from upshift.errors import UsageError
from upshift.runtime.usercode.tracebacks import user_text

_COMMANDS = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters by which an exception's text could give commands to the terminal."""


class Left(KeyboardInterrupt):
    """The debugger was left before the call had ended."""


class _Debugger(pdb.Pdb):
    """Remembers that it was left: ``runcall`` keeps that to itself, and gives None."""

    left = False

    def set_quit(self) -> None:
        self.left = True
        super().set_quit()


def at_a_terminal() -> bool:
    """Whether somebody can type commands."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def debugged(
    function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any], *, stop: bool
) -> object:
    """Call a function; where it raises, look at its frames before they are gone."""
    try:
        if stop and at_a_terminal():
            debugger = _Debugger()
            value = debugger.runcall(function, *args, **kwargs)
            if debugger.left:
                raise bdb.BdbQuit
            return value
        return function(*args, **kwargs)
    except bdb.BdbQuit as error:
        if at_a_terminal():
            raise Left("the debugger was left") from None
        raise UsageError(
            "the debugger has no terminal, and found nothing more to read",
            fix="Run the command in a terminal, and redirect neither its input nor its output.",
        ).with_traceback(error.__traceback__) from None
    except Exception as error:
        frames = _from(error.__traceback__, function)
        if frames is not None and at_a_terminal():
            said = _COMMANDS.sub(lambda found: repr(found[0])[1:-1], user_text(error))
            sys.stdout.write(f"{said}\npdb is where it was raised: u up, p NAME, q go on\n")
            sys.stdout.flush()
            pdb.post_mortem(frames)
        raise


def _from(frames: TracebackType | None, function: Callable[..., object]) -> TracebackType | None:
    """The traceback from the function's own frame on."""
    code = getattr(function, "__code__", None)
    found = frames
    while found is not None and found.tb_frame.f_code is not code:
        found = found.tb_next
    return found or frames
